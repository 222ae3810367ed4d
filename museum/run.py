"""Runs an exhibit, broken and fixed, and compares each outcome with the expected one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from museum import environments
from museum.catalogue import VARIANTS, Exhibit

_SECONDS = 1800.0
_OUTCOMES = environments.ENVIRONMENTS / "outcomes"
_SOURCES = Path(__file__).parent.parent / "src" / "askgauss"
# What draws, prints and reproduces has no part in an outcome.
_NOT_THE_AUDIT = ("cli", "plots", "report")
GREEN = ("CONSISTENT", "INCONCLUSIVE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhibitRun:
    """An exhibit and what its two runs came to.

    Attributes:
        exhibit: The exhibit.
        outcomes: The outcome of each variant, as plain values; empty where it was skipped.
        skipped: Why it could not be run; empty where it was.
    """

    exhibit: Exhibit
    outcomes: dict[str, dict[str, Any]]
    skipped: str = ""

    @property
    def seconds(self) -> float:
        """Processor time of both runs, which other load on the machine does not change."""
        return sum(item.get("seconds", 0.0) for item in self.outcomes.values())

    @property
    def found(self) -> bool:
        """Whether the broken run has its finding and the fixed version has not."""
        return not self.skipped and self._names("broken") and self.twin_clean

    @property
    def twin_clean(self) -> bool:
        """Whether the fixed version raised no alarm, nor warned of this bug."""
        twin = self.outcomes.get("mended", {})
        quiet = twin.get("verdict") in GREEN and not twin.get("findings")
        return not self.skipped and quiet and not self._names("mended")

    def _names(self, variant: str) -> bool:
        outcome = self.outcomes.get(variant, {})
        named = (*outcome.get("findings", ()), *outcome.get("warnings", ()))
        return bool(self.exhibit.finding) and self.exhibit.finding in named

    @property
    def as_expected(self) -> bool:
        """Whether verdict and finding are the expected ones, and the fixed version is clean."""
        if self.skipped:
            return False
        right = self.outcomes["broken"]["verdict"] == self.exhibit.verdict
        return right and self.twin_clean and (self.found or not self.exhibit.finding)

    @property
    def line(self) -> str:
        """One line for a terminal."""
        if self.skipped:
            return f"{self.exhibit.name:34} skipped: {self.skipped}"
        broken, mended = (self.outcomes[variant] for variant in VARIANTS)
        word = "found" if self.found else "not seen"
        word = word if self.as_expected else "UNEXPECTED"
        names = ", ".join(broken["findings"]) or "no finding"
        return (
            f"{self.exhibit.name:34} {word}: {broken['verdict']} ({names}); "
            f"mended {mended['verdict']}; {self.seconds:.0f} s"
        )


def run_exhibit(exhibit: Exhibit, *, again: bool = False) -> ExhibitRun:
    """Run what has not been run with these sources yet.

    Args:
        exhibit: The exhibit.
        again: Run it even if an outcome is stored.
    """
    skipped = _skipped(exhibit)
    if skipped:
        return ExhibitRun(exhibit=exhibit, outcomes={}, skipped=skipped)
    outcomes: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        try:
            outcomes[variant] = _run_variant(exhibit, variant, again)
        except (environments.UnavailableError, _FailedError) as error:
            return ExhibitRun(exhibit=exhibit, outcomes={}, skipped=str(error))
    return ExhibitRun(exhibit=exhibit, outcomes=outcomes)


class _FailedError(Exception):
    """A script did not come to an outcome."""


def _run_variant(exhibit: Exhibit, variant: str, again: bool) -> dict[str, Any]:
    """The outcome of one run, stored under a digest of all it depends on.

    Exhibits that show two bugs of one run share it: their scripts and releases are equal.
    """
    kept = _OUTCOMES / f"{_fingerprint(exhibit, variant)}.json"
    if kept.exists() and not again:
        content: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return content
    installed = environments.install(exhibit.releases(variant))
    _OUTCOMES.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}.part")
    before = _processor_seconds()
    try:
        done = subprocess.run(
            [sys.executable, str(exhibit.folder / "show.py"), variant, str(part)],
            env=environments.environment(installed),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _FailedError(f"{variant}: took longer than {_SECONDS:.0f} seconds") from None
    if done.returncode != 0 or not part.exists():
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise _FailedError(f"{variant}: {last[:200]}")
    outcome = json.loads(part.read_text(encoding="utf-8"))
    outcome |= {"seconds": _processor_seconds() - before, "run": kept.stem}
    part.write_text(json.dumps(outcome), encoding="utf-8")
    part.replace(kept)
    return outcome


def _skipped(exhibit: Exhibit) -> str:
    """Why an exhibit cannot be run on any machine, or not by this Python."""
    if exhibit.unavailable:
        return exhibit.unavailable.strip()
    newest = exhibit.newest_python
    if newest and sys.version_info[:2] > tuple(int(part) for part in newest.split(".")):
        return f"its releases are made for Python {newest} at the newest"
    return ""


def _processor_seconds() -> float:
    """What child processes have used so far."""
    times = os.times()
    return times.children_user + times.children_system


def _fingerprint(exhibit: Exhibit, variant: str) -> str:
    """A digest of what an outcome depends on: script, releases, what it imports, and askgauss."""
    script = exhibit.folder / "show.py"
    state = hashlib.sha256(f"{variant} {exhibit.releases(variant)}".encode())
    audit = [
        path
        for path in sorted(_SOURCES.rglob("*.py"))
        if path.relative_to(_SOURCES).parts[0] not in _NOT_THE_AUDIT
    ]
    for path in (script, *_helpers(script), *audit):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _helpers(script: Path) -> list[Path]:
    """Modules of the museum that a script imports, and those that they do."""
    found: list[Path] = []
    waiting = [script]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in re.findall(r"^from museum\.(\w+) import", text, flags=re.MULTILINE):
            path = Path(__file__).parent / f"{name}.py"
            if path not in found:
                found.append(path)
                waiting.append(path)
    return sorted(found)
