"""Runs an exhibit, broken and mended, and says whether each did what its folder says."""

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

from museum import rooms
from museum.exhibits import VARIANTS, Exhibit

_SECONDS = 900.0
_OUTCOMES = rooms.ROOMS / "outcomes"
_SOURCES = Path(__file__).parent.parent / "src" / "askgauss"
GREEN = ("CONSISTENT", "INCONCLUSIVE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An exhibit and what its two runs came to.

    Attributes:
        exhibit: The exhibit.
        outcomes: The outcome of each variant, as plain values; empty where it was skipped.
        seconds: Processor time of both together, when they ran: what a shared machine also tells.
        skipped: Why it could not be shown; empty where it was.
    """

    exhibit: Exhibit
    outcomes: dict[str, dict[str, Any]]
    seconds: float = 0.0
    skipped: str = ""

    @property
    def found(self) -> bool:
        """Whether the broken run was named by its finding, and the twin was not."""
        return not self.skipped and self._names("broken") and self.twin_clean

    @property
    def twin_clean(self) -> bool:
        """Whether the mended twin raised no alarm, nor warned of this bug."""
        twin = self.outcomes.get("mended", {})
        quiet = twin.get("verdict") in GREEN and not twin.get("findings")
        return not self.skipped and quiet and not self._names("mended")

    def _names(self, variant: str) -> bool:
        outcome = self.outcomes.get(variant, {})
        named = (*outcome.get("findings", ()), *outcome.get("warnings", ()))
        return bool(self.exhibit.finding) and self.exhibit.finding in named

    @property
    def as_expected(self) -> bool:
        """Whether verdict and finding are those its folder names, and the twin is clean."""
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
        word = "found" if self.found else "not seen" if self.as_expected else "UNEXPECTED"
        names = ", ".join(broken["findings"]) or "no finding"
        return (
            f"{self.exhibit.name:34} {word}: {broken['verdict']} ({names}); "
            f"mended {mended['verdict']}; {self.seconds:.0f} s"
        )


def show(exhibit: Exhibit, *, again: bool = False) -> Shown:
    """Run what has not been run with these very sources yet.

    Args:
        exhibit: The exhibit.
        again: Run it whatever was kept.
    """
    kept = _OUTCOMES / f"{exhibit.name}-{_sources(exhibit)}.json"
    if kept.exists() and not again:
        content = json.loads(kept.read_text(encoding="utf-8"))
        return Shown(exhibit=exhibit, **content)
    skipped = _skipped(exhibit)
    if skipped:
        return Shown(exhibit=exhibit, outcomes={}, skipped=skipped)
    used = 0.0
    outcomes: dict[str, dict[str, Any]] = {}
    _OUTCOMES.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        try:
            found = rooms.furnish(exhibit.releases(variant))
        except rooms.UnavailableError as error:
            return Shown(exhibit=exhibit, outcomes={}, skipped=str(error))
        target = _OUTCOMES / f".{exhibit.name}.{variant}.json"
        target.unlink(missing_ok=True)
        script = exhibit.folder / "show.py"
        before = _processor_seconds()
        try:
            done = subprocess.run(
                [sys.executable, str(script), variant, str(target)],
                env=rooms.environment(found),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Shown(exhibit=exhibit, outcomes={}, skipped=f"{variant}: took too long")
        if done.returncode != 0 or not target.exists():
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            return Shown(exhibit=exhibit, outcomes={}, skipped=f"{variant}: {last[:200]}")
        used += _processor_seconds() - before
        outcomes[variant] = json.loads(target.read_text(encoding="utf-8"))
        target.unlink()
    shown = Shown(exhibit=exhibit, outcomes=outcomes, seconds=used)
    part = kept.with_suffix(".part")
    part.write_text(json.dumps({"outcomes": outcomes, "seconds": shown.seconds}))
    part.replace(kept)
    return shown


def _skipped(exhibit: Exhibit) -> str:
    """Why an exhibit cannot be shown on any machine, or not by this Python."""
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


def _sources(exhibit: Exhibit) -> str:
    """A digest of what an outcome depends on: the exhibit, what it imports here, and askgauss."""
    files = [*sorted(exhibit.folder.iterdir()), *sorted(_SOURCES.rglob("*.py"))]
    files += _helpers(exhibit.folder / "show.py") if not exhibit.unavailable else []
    state = hashlib.sha256()
    for path in files:
        if path.is_file():
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
