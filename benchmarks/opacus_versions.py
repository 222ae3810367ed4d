"""Every minor release of Opacus from 1.4 on, tried: writes docs/opacus-versions.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from museum.catalogue import Release
from museum.environments import UnavailableError, environment, install

ROOT = Path(__file__).parent.parent
RELEASES = {
    "1.4.0": "44b5b8536138a1eac6a604a35f59d7236dfc280bb543375725eb9eb299516c04",
    "1.4.1": "8c46aff596bbbc6025ce9d169b49d5b3112cb958e3d74f8b77274134e7590890",
    "1.5": "aebe4cadfeb1f0991a235e64785edc1f7ae9f2b4d5fd5113976f3b921df71430",
    "1.5.4": "a0ca27974e825d86635c82f08ebb380a373613c121066bc0b8e29e42d9f961a5",
    "1.6.0": "342123624c56c09d47eaba44010ed216d51c63132b543d67cba53a49ed6dc41e",
}
_SECONDS = 900.0
# What releases themselves do wrong, and by which finding the audit names it.
FAULTS = {
    "record contributions": "records add more than the clip norm",
    "ghost norms": "norms of records are wrong",
    "accounting of the clipping count": "the accountant leaves out the count of unclipped records",
}

_HEAD = """# Every release of Opacus

Written by `make opacus-versions`, which installs each release in a folder of its own, beside torch {torch} and Python {python}, and attaches the
audit to small runs of {steps} steps with {present} present canaries. A sound run must be CONSISTENT with a bound of at least 90 % of the epsilon that its own
accountant's steps come to; the same run with half of its noise must be a VIOLATION. Each cell shows the first verdict with the bound as a
share of the claim, and whether half of the noise was found.

"""

_TAIL = """
"-" is what a release does not have; 1.5 has ghost clipping whose two passes every loop makes by itself, which is not tried. Any other release works if its classes are where these have them: the audit then says in its notes that
this release was never tried, and does not refuse it. Opacus 1.0 to 1.3 can be attached to as well, as far as the
museum of released bugs needs them; they are not in this table.
"""


def tried(version: str) -> list[dict[str, Any]]:
    """What every trial gave with one release, in a process of its own."""
    release = Release(name="opacus", version=version, sha256=RELEASES[version])
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.opacus_trials"],
        cwd=ROOT,
        env=environment(install((release,))),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if done.returncode != 0:
        raise SystemExit(f"opacus {version}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def cell(row: dict[str, Any]) -> tuple[str, bool]:
    """A cell of the table, and whether it is as it must be."""
    if not row["offered"]:
        return "-", True
    sound, half = row["sound"], row["half"]
    found = half["verdict"] == "VIOLATION"
    own = [check for check in sound["failed"] if check in FAULTS]
    text = f"{sound['verdict']}, {sound['share']:.0%}"
    if own:
        text = f"{sound['verdict']}: {', '.join(own)}"
    good = found and (bool(own) or (sound["verdict"] == "CONSISTENT" and sound["share"] >= 0.9))
    return f"{text}; {'found' if found else half['verdict']}", good


def page(results: dict[str, list[dict[str, Any]]]) -> tuple[str, list[str]]:
    """The page, and what on it is not as it must be."""
    from tests.integrations import opacus_trials as trials

    steps = trials.EPOCHS * trials.RECORDS // trials.BATCH
    text = _HEAD.format(
        torch=torch.__version__.partition("+")[0],
        python=".".join(map(str, sys.version_info[:2])),
        steps=steps,
        present=trials.PRESENT,
    )
    versions = list(results)
    lines = [f"| trial | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
    wrong, faults = [], set()
    for number, trial in enumerate(trials.TRIALS):
        cells = []
        for version in versions:
            row = results[version][number]
            shown, good = cell(row)
            cells.append(shown)
            if not good:
                wrong.append(f"opacus {version}, {trial.name}: {shown}")
            if row["offered"]:
                faults |= {check for check in row["sound"]["failed"] if check in FAULTS}
        lines.append(f"| {trial.name} | {' | '.join(cells)} |")
    text += "\n".join(lines) + "\n"
    if faults:
        text += "\nWhat releases do wrong by themselves, and the audit names in a sound-looking run:\n\n"
        text += "".join(f"- `{check}`: {FAULTS[check]}.\n" for check in sorted(faults))
    return text + _TAIL, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", choices=[[], *RELEASES], help="all if none is named")
    parser.add_argument("--output", type=Path, help="the page to write")
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    for version in arguments.versions or RELEASES:
        try:
            results[version] = tried(version)
        except UnavailableError as error:
            raise SystemExit(f"not installed: {error}") from error
        for row in results[version]:
            print(f"opacus {version:<6} {row['trial']:<32} {cell(row)[0]}", flush=True)
    text, wrong = page(results)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")
    if wrong:
        raise SystemExit("\n".join(["Not as it must be:", *wrong]))


if __name__ == "__main__":
    main()
