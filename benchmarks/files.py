"""Files of ten million canaries and a million steps: what checking them costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The last commit of the first release: its files had no digest, and their arrays no schema.
FIRST = "376e104"
ROUNDS = 3

_MAKE = """
import sys, askgauss
transcript = askgauss.simulate_dpsgd(steps=40, sampling_rate=0.05, noise_multiplier=1.0,
    present=5_000_000, absent=5_000_000, seed=1)
transcript.save(sys.argv[1])
transcript.scores().save(sys.argv[2])
"""
# The best of several: the first loads wait for memory that the system clears.
_LOAD = """
import json, sys, time, askgauss
from askgauss.recording.transcript import Transcript
found = {}
for name, kind, path in (("transcript", Transcript, sys.argv[1]),
                         ("scores", askgauss.CanaryScores, sys.argv[2])):
    times = []
    for _ in range(5):
        started = time.perf_counter()
        kind.load(path)
        times.append(time.perf_counter() - started)
    found[name] = min(times)
started = time.perf_counter()
askgauss.audit(Transcript.load(sys.argv[1]), claim=askgauss.PrivacyClaim(epsilon=8.0, delta=1e-5))
found["transcript, loaded and audited"] = time.perf_counter() - started
print(json.dumps(found))
"""
_STEPS = """
import sys, askgauss
askgauss.simulate_dpsgd(steps=1_000_000, sampling_rate=0.01, noise_multiplier=20.0, present=100,
    absent=100, seed=1).save(sys.argv[1])
"""


def python(source: str | None, code: list[str]) -> tuple[str, float]:
    """What a process of its own prints, and the most memory it had, in GB."""
    environment = {**os.environ, "PYTHONPATH": source or str(ROOT / "src")}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *code], stdout=output, env=environment, cwd=tempfile.gettempdir()
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().decode()
    return printed, used.ru_maxrss * 1024 / 1e9


def first_release(folder: Path) -> str | None:
    """The sources of the first release; None where the history is not here."""
    archive = folder / "first.tar"
    command = ["git", "archive", "--output", str(archive), FIRST, "src"]
    if subprocess.run(command, cwd=ROOT, capture_output=True).returncode:
        return None
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "first", filter="data")
    return str(folder / "first" / "src")


def rows() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = {"now": None, "first": first_release(folder)}
        if sources["first"] is None:
            yield "the first release", f"not compared: {FIRST} is not in this clone"
            del sources["first"]
        paths = {
            which: [str(folder / f"{which}.{kind}.npz") for kind in ("transcript", "scores")]
            for which in sources
        }
        best: dict[str, dict[str, float]] = {which: {} for which in sources}
        for which, source in sources.items():
            python(source, ["-c", _MAKE, *paths[which]])
        for _ in range(ROUNDS):
            for which, source in sources.items():
                found = json.loads(python(source, ["-c", _LOAD, *paths[which]])[0])
                for what, taken in found.items():
                    best[which][what] = min(taken, best[which].get(what, taken))
        for what, taken in best["now"].items():
            text = f"{taken:.2f} s"
            if "first" in best:
                before = best["first"][what]
                text = f"{taken / before:.2f} ({text} against {before:.2f} s)"
            yield f"10,000,000 canaries, {what}, over the first release", text
        path = str(folder / "steps.npz")
        python(None, ["-c", _STEPS, path])
        options = ["--epsilon", "8", "--delta", "1e-5", "--quiet"]
        page = ["--html", str(folder / "page.html")]
        command = ["-m", "askgauss", "audit", path, *options]
        yield "1,000,000 steps, audited: most memory", f"{python(None, command)[1]:.2f} GB"
        with_page = python(None, [*command, *page])[1]
        yield "1,000,000 steps, audited with a page: most memory", f"{with_page:.2f} GB"
