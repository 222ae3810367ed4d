"""How the settings of a step moved from step to step: by a schedule, or up and down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from askgauss.exceptions import FileFormatError

__all__ = ["SettingCourse", "SettingFacts"]

# Turns that no pattern foretells, from which on a setting does not follow the step number alone,
# and their share of all changes: a value that follows the batch turns at two changes of three.
_TURNS = 6
_SHARE = 0.25
# Values nearer than this are the same, but for rounding.
_SAME = 1e-9
# Patterns that are remembered.
_PATTERNS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """How one setting moved over the steps of a run.

    Attributes:
        name: The setting.
        steps: Steps in which it was read.
        changes: Steps in which it was another one than in the step before.
        turns: Changes that went up where the one before went down, or the reverse, and that the
            pattern of earlier changes did not foretell.
        first: The step of the first change; 0 if there is none.
        scheduler: Class of the scheduler that sets it, where one was found.
        declared: Changes that were declared to depend on released values alone, or that a
            scheduler of torch made that depends on the step number alone.
        adapted: Whether the optimizer adapts it, from a noisy count that is tested by itself.
    """

    name: str
    steps: int = 0
    changes: int = 0
    turns: int = 0
    first: int = 0
    scheduler: str = ""
    declared: int = 0
    adapted: bool = False

    @property
    def erratic(self) -> bool:
        """Whether it moved up and down as no schedule does."""
        return not self.adapted and self.turns >= _TURNS and self.turns > _SHARE * self.changes

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("steps", "changes", "turns", "first", "declared"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.settings.{name} >= 0, got it below.")


class SettingCourse:
    """Follows one number from step to step.

    Args:
        name: The setting.
        adapted: Whether the optimizer adapts it.
    """

    def __init__(self, name: str, *, adapted: bool = False) -> None:
        self._facts = SettingFacts(name=name, adapted=adapted)
        # Steps that are no news, which are in the facts when somebody asks for them.
        self._alike = 0
        self._value: float | None = None
        self._length = 0
        self._rising: bool | None = None
        self._last: tuple[tuple[float, int], ...] = ()
        self._patterns: dict[tuple[tuple[float, int], ...], tuple[float, int]] = {}

    @property
    def facts(self) -> SettingFacts:
        """What was seen so far."""
        return replace(self._facts, steps=self._facts.steps + self._alike)

    def load(self, facts: SettingFacts) -> None:
        """Go on from the facts of a checkpoint."""
        self._facts, self._alike = replace(facts, adapted=self._facts.adapted), 0
        self._value, self._rising, self._last = None, None, ()

    def set_by(self, scheduler: str) -> None:
        """A scheduler of this class sets it."""
        if scheduler != self._facts.scheduler:
            self._facts = replace(self._facts, scheduler=scheduler)

    def moves(self, value: float) -> bool:
        """Whether a value is another one than in the last step."""
        last = self._value
        return last is not None and not math.isclose(value, last, rel_tol=_SAME, abs_tol=0.0)

    def stay(self, steps: int) -> None:
        """So many steps have the value of the last."""
        self._length += steps
        self._alike += steps

    def note(self, value: float, step: int, *, declared: bool = False) -> None:
        """A step has this value.

        Args:
            value: The value.
            step: The step, counted from 1.
            declared: Whether a change is known not to depend on the data.
        """
        facts = self._facts
        if not self.moves(value):
            self._value = value if self._value is None else self._value
            self.stay(1)
            return
        assert self._value is not None
        if declared:
            self._facts = replace(facts, steps=facts.steps + 1, declared=facts.declared + 1)
            self._rising, self._last = None, ()
        else:
            self._facts = replace(
                facts,
                steps=facts.steps + 1,
                changes=facts.changes + 1,
                turns=facts.turns + self._turned(value > self._value),
                first=facts.first or step,
            )
        self._value, self._length = value, 1

    def _turned(self, rising: bool) -> bool:
        """Whether a change turns without having been foretold."""
        assert self._value is not None
        # What was held, and for how long, is foretold by the two before it.
        held = (float(f"{self._value:.9g}"), self._length)
        foretold = self._patterns.get(self._last) == held
        if len(self._last) == 2 and (len(self._patterns) < _PATTERNS or foretold):
            self._patterns[self._last] = held
        self._last = (*self._last, held)[-2:]
        turned = self._rising is not None and rising != self._rising
        self._rising = rising
        return turned and not foretold
