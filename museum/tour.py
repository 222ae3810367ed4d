"""Runs an exhibit, broken and mended, and says whether each did what its folder says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
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
        seconds: How long both took together, when they ran.
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
    started = time.monotonic()
    outcomes: dict[str, dict[str, Any]] = {}
    _OUTCOMES.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        try:
            found = rooms.furnish(exhibit.releases(variant))
        except rooms.UnavailableError as error:
            return Shown(exhibit=exhibit, outcomes={}, skipped=str(error))
        if variant == "broken":
            started = time.monotonic()
        target = _OUTCOMES / f".{exhibit.name}.{variant}.json"
        target.unlink(missing_ok=True)
        script = exhibit.folder / "show.py"
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
        outcomes[variant] = json.loads(target.read_text(encoding="utf-8"))
        target.unlink()
    shown = Shown(exhibit=exhibit, outcomes=outcomes, seconds=time.monotonic() - started)
    part = kept.with_suffix(".part")
    part.write_text(json.dumps({"outcomes": outcomes, "seconds": shown.seconds}))
    part.replace(kept)
    return shown


def _sources(exhibit: Exhibit) -> str:
    """A digest of what an outcome depends on: the exhibit, the museum, and askgauss."""
    files = [
        *sorted(exhibit.folder.iterdir()),
        *sorted(Path(__file__).parent.glob("*.py")),
        *sorted(_SOURCES.rglob("*.py")),
    ]
    state = hashlib.sha256()
    for path in files:
        if path.is_file():
            state.update(path.read_bytes())
    return state.hexdigest()[:16]
