"""What an Opacus run's accountant has counted, and whether it is at the step the audit is at."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from askgauss.claims import PrivacyClaim
from askgauss.exceptions import RecordingError
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.moments import Observer, StepCount
from askgauss.integrations.opacus.opacus_versions import history_of
from askgauss.integrations.opacus.run_description import counted_steps
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Poisson

__all__ = ["Ledger", "LedgerState"]

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
        total: Steps in the whole history; None without an accountant.
        reads: Delta, epsilon and number of steps whenever epsilon was read.
    """

    entries: tuple[tuple[float, float, int], ...]
    broken: bool
    total: int | None
    reads: tuple[tuple[float, float, int], ...] = ()


class Ledger(Observer):
    """What an accountant added to its history while the audit was attached, and its whole history.

    Args:
        accountant: An Opacus accountant, or None where there is none.
        count: Steps so far.
        adaptive: Whether the optimizer adapts its clip norm, and may then use another noise
            multiplier than the accountant is told.
        other_scheme: Whether the user declared how batches are drawn. Opacus' accountants assume
            Poisson sampling.
    """

    key = "ledger"
    state_type = LedgerState

    def __init__(
        self,
        accountant: Any,
        count: StepCount | None = None,
        *,
        adaptive: bool = False,
        other_scheme: bool = False,
    ) -> None:
        self._accountant, self._count = accountant, count or StepCount()
        self._adaptive, self._other_scheme = adaptive, other_scheme
        self._start: list[tuple[float, float, int]] | None = None
        self._closed: dict[tuple[float, float], int] = {}
        self._broken = False
        # What the whole history must come to when a run that was loaded continues.
        self._expected: int | None = None
        self._reads: list[tuple[float, float, int]] = []
        self._previous: Any = None
        self._noted: Any = None

    def _history(self) -> tuple[tuple[float, float, int], ...]:
        return () if self._accountant is None else tuple(history_of(self._accountant))

    # --- moments ----------------------------------------------------------------------------------

    def attach(self, attachment: Attachment) -> None:
        """Begin to note when epsilon is read: it does not cover what is trained afterwards."""
        attachment.undo(self._close)
        attachment.undo(self._restore)
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
        total = counted_steps(self._accountant) or 0
        # One a delta and number of steps, and no more than anybody wants to read.
        self._reads = [item for item in self._reads if item[::2] != (delta, total)][-_MOST_READS:]
        self._reads.append((delta, epsilon, total))

    def _restore(self) -> None:
        accountant, noted = self._accountant, self._noted
        if noted is None or vars(accountant).get("get_epsilon") is not noted:
            return
        if self._previous is None:
            del accountant.get_epsilon
        else:
            accountant.get_epsilon = self._previous

    def _close(self) -> None:
        # At once: what is kept and still counted would be counted twice.
        self._closed, self._start = self._counted(), None

    def resuming(self, *, started: bool) -> None:
        """Refuse to continue where the accountant and the audit are not at the same step."""
        expected, total = self._expected, counted_steps(self._accountant)
        # An empty accountant may still be restored before the first step.
        if expected is None or total is None or (total == 0 and not started):
            return
        if total != expected:
            raise RecordingError(
                f"Expected an accountant with the {expected:,} steps it had when the audit's "
                f"checkpoint was written, after {self._count.recorded:,} observed ones, got one "
                f"with {total:,}. "
                "Model and audit are not of the same step: go on from a pair of checkpoints "
                "written together (put audit.state_dict() into the model's file), restore the "
                "accountant too, or start a new audit without this checkpoint."
            )

    def sum_ready(self) -> None:
        """Count from here, unless counting already."""
        # Only now, at the first step: a resumed run may restore its accountant after attaching.
        if self._start is None and self._accountant is not None:
            self._start = history_of(self._accountant)
        self._expected = None

    # --- what was counted -------------------------------------------------------------------------

    def _entries(self) -> dict[tuple[float, float], int] | None:
        """Steps by noise multiplier and sampling rate; None without a trustworthy accountant."""
        counted = self._counted()
        return None if self._accountant is None or self._broken else counted

    def _counted(self) -> dict[tuple[float, float], int]:
        counted = dict(self._closed)
        if self._start is None:
            return counted
        before = dict(enumerate(self._start))
        for index, (noise, rate, steps) in enumerate(self._history()):
            old_noise, old_rate, old_steps = before.pop(index, (noise, rate, 0))
            if (old_noise, old_rate) != (noise, rate) or steps < old_steps:
                self._broken = True
            if steps > old_steps:
                key = (float(noise), float(rate))
                counted[key] = counted.get(key, 0) + int(steps - old_steps)
        self._broken = self._broken or bool(before)
        return counted

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What the accountant counted, next to what the steps used."""
        rates = {rate for _, rate in self._entries() or ()}
        counted, used = self._noise_multipliers(recorded)
        # The claim is what was accounted for, even where the optimizer says otherwise.
        claimed = counted if self._differs(recorded) else used
        rate = rates.pop() if len(rates) == 1 else None
        return {
            "noise_multiplier": claimed.pop() if len(claimed) == 1 else None,
            # What was counted in all is known even where the history was replaced meanwhile.
            "accounted_steps": counted_steps(self._accountant),
            "accounted": self._history(),
            "epsilon_reads": tuple(self._reads),
            "accounted_sampling_rate": rate,
            "accounted_scheme": Poisson(rate=rate) if rate and self._other_scheme else None,
        }

    def _noise_multipliers(self, recorded: Transcript) -> tuple[set[float], set[float]]:
        """Those that the accountant was told, and those that the steps used."""
        used = {float(noise) for noise in np.unique(recorded.steps.noise_multiplier)}
        return {noise for noise, _ in self._entries() or ()}, used

    def _differs(self, recorded: Transcript) -> bool:
        counted, used = self._noise_multipliers(recorded)
        return bool(counted) and counted != used and not self._adaptive

    def notes(self, recorded: Transcript) -> list[str]:
        """What a reader should know about how the run was accounted for."""
        notes = []
        entries = self._entries()
        if self._differs(recorded):
            notes.append("the accountant was told another noise multiplier than the optimizer.")
        if self._broken:
            notes.append(
                "the accountant's history was replaced during the run, as by going back to a "
                "checkpoint: what was released before that stays released."
            )
        if entries and len(entries) > 1:
            noises, rates = zip(*entries, strict=True)
            notes.append(
                f"the accountant counted {len(entries)} kinds of steps: noise multipliers "
                f"{min(noises):.6g} to {max(noises):.6g}, rates {min(rates):.6g} to "
                f"{max(rates):.6g}."
            )
        return notes

    def facts_for(self, claim: PrivacyClaim) -> dict[str, Any]:
        """The epsilon that the accountant itself reports."""
        return {"accounted_epsilon": self.epsilon(float(claim.delta), float(claim.epsilon))}

    def epsilon(self, delta: float, claimed: float) -> float | None:
        """The epsilon that the accountant itself reports; None where it cannot.

        One that computes to a given error is first asked for a rough answer: far above the claim it
        is enough, and an exact one takes a minute where epsilon is in the hundreds.
        """
        history = self._history()
        if not history:
            return None
        for known, epsilon, steps in self._reads:
            if steps == counted_steps(self._accountant) and math.isclose(
                known, delta, rel_tol=1e-9
            ):
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

    def state(self) -> LedgerState:
        """What has been counted."""
        entries = tuple((*key, steps) for key, steps in self._counted().items())
        return LedgerState(
            entries=entries,
            broken=self._broken,
            total=counted_steps(self._accountant),
            reads=tuple(self._reads),
        )

    def load(self, state: LedgerState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._closed = {(noise, rate): count for noise, rate, count in state.entries}
        self._broken = state.broken
        self._start = None
        self._expected = state.total
        self._reads = list(state.reads)
