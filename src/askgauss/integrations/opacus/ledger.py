"""What an Opacus run's accountant has counted, and whether it is at the step the audit is at."""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus.opacus_versions import history_of
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.recording.transcript import Transcript

__all__ = ["Ledger", "LedgerState", "accounted_facts", "accounting_notes"]

_MOST_READS = 16
# Different settings in a history that its accountant is asked about.
_MOST_SEGMENTS = 32
# The error of a rough answer, and how far above the claim it is enough, in claimed epsilons.
_ROUGHLY = 0.05
_FAR_ABOVE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a ledger has counted: noise multiplier, sampling rate, steps.

    Attributes:
        entries: The kinds of steps counted while the audit was attached.
        broken: Whether the history was replaced meanwhile.
        total: Steps in the whole history; None in early files, and without an accountant.
        reads: Delta, epsilon and number of steps whenever epsilon was read.
    """

    entries: tuple[tuple[float, float, int], ...]
    broken: bool
    total: int | None = None
    reads: tuple[tuple[float, float, int], ...] = ()


class Ledger:
    """What an accountant added to its history while the audit was attached, and what it has in all.

    Args:
        accountant: An Opacus accountant, or None where there is none.
    """

    def __init__(self, accountant: Any) -> None:
        self._accountant = accountant
        self._start: list[tuple[float, float, int]] | None = None
        self._closed: dict[tuple[float, float], int] = {}
        self._broken = False
        self._left_at: int | None = None
        # What the whole history must come to when a run that was loaded goes on.
        self._expected: int | None = None
        self._reads: list[tuple[float, float, int]] = []
        self._previous: Any = None
        self._noted: Any = None

    @property
    def total(self) -> int | None:
        """Steps the accountant has counted in all; None without one."""
        if self._accountant is None:
            return None
        return sum(steps for _, _, steps in history_of(self._accountant))

    def history(self) -> tuple[tuple[float, float, int], ...]:
        """All that the accountant has counted: noise multiplier, sampling rate, steps."""
        if self._accountant is None:
            return ()
        return tuple(history_of(self._accountant))

    def check_total(self, steps: int, *, now: bool) -> None:
        """Refuse to go on where the accountant and the audit are not at the same step.

        Args:
            steps: Steps the audit has seen.
            now: Whether the accountant must have been restored; else an empty one may still be.

        Raises:
            RecordingError: They are steps apart.
        """
        expected = self._expected
        if expected is None:
            return
        total = self.total
        if total is None or (total == 0 and not now):
            return
        if total != expected:
            raise RecordingError(
                f"Expected an accountant with the {expected:,} steps it had when the audit's "
                f"checkpoint was written, after {steps:,} observed ones, got one with {total:,}. "
                "Model and audit are not of the same step: go on from a pair of checkpoints "
                "written together (put audit.state_dict() into the model's file), restore the "
                "accountant too, or start a new audit without this checkpoint."
            )

    @property
    def reads(self) -> tuple[tuple[float, float, int], ...]:
        """Delta, epsilon and number of steps whenever epsilon was read with the audit attached."""
        return tuple(self._reads)

    def listen(self) -> None:
        """Begin to note when epsilon is read: what is trained afterwards it does not speak of."""
        accountant = self._accountant
        if accountant is None:
            return
        self._previous, read = vars(accountant).get("get_epsilon"), accountant.get_epsilon

        @functools.wraps(read)
        def noted(*arguments: Any, **options: Any) -> Any:
            epsilon = read(*arguments, **options)
            delta = options.get("delta", arguments[0] if arguments else math.nan)
            self._note(float(delta), float(epsilon))
            return epsilon

        self._noted = noted
        accountant.get_epsilon = noted

    def _note(self, delta: float, epsilon: float) -> None:
        total = self.total or 0
        # One a delta and number of steps, and no more than anybody wants to read.
        self._reads = [item for item in self._reads if item[::2] != (delta, total)][-_MOST_READS:]
        self._reads.append((delta, epsilon, total))

    def deafen(self) -> None:
        """Note no more."""
        accountant, noted = self._accountant, self._noted
        if noted is None or vars(accountant).get("get_epsilon") is not noted:
            return
        if self._previous is None:
            del accountant.get_epsilon
        else:
            accountant.get_epsilon = self._previous

    def epsilon(self, delta: float, claimed: float) -> float | None:
        """What the accountant itself says; None where it cannot tell.

        One that computes to a given error is first asked for a rough answer: far above the claim it
        is enough, and an exact one takes a minute where epsilon is in the hundreds.
        """
        history = self.history()
        if not history:
            return None
        for known, epsilon, steps in self._reads:
            if steps == self.total and math.isclose(known, delta, rel_tol=1e-9):
                return epsilon
        # Each segment costs it up to a second: the audit's own composition has to do.
        if len({segment[:2] for segment in history}) > _MOST_SEGMENTS:
            return None
        asked = inspect.signature(type(self._accountant).get_epsilon).parameters
        if "eps_error" in asked:
            error = max(_ROUGHLY * claimed, 0.01)
            rough = self._ask(delta=delta, eps_error=error)
            if rough is None or rough - 2.0 * error > _FAR_ABOVE * claimed:
                return rough
        return self._ask(delta=delta)

    def _ask(self, **options: float) -> float | None:
        try:
            with np.errstate(all="ignore"):
                return float(type(self._accountant).get_epsilon(self._accountant, **options))
        except (ValueError, RuntimeError, OverflowError):
            return None

    def open(self) -> None:
        """Count from here, unless counting already."""
        # Only now, at the first step: a resumed run may restore its accountant after attaching.
        if self._start is None and self._accountant is not None:
            self._start = history_of(self._accountant)
        self._expected = None

    def close(self) -> None:
        """Stop counting, and keep what was counted."""
        # At once: what is kept and still counted would be counted twice.
        self._closed, self._start, self._left_at = self._counted(), None, self.total

    @property
    def went_on(self) -> bool:
        """Whether steps were counted since `close`."""
        return self._left_at is not None and self.total != self._left_at

    def entries(self) -> dict[tuple[float, float], int] | None:
        """Steps by noise multiplier and sampling rate; None without a trustworthy accountant."""
        counted = self._counted()
        return None if self._accountant is None or self._broken else counted

    def _counted(self) -> dict[tuple[float, float], int]:
        counted = dict(self._closed)
        if self._start is None:
            return counted
        history = history_of(self._accountant)
        before = dict(enumerate(self._start))
        for index, (noise, rate, steps) in enumerate(history):
            old_noise, old_rate, old_steps = before.pop(index, (noise, rate, 0))
            if (old_noise, old_rate) != (noise, rate) or steps < old_steps:
                self._broken = True
            if steps > old_steps:
                key = (float(noise), float(rate))
                counted[key] = counted.get(key, 0) + int(steps - old_steps)
        self._broken = self._broken or bool(before)
        return counted

    @property
    def broken(self) -> bool:
        """Whether the history was replaced while it was being counted."""
        return self._broken

    def state(self) -> LedgerState:
        """What has been counted, to go on from."""
        entries = tuple((*key, steps) for key, steps in self._counted().items())
        return LedgerState(entries=entries, broken=self._broken, total=self.total, reads=self.reads)

    def load(self, state: LedgerState) -> None:
        """Go on from what `state` returned."""
        self._closed = {(noise, rate): steps for noise, rate, steps in state.entries}
        self._broken = state.broken
        self._start = None
        self._expected = state.total
        self._reads = list(state.reads)


def accounted_facts(
    recorded: Transcript, ledger: Ledger, *, tolerate: bool
) -> tuple[RunFacts, bool]:
    """The facts of a recorded run with what its accountant counted.

    Args:
        recorded: What was recorded.
        ledger: What was counted.
        tolerate: Whether the optimizer may use another noise multiplier than is accounted.

    Returns:
        The facts, and whether the accountant was told another noise multiplier.
    """
    entries = ledger.entries()
    rates = {rate for _, rate in entries or ()}
    used = {float(noise) for noise in np.unique(recorded.steps.noise_multiplier)}
    counted = {noise for noise, _ in entries or ()}
    # The claim is what was accounted for, even where the optimizer says otherwise.
    differs = bool(counted) and counted != used and not tolerate
    claimed = counted if differs else used
    facts = replace(
        recorded.facts,
        noise_multiplier=claimed.pop() if len(claimed) == 1 else None,
        # What was counted in all is known even where the history was replaced meanwhile.
        accounted_steps=ledger.total,
        accounted=ledger.history(),
        epsilon_reads=ledger.reads,
        accounted_sampling_rate=rates.pop() if len(rates) == 1 else None,
    )
    return facts, differs


def accounting_notes(ledger: Ledger, noise_differs: bool) -> list[str]:
    """What a reader should know about how the run was accounted for."""
    notes = []
    entries = ledger.entries()
    if noise_differs:
        notes.append("the accountant was told another noise multiplier than the optimizer.")
    if ledger.broken:
        notes.append(
            "the accountant's history was replaced during the run, as by going back to a "
            "checkpoint: what was released before that stays released."
        )
    if entries and len(entries) > 1:
        noises, rates = zip(*entries, strict=True)
        notes.append(
            f"the accountant counted {len(entries)} kinds of steps: noise multipliers "
            f"{min(noises):.6g} to {max(noises):.6g}, rates {min(rates):.6g} to {max(rates):.6g}."
        )
    return notes
