"""The monitor of one run: it is handed every step, and alarms when the claim cannot be right."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, accounting
from askgauss.canaries import Canaries
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import AskGaussWarning, FileFormatError, PrivacyAlarm, RecordingError
from askgauss.files import codec
from askgauss.monitor.eprocess import (
    PARTS,
    EProcesses,
    EProcessState,
    ObservedStep,
    Tally,
    WatchedCanaries,
    cause_summary,
    find_onset,
    implied_epsilon,
)
from askgauss.monitor.feed import (
    EVIDENCE_SHARE,
    MOST_DECLARED,
    Alarm,
    Course,
    Feed,
    History,
    HistoryState,
    Projection,
    write_feed,
)
from askgauss.monitor.sequential import Looks, Sums
from askgauss.sampling import Poisson, Scheme, assumed_poisson
from askgauss.stats.rounding import down, is_handful

__all__ = ["Monitor", "monitor_of"]

_LOG_TEN = math.log(10.0)
# A joint e-process below this many times the money kept back has won nothing, in logarithms.
_NOTHING = math.log(2.0)
# Later steps are weighed so many at a time, but for those that are wrong at a glance: their sum of
# squares is so many deviations too small. The first ones are weighed at once.
_EAGER, _BLOCK, _GLANCE = 32, 8, 4.0
# What watching takes of a run at most, where it can wait; and the seconds that a training waits for
# a look at most.
_LOOKING = 0.01
_LONGEST_LOOK = 0.01
# What an accountant may be off the epsilon that a claim has by another.
_ROUNDING = 0.005
_NOBODY_COMPARES = {"weights": "nothing compares them with what was released"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """The plain values of a checkpoint."""

    claim: PrivacyClaim | None
    error: float
    steps: int
    begun: tuple[bool, bool, bool] | None
    bets: EProcessState | None
    tally: tuple[tuple[float, ...], ...]
    sums: tuple[float, ...]
    looks: tuple[Sums, ...]
    declared: tuple[tuple[float, int], ...]
    undeclared: int
    course: HistoryState
    alarm: Alarm | None
    public_evidence: dict[str, float] = field(default_factory=dict)
    planned: int | None = None


class Monitor:
    """Tests the steps of one run as it trains, and alarms when its claim cannot be right.

    Give it to a `Recorder`, or to an integration that has one. After every step it weighs the
    evidence that there is less noise than declared, that a record adds more than the clip norm,
    that records are sampled more often than claimed (where the training's own sampler includes the
    canaries), and that noise is reused. Each is an e-process, and so is their mean: a correct run
    alarms with probability ``error`` at most, in all its steps together.

    It also bounds epsilon from below at steps 1, 2, 4, ... and at the planned end. These bounds are
    valid together, and one above the claimed epsilon is an alarm. Of ``error``, a tenth is for
    these looks and the rest for the e-process. The bounds assume the sampling scheme that was
    declared to the recorder; outside Poisson sampling the sampling rate is not tested.

    Args:
        claim: What the run claims. ``steps`` is the planned end. Where it has no
            ``noise_multiplier``, the one declared for a step counts, which may follow a schedule,
            or else the one that the claim needs. Without a claim, steps are compared with what is
            declared for them, and nothing is projected to the end.
        error: How often a correct run may alarm.
        on_alarm: ``"raise"`` stops the run with a `PrivacyAlarm`; ``"warn"`` warns; a function is
            called with the `Alarm`. Each once: in the step that it is about or, after the first 32
            steps and with a fault that is not plain to see, up to 7 steps later.
        confidence: Confidence of the bound on epsilon, at all looks at once.
        folder: A folder to keep ``watch.json`` in, for ``askgauss watch``.
        seconds: How often to write it, and to log, at most.
        log: Called as ``log(numbers, step=step)`` with the same numbers by name, at the same times:
            ``mlflow.log_metrics`` and ``wandb.log`` fit as they are. What it raises ends the run.
        delta: Where the bound is stated, if there is no claim to say so.

    Raises:
        InvalidArgumentError: An argument is out of its range.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.0, steps=100)
        >>> canaries = ag.DiracCanaries(present=50, absent=950, dimension=2000, seed=0)
        >>> monitor = ag.Monitor(claim=claim, on_alarm=lambda alarm: None)
        >>> recorder = ag.Recorder(canaries, sampling_rate=0.1, monitor=monitor)
        >>> planted = recorder.sample()
        >>> half = np.random.default_rng(0).normal(0.0, 1.0, 1000)
        >>> half[planted] += 1.0
        >>> recorder.observe(half, background=0.0)
        >>> monitor.alarm.step, monitor.alarm.cause
        (1, 'noise')
    """

    def __init__(
        self,
        *,
        claim: PrivacyClaim | None = None,
        error: float = 0.001,
        on_alarm: Literal["raise", "warn"] | Callable[[Alarm], object] = "raise",
        confidence: float = 0.95,
        folder: str | os.PathLike[str] | None = None,
        seconds: float = 5.0,
        log: Callable[..., object] | None = None,
        delta: float = 1e-5,
    ) -> None:
        if not isinstance(claim, PrivacyClaim | None):
            raise _validate.fail(
                "claim", claim, "to be a claim", "Make it with PrivacyClaim(epsilon=, delta=)."
            )
        if not (log is None or callable(log)):
            raise _validate.fail("log", log, "to be a function", "Such as mlflow.log_metrics.")
        _validate.probability(delta=delta)
        _validate.within(0, 0.5, error=error)
        _validate.within(0.5, 1, confidence=confidence)
        _validate.positive(seconds=seconds)
        if not callable(on_alarm):
            hint = "Or give a function to be called with the alarm."
            _validate.one_of(("raise", "warn"), hint=hint, on_alarm=on_alarm)
        self._claim, self._error, self._confidence = claim, float(error), float(confidence)
        self._delta = float(delta) if claim is None else claim.delta
        self._planned = None if claim is None else claim.steps
        self._claimed_noise = None if claim is None else claim.noise_multiplier
        self._log = log
        self._on_alarm = on_alarm
        self._folder = None if folder is None else Path(folder)
        self._seconds = float(seconds)
        # A correct run alarms by its evidence, or by the bound at a look: each has its share.
        self._threshold = -math.log(EVIDENCE_SHARE * self._error)
        self._layout: WatchedCanaries | None = None
        # Background known, sampled by the recorder, noise declared: as the first step says.
        self._begun: tuple[bool, bool, bool] | None = None
        self._bets: EProcesses | None = None
        self._looks: Looks | None = None
        self._scheme: Scheme | None = None
        self._rate: float | None = None
        self._needed: float | None = None
        self._tally = Tally(1)
        self._untested: dict[str, str] = {}
        self._steps = 0
        self._alarm: Alarm | None = None
        self._declared: dict[float, int] = {}
        self._undeclared = 0
        self._course = History()
        # As it was when a point of the course ended: what those outside see of it.
        self._public_evidence: dict[str, float] = {}
        self._began = self._written = time.monotonic()
        self._began_after = 0
        self._handled = False
        self._pending: list[ObservedStep] = []
        self._compared = False
        self._passed_over = False
        # Looks whose bounds were compared with the claim, quickly and to the last digit.
        self._looked = self._judged = 0
        # Whether the look that waits was measured, and is to be composed.
        self._measured = False
        # Seconds that composing took for those outside, and that the last two looks took.
        self._looking = 0.0
        self._waited = (0.0, 0.0)

    # ------------------------------------------------------------------------- reporting

    @property
    def claim(self) -> PrivacyClaim | None:
        """What the run claims, if a claim was given."""
        return self._claim

    @property
    def planned(self) -> int | None:
        """Steps that the run is to take, where known."""
        return self._planned

    def plan(self, steps: int | None) -> None:
        """Say how many steps the run is to take, before the first; the claim comes before it."""
        if self._planned is None and self._bets is None and steps is not None:
            _validate.integer(1, steps=steps)
            self._planned = int(steps)

    @property
    def steps(self) -> int:
        """Number of steps watched."""
        return self._steps + len(self._pending)

    @property
    def alarm(self) -> Alarm | None:
        """The first alarm, if there was one."""
        self._settle()
        self._judge_looks()
        return self._alarm

    @property
    def untested(self) -> dict[str, str]:
        """Parts that are not watched, and why; known after the first step."""
        return self._untested | ({} if self._compared else _NOBODY_COMPARES)

    @property
    def evidence(self) -> dict[str, float]:
        """Decimal logarithm of each part's e-process, and under ``"all"`` of their mean."""
        self._settle()
        bets = self._bets
        return {} if bets is None or not bets.parts else self._evidence_of(bets)

    @staticmethod
    def _evidence_of(bets: EProcesses) -> dict[str, float]:
        found = {name: bets.evidence(name) / _LOG_TEN for name in bets.parts}
        return found | {"all": bets.evidence() / _LOG_TEN}

    @property
    def bound(self) -> float | None:
        """Lower bound on the epsilon of the steps so far; None where there is none.

        All values it ever takes hold together at the monitor's confidence, for independent
        subsampled Gaussian steps. It needs a known background, and changes at the looks only.
        """
        self._settle()
        best = None if self._looks is None else self._looks.best()
        return None if best is None else best[0]

    def projection(self) -> Projection | None:
        """Epsilon at the planned end if the run goes on as up to the last look.

        None where the end, or what is needed for the bound, is not known.
        """
        self._settle()
        return None if self._looks is None else self._looks.projection()

    def course(self) -> Course:
        """How the run went, thinned to a few hundred points."""
        self._settle()
        return self._course_of(composed=False)

    def _course_of(self, *, composed: bool) -> Course:
        looks = self._looks
        bounds = [] if looks is None else looks.bounds(public=True, composed=composed)
        return self._course.course(bounds, self._expected_values())

    def _expected_values(self) -> float:
        """Canaries that a step shows the noise of, on average over who is sampled."""
        layout, scheme = self._layout, self._scheme
        if layout is None:
            return 1.0
        rate = self._rate
        if rate is None:
            rate = 0.0 if scheme is None else scheme.share
        return max(layout.count - rate * layout.present, 1.0)

    def feed(self, status: Literal["running", "finished", "failed"] = "running") -> Feed:
        """All of this, as ``watch.json`` has it: aggregates only."""
        self._settle()
        if self._looks is not None:
            self._looks.compose()
        return self._feed(status)

    def _feed(self, status: Literal["running", "finished", "failed"]) -> Feed:
        """The same, with the bounds that have been composed."""
        looks = self._looks
        best = None if looks is None else looks.best(public=True, composed=True)
        ends = None if looks is None else looks.projection(public=True, composed=True)
        return Feed(
            claim=self._claim,
            error=self._error,
            confidence=self._confidence,
            steps=self._steps,
            planned=self._planned,
            status=status,
            written=time.time(),
            elapsed=time.monotonic() - self._began,
            every=self._seconds,
            begun_after=self._began_after,
            declared=() if self._undeclared else tuple(sorted(self._declared.items())),
            sampling_rate=self._rate,
            sampling=None if self._poisson else self._scheme,
            evidence={name: round(value, 2) for name, value in self._public_evidence.items()},
            untested=self.untested,
            bound=None if best is None else (down(best[0]), best[1]),
            projection=None if ends is None else ends.rounded(),
            alarm=None if self._alarm is None else self._alarm.rounded(),
            course=self._course_of(composed=True),
            delta=self._delta,
            private=self._private,
        )

    @property
    def _private(self) -> bool:
        """Whether the noise that is known is that of a handful of canaries."""
        layout = self._layout
        if layout is None or self._begun is None or not self._begun[0]:
            return False
        return is_handful(layout.present) or is_handful(layout.count - layout.present)

    def numbers(self) -> dict[str, float]:
        """What is known by now under the names that ``log=`` gets; what is not is left out."""
        return self.feed().numbers()

    def __repr__(self) -> str:
        state = "no alarm" if self.alarm is None else f"alarm at step {self.alarm.step}"
        return f"Monitor(steps={self.steps}, {state})"

    # ------------------------------------------------------------------------- observing steps

    def attach(
        self, canaries: Canaries, kept: NDArray[np.int64], *, sampling: Scheme | None
    ) -> None:
        """Attach to a recorder, which calls this.

        Args:
            canaries: The canaries of its run.
            kept: Indices of the canaries whose values are seen one by one.
            sampling: How batches are drawn; None where only the claim may say so.

        Raises:
            RecordingError: The monitor watches another run already.
        """
        if self._layout is not None and self.steps:
            raise RecordingError(
                "Expected a monitor of its own for every run, got one that watches another. Make "
                "a new Monitor."
            )
        self._layout = WatchedCanaries(canaries, kept)
        self._tally = Tally(self._layout.size.size)
        self._scheme = sampling
        if self._poisson:
            self._rate = (self._claim and self._claim.sampling_rate) or self._poisson_rate
        elif sampling is not None and sampling.every_step:
            self._rate = 1.0
        self._needed = self._needed_noise()
        self._began = self._written = time.monotonic()

    @property
    def _poisson(self) -> bool:
        """Whether batches are Poisson sampled, as far as declared."""
        return assumed_poisson(self._scheme)

    @property
    def _poisson_rate(self) -> float | None:
        return None if self._scheme is None else self._scheme.poisson_rate

    def _needed_noise(self) -> float | None:
        """The noise the claim names, or needs where it says how long and how often."""
        claim, scheme = self._claim, self._scheme
        if self._poisson:
            scheme = None if self._rate is None else Poisson(rate=self._rate)
        if claim is None or self._claimed_noise is not None:
            return self._claimed_noise
        if claim.steps is None or claim.delta == 0.0 or scheme is None:
            return None
        return 1.0 / scheme.signal_to_noise(
            epsilon=claim.epsilon, delta=claim.delta, steps=claim.steps
        )

    def _declared_noise(self, stated: float | None) -> float | None:
        """The noise multiplier a step must have at least, above 0; None where none is known."""
        claimed = self._claimed_noise
        if claimed is None:
            claimed = self._needed if stated is None else stated
        return claimed or None

    def _begin(
        self, known: bool, own_coin: bool, declared: bool
    ) -> tuple[EProcesses, Looks | None]:
        """Choose what to watch by how the run is recorded, never by what it released."""
        layout = self._layout
        if layout is None:
            raise RecordingError(
                "Expected a monitor that a recorder was given, got one on its own. Make the run's "
                "recorder with Recorder(..., monitor=...)."
            )
        reasons = layout.reasons(known=known, own_coin=own_coin, declared=declared, rate=self._rate)
        if not (self._poisson or own_coin or self._rate == 1.0):
            reasons["sampling rate"] = f"only Poisson rates are, and this is {self._scheme}"
        parts = tuple(name for name in PARTS if not reasons[name])
        looks = None
        # By another scheme than Poisson's only what the recorder itself drew is known for sure.
        if known and layout.orthogonal and layout.present and (own_coin or self._poisson):
            looks = Looks(
                planned=self._planned,
                error=1.0 - self._confidence,
                delta=self._delta,
                rate=self._poisson_rate if own_coin else None,
                present=layout.present,
                scheme=None if self._poisson else self._scheme,
            )
        self._untested = {name: reason for name, reason in reasons.items() if reason}
        return EProcesses(layout, parts, self._rate), looks

    def observe(self, step: ObservedStep) -> None:
        """Watch one step; the recorder calls this once the step is recorded.

        Raises:
            PrivacyAlarm: The alarm came, and is to be raised.
        """
        noise = self._declared_noise(step.noise_multiplier)
        if self._bets is None:
            self._begun = (step.known, step.own_coin, noise is not None)
            self._bets, self._looks = self._begin(*self._begun)
            if not self._bets.parts:
                why = "; ".join(f"{name}: {reason}" for name, reason in self._untested.items())
                self._warn(f"The monitor can watch nothing of this run ({why}).")
        if self._passed_over:
            self._passed_over = False
            self._settle()
            self._steps += 1
            self._count_declared(noise)
            return
        self._pending.append(step)
        if (
            self._steps < _EAGER
            or len(self._pending) >= _BLOCK
            or self._at_a_glance_wrong(step, noise)
        ):
            self._settle()
        self._raise_once()
        # Each of these takes milliseconds: no step waits for two of them.
        if self._look_waits():
            self._judge_quickly()
            self._raise_once()
        elif self._published and not self._advance() and self._due():
            self._write("running")

    def _due(self) -> bool:
        return time.monotonic() - self._written >= self._seconds

    def _advance(self) -> bool:
        """Compose one more bound for those outside, if that has not taken its share of the run."""
        began = time.monotonic()
        busy = self._looking > _LOOKING * (began - self._began)
        if self._looks is None or busy:
            return False
        composed = self._looks.advance()
        self._looking += time.monotonic() - began
        return composed

    def _at_a_glance_wrong(self, step: ObservedStep, noise: float | None) -> bool:
        """Whether a step should be weighed at once: far too little noise, or no numbers at all."""
        assert self._layout is not None
        square, planted = sum(step.square.tolist()), sum(step.planted_square.tolist())
        if not math.isfinite(square + planted):
            return True
        others = self._layout.count - sum(step.planted.tolist())
        least = max(others - _GLANCE * math.sqrt(2.0 * others), 0.0)
        return noise is not None and square <= least * noise * noise

    def _settle(self) -> None:
        """Weigh the steps that wait; evidence holds whenever it is looked at, so waiting is free.

        One after the other while all of this is in the processor's cache: after a training step
        none of it is, and fetching it takes longer than the work.
        """
        pending, self._pending = self._pending, []
        for step in pending:
            self._weigh(step)

    def _weigh(self, step: ObservedStep) -> None:
        bets, layout = self._bets, self._layout
        assert bets is not None
        assert layout is not None
        noise = self._declared_noise(step.noise_multiplier)
        self._steps += 1
        self._count_declared(noise)
        count, *pooled = (sum(part.tolist()) for part in step[:5])
        if not math.isfinite(pooled[1] + pooled[3]):
            self._sound(
                "finite values",
                math.inf,
                "Nan or infinite values were released: nothing can be said of such a step.",
            )
            return
        freedom, square = layout.size - step.planted, step.square
        if noise is not None:
            square = square / (noise * noise)
            self._tally.add(freedom, square, (count, pooled[0], layout.present))
        if bets.parts:
            self._judge(bets, bets.weigh(step, count, noise, freedom, square), noise, count)
        if self._looks is not None:
            others = layout.count - count
            self._looks.add(self._steps, (count, *pooled[:2], others, *pooled[2:]))

    def pass_over(self) -> None:
        """Leave out the next step: what is observed of it was selected by what it released."""
        self._passed_over = True

    def check_weights(self, difference: float, allowed: float) -> None:
        """Compare the weights with what the audited release makes of them; integrations call this.

        Args:
            difference: The largest difference found.
            allowed: What rounding explains.

        Raises:
            PrivacyAlarm: It does not explain it, and the alarm is to be raised.
        """
        self._compared = True
        if not difference <= allowed:
            self.breach(
                "weights",
                f"The weights differ by {difference:.3g} from what the audited release makes of "
                f"them, where rounding explains {allowed:.3g}: what ships is not what was audited.",
            )

    def breach(self, cause: str, summary: str) -> None:
        """Alarm at once: an exact check found that the claim is violated.

        Args:
            cause: What violates it, in a word or two.
            summary: What was found, in a sentence.

        Raises:
            PrivacyAlarm: The alarm is to be raised. Only the first one of a run is.
        """
        self._settle()
        self._sound(cause, math.inf, summary)
        self._raise_once()

    def close(self, *, failed: bool = False) -> None:
        """The run ended, or stops here: publish its last state."""
        self._settle()
        self._judge_looks()
        if self._published:
            self._write("failed" if failed else "finished")

    def _judge(self, bets: EProcesses, evidence: float, noise: float | None, count: float) -> None:
        ended = self._course.extend(
            self._steps,
            evidence,
            self._tally.noise_sums(),
            # Evidence that no planting moves tells of none.
            planted=count if "contribution" in bets.parts else math.inf,
            at_once=evidence >= self._threshold and self._alarm is None,
        )
        if ended:
            self._public_evidence = self._evidence_of(bets)
        if evidence >= self._threshold and self._alarm is None:
            cause = max(bets.parts, key=bets.evidence)
            find_onset(cause, bets, self._tally, self._rate)
            summary = cause_summary(cause, bets, self._tally, noise, self._rate)
            self._sound(cause, bets.evidence(cause), summary)
        elif evidence < _NOTHING - math.log(self._steps + 1.0):
            # The bets hold no more than was put aside: whatever is wrong begins after this.
            self._tally.forget()

    def _look_waits(self) -> bool:
        """Whether a look was not yet compared with the claim."""
        return (
            self._claim is not None
            and self._looks is not None
            and (self._looked < len(self._looks.taken))
        )

    def _judge_quickly(self) -> None:
        """Compare the oldest look that waits with the claim, by a coarse bound.

        First is measured whether it could be above the claim at all. If so, the bound is composed
        one step later, or at once where this is the planned end. Where the last two took longer
        than a training should wait, that waits for the end of the run.
        """
        looks, claim = self._looks, self._claim
        assert looks is not None
        assert claim is not None
        look, measured, self._measured = looks.taken[self._looked], self._measured, False
        beyond = self._planned is not None and look.step > self._planned
        error = (1.0 - EVIDENCE_SHARE) * self._error
        above = measured or beyond or looks.may_exceed(look, claim.epsilon, error)
        if above and not measured and look.step != self._planned:
            self._measured = True
            return
        self._looked += 1
        if above and min(self._waited) <= _LONGEST_LOOK:
            began = time.thread_time()
            self._judge_look(look, quickly=True)
            self._waited = (self._waited[1], time.thread_time() - began)

    def _judge_looks(self) -> None:
        """Compare the exact bounds of all new looks with the claim."""
        looks = self._looks
        if looks is None or self._claim is None:
            return
        for look in looks.taken[self._judged :]:
            self._judge_look(look, quickly=False)
        self._looked = self._judged = len(looks.taken)
        self._measured = False

    def _judge_look(self, look: Sums, *, quickly: bool) -> None:
        """Compare the bound of a look with the claim.

        Args:
            look: The look.
            quickly: Whether a training waits. A bound that is above the claim by little may then be
                missed: it alarms when the run ends.
        """
        looks, claim = self._looks, self._claim
        assert looks is not None
        assert claim is not None
        error = (1.0 - EVIDENCE_SHARE) * self._error
        bound = looks.above(look, claim.epsilon, error, quickly=quickly)
        if bound is not None:
            self._sound(
                "epsilon",
                -math.log(error),
                f"The first {look.step:,} steps leak at least epsilon {bound:.3g}, where "
                f"{claim.epsilon:g} is claimed.",
                epsilon=bound,
            )
        self._judge_steps(look.step, claim, quickly=quickly)

    def _judge_steps(self, steps: int, claim: PrivacyClaim, *, quickly: bool) -> None:
        """More steps than planned, which cost more than is claimed by what is declared of them."""
        rate, planned = self._rate, self._planned
        single = len(self._declared) == 1 and not self._undeclared
        if planned is None or steps <= planned or rate is None or not single or not claim.delta:
            return
        signal = 1.0 / next(iter(self._declared))
        if accounting.quick_upper(signal, rate, steps, claim.delta) <= claim.epsilon:
            return
        spent = accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal,
            sampling_rate=rate,
            steps=steps,
            delta=claim.delta,
            grid=accounting.SMALL if quickly else accounting.FINE,
        )
        if spent > (1.0 + _ROUNDING) * claim.epsilon:
            self._sound(
                "steps",
                math.inf,
                f"{steps:,} steps were taken where {planned:,} are claimed; by what is declared of "
                f"them they spend epsilon {spent:.3g}, where {claim.epsilon:g} is claimed.",
                epsilon=spent,
            )

    def _count_declared(self, noise: float | None) -> None:
        known = noise is not None and (
            noise in self._declared or len(self._declared) < MOST_DECLARED
        )
        if known and noise is not None:
            self._declared[noise] = self._declared.get(noise, 0) + 1
        else:
            self._undeclared += 1

    # ------------------------------------------------------------------------- alarms

    def _sound(
        self, cause: str, evidence: float, summary: str, *, epsilon: float | None = None
    ) -> None:
        if self._alarm is None:
            implied = self._implied(cause) if epsilon is None else epsilon
            self._alarm = Alarm(self._steps, cause, evidence / _LOG_TEN, implied, summary)

    def _raise_once(self) -> None:
        """Act on a new alarm, after everything about the step has been recorded."""
        alarm = self._alarm
        if alarm is None or self._handled:
            return
        self._handled = True
        if self._published:
            self._write("running" if self._on_alarm != "raise" else "failed")
        if self._on_alarm == "raise":
            raise PrivacyAlarm(str(alarm), alarm)
        if self._on_alarm == "warn":
            self._warn(str(alarm))
        elif callable(self._on_alarm):
            self._on_alarm(alarm)

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, AskGaussWarning, stacklevel=5)

    def _implied(self, cause: str) -> float | None:
        """Epsilon at the planned end: what was measured so far, and from here on as lately."""
        single = len(self._declared) == 1 and not self._undeclared
        return implied_epsilon(
            cause,
            bets=self._bets,
            tally=self._tally,
            declared=next(iter(self._declared)) if single else None,
            rate=self._rate,
            scheme=None if self._poisson else self._scheme,
            steps=self._steps,
            planned=self._planned,
            delta=self._delta,
        )

    # ------------------------------------------------------------------------- keeping

    @property
    def _published(self) -> bool:
        return self._folder is not None or self._log is not None

    def _write(self, status: Literal["running", "finished", "failed"]) -> None:
        """Publish: the file that others follow, and the logger."""
        self._written = time.monotonic()
        self._settle()
        # A run that trains does not wait for bounds: what has been composed is published.
        if self._looks is not None and status != "running":
            self._looks.compose()
        feed = self._feed(status)
        try:
            if self._folder is not None:
                write_feed(self._folder, feed)
        except OSError as error:
            # A full disk must not end the run.
            self._warn(f"watch.json could not be written: {error}.")
        if self._log is not None:
            self._log(feed.numbers(), step=feed.steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume after a restart, as plain values."""
        self._settle()
        looks = self._looks
        memory = _Memory(
            claim=self._claim,
            error=self._error,
            steps=self._steps,
            begun=self._begun,
            bets=None if self._bets is None else self._bets.state(),
            tally=self._tally.state(),
            sums=() if looks is None else tuple(looks.sums),
            looks=() if looks is None else tuple(looks.taken),
            declared=tuple(self._declared.items()),
            undeclared=self._undeclared,
            course=self._course.state(),
            alarm=self._alarm,
            public_evidence=self._public_evidence,
            planned=self._planned,
        )
        plain: dict[str, Any] = codec.to_plain(memory)
        return plain

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken; the evidence stays what it was.

        Raises:
            FileFormatError: The state is not one of a monitor, or of other canaries.
            RecordingError: It is of another claim or error.
        """
        memory: _Memory = codec.from_plain(_Memory, state, "monitor")
        for name, theirs, mine in (
            ("claim", memory.claim, self._claim),
            ("error", memory.error, self._error),
        ):
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this monitor, got one whose {name} is {theirs!r} "
                    f"where this one has {mine!r}: evidence against one is none against the other."
                )
        course = History.of(memory.course)
        if (memory.begun is None) != (memory.bets is None):
            raise FileFormatError("Expected the whole state of a monitor. Load another checkpoint.")
        # What was planned before the run, and not what is planned now.
        self._planned = memory.planned
        tally = Tally(1 if self._layout is None else self._layout.size.size)
        tally.load(memory.tally)
        bets, looks = None, None
        if memory.begun is not None and memory.bets is not None:
            bets, looks = self._begin(*memory.begun)
            bets.load(memory.bets)
            if looks is not None:
                looks.load(memory.sums, memory.looks)
        self._begun, self._bets, self._looks = memory.begun, bets, looks
        self._tally, self._steps = tally, memory.steps
        self._declared, self._undeclared = dict(memory.declared), memory.undeclared
        self._course, self._alarm = course, memory.alarm
        self._public_evidence = dict(memory.public_evidence)
        self._handled, self._pending = memory.alarm is not None, []
        self._looked = self._judged = 0
        self._measured = False
        self._began, self._began_after = time.monotonic(), memory.steps


def monitor_of(given: Monitor | bool | None, claim: PrivacyClaim | None = None) -> Monitor | None:
    """What an argument ``monitor=`` asks for: a monitor, True for a plain one, or none.

    Args:
        given: The argument. A plain one holds the run to what is declared of its steps, and to the
            claim where there is one, and ends it with a `PrivacyAlarm`.
        claim: What the run claims, where that is known by now.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if given is True:
        return Monitor(claim=claim)
    if given is None or given is False:
        return None
    other: object = given
    if not isinstance(other, Monitor):
        hint = "Make it with Monitor(claim=...), or say True."
        raise _validate.fail("monitor", given, "to be a monitor", hint)
    return other
