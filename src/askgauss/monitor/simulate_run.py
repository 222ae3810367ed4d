"""Simulated runs as a monitor sees them: the sums of a step drawn from their distributions.

Single canaries are drawn only where their values are kept, so that a step costs little more than
the monitor's own work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import kl_div

from askgauss import _validate
from askgauss.canaries import DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import InvalidArgumentError
from askgauss.monitor.eprocess import ObservedStep
from askgauss.monitor.feed import Alarm
from askgauss.monitor.run_monitor import Monitor
from askgauss.sampling import Poisson

__all__ = ["RunFault", "most_noticed", "runs_on_paper", "simulate_monitored", "steps_to_alarm"]

_KEPT = 256
# Faults beyond are none of a size that anybody has to simulate_monitored.
_LARGEST_FAULT = 1e6
_LONGEST_PERIOD = 10**4
# Steps on paper of one fault, some tens of seconds, and the fewest and most runs they make up.
_PAPER_STEPS = 250_000
_FEWEST_RUNS, _MOST_RUNS = 10, 100
_MOST_CANARIES = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFault:
    """What is wrong with a run; nothing by default.

    Attributes:
        noise: Noise in units of what is declared.
        contribution: What a planted canary adds, in clip norms.
        rate: Sampling rate in units of the claim.
        period: Noise comes back after so many steps.
        start: The first faulty step.
    """

    noise: float = 1.0
    contribution: float = 1.0
    rate: float = 1.0
    period: int | None = None
    start: int = 1

    def __post_init__(self) -> None:
        _validate.magnitude(
            zero=True,
            smallest=1.0 / _LARGEST_FAULT,
            largest=_LARGEST_FAULT,
            hint="",
            noise=self.noise,
            contribution=self.contribution,
            rate=self.rate,
        )
        if self.period is not None:
            _validate.count(maximum=_LONGEST_PERIOD, period=self.period)
        _validate.count(start=self.start)

    @classmethod
    def parse(cls, text: str) -> RunFault:
        """A fault from text like ``noise=0.9``.

        Raises:
            InvalidArgumentError: The text names none, or a size it cannot have.

        Examples:
            >>> RunFault.parse("contribution=1.5").contribution
            1.5
        """
        name, _, size = text.partition("=")
        try:
            value = float(size)
        except ValueError:
            value = math.nan
        names = ("noise", "contribution", "rate", "period")
        if name not in names or not 0.0 <= value < math.inf:
            raise InvalidArgumentError(
                f"Expected a fault like noise=0.9, with one of {', '.join(names)}, got {text!r}."
            )
        if name == "period":
            if not value.is_integer():
                raise _validate.fail("period", value, "to be a whole number")
            return cls(period=int(value))
        if name == "noise":
            return cls(noise=value)
        return cls(contribution=value) if name == "contribution" else cls(rate=value)


class _WithoutImplied(Monitor):
    """A monitor that does not compute the implied epsilon, which takes longer than the run."""

    def _implied(self, cause: str) -> float | None:
        return None


def simulate_monitored(
    generator: np.random.Generator,
    *,
    claim: PrivacyClaim,
    present: int,
    absent: int,
    steps: int,
    fault: RunFault | None = None,
    own_coin: bool = False,
    error: float = 0.001,
    schedule: Callable[[int], float] | None = None,
    to_the_end: bool = False,
    kind: type[Monitor] = Monitor,
) -> Monitor:
    """A monitor after a simulated run, with a known background.

    Args:
        generator: Where chance comes from.
        claim: The claim, with its noise multiplier (or a schedule) and sampling rate.
        present: Number of present canaries.
        absent: Number of absent ones.
        steps: Number of steps.
        fault: What is wrong.
        own_coin: Whether the recorder samples the canaries; then the rate is not watched.
        error: How often a correct run may alarm.
        schedule: Declared noise of each step, where the claim names none.
        to_the_end: Whether to go on after an alarm.
        kind: The kind of monitor.
    """
    wrong, right = fault or RunFault(), RunFault()
    rate = claim.sampling_rate
    if rate is None or (claim.noise_multiplier is None and schedule is None):
        raise InvalidArgumentError(
            "Expected a claim with sampling_rate and noise_multiplier to rehearse, one is missing."
        )
    canaries = DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=0)
    kept = np.arange(min(_KEPT, canaries.size))
    alarms: list[Alarm] = []
    monitor = kind(claim=claim, error=error, on_alarm=alarms.append)
    monitor.attach(canaries, kept, sampling=Poisson(rate=rate))
    quiet = np.flatnonzero(~canaries.member[kept])
    rows: list[NDArray[np.float64]] = []
    for number in range(1, steps + 1):
        now = wrong if number >= wrong.start else right
        declared = claim.noise_multiplier or 0.0 if schedule is None else schedule(number)
        scale = declared * now.noise
        count = int(generator.binomial(present, min(rate * now.rate, 1.0)))
        row = generator.normal(size=quiet.size)
        if now.period is not None and number > now.period:
            row = rows[-now.period]
        rows = [*rows[-(wrong.period or 1) :], row]
        values = np.zeros(kept.size)
        values[quiet] = scale * row
        planted = now.contribution + scale * generator.normal(size=count)
        others = canaries.size - count
        rest = generator.chisquare(others - quiet.size) if others > quiet.size else 0.0
        monitor.observe(
            ObservedStep(
                planted=np.array([count]),
                planted_total=np.array([planted.sum()]),
                planted_square=np.array([planted @ planted]),
                total=np.array([scale * math.sqrt(others) * generator.normal()]),
                square=np.array([values @ values + scale * scale * rest]),
                kept=values,
                noise_multiplier=declared,
                known=True,
                own_coin=own_coin,
            )
        )
        if alarms and not to_the_end:
            break
    return monitor


def _check_size(present: int, absent: int, steps: int) -> None:
    _validate.count(2, maximum=_MOST_CANARIES, present=present, absent=absent)
    longest = _PAPER_STEPS // _FEWEST_RUNS
    hint = f"A step on paper takes as long as one that is watched: plan the first {longest:,}."
    _validate.count(maximum=longest, hint=hint, steps=steps)


def runs_on_paper(steps: int) -> int:
    """How many runs of so many steps are rehearsed for a plan."""
    _validate.count(steps=steps)
    return min(_MOST_RUNS, max(_FEWEST_RUNS, _PAPER_STEPS // steps))


def most_noticed(
    fault: RunFault, *, claim: PrivacyClaim, present: int, absent: int, steps: int, error: float
) -> float:
    """An upper bound on the power of any monitor against a fault.

    A correct run alarms with probability ``error`` at most, a faulty one more often by no more than
    the total variation of the two distributions, which by Pinsker's inequality is at most the root
    of half their divergence. Faults too slight to be detected thus need no simulation.
    """
    _check_size(present, absent, steps)
    rate, noise = claim.sampling_rate, claim.noise_multiplier
    plain = noise == 0.0 or fault.noise < 0.5 or fault.period is not None
    if rate is None or noise is None or plain:
        return 1.0
    excess = fault.noise - 1.0
    spread = max(excess + 0.5 * excess * excess - math.log1p(excess), 0.0)
    moved = (fault.contribution - 1.0) / noise
    drawn = min(rate * fault.rate, 1.0)
    sampled = float(kl_div(drawn, rate) + kl_div(1.0 - drawn, 1.0 - rate))
    each = present * (drawn * 0.5 * moved * moved + sampled) + (present + absent) * spread
    return min(1.0, error + math.sqrt(0.5 * steps * each))


def steps_to_alarm(
    fault: RunFault,
    *,
    claim: PrivacyClaim,
    present: int,
    absent: int,
    steps: int,
    error: float = 0.001,
    runs: int = 100,
    seed: int = 0,
) -> NDArray[np.float64]:
    """The step each of so many faulty runs was stopped in, sorted; infinite where none was.

    Args:
        fault: What is wrong.
        claim: The claim, with noise multiplier and sampling rate.
        present: Number of present canaries.
        absent: Number of absent ones.
        steps: Where a run ends.
        error: How often a correct run may alarm.
        runs: Number of runs.
        seed: Root of every random choice.
    """
    _check_size(present, absent, steps)
    _validate.count(maximum=10**4, runs=runs)
    _validate.integer(0, seed=seed)
    found = []
    for generator in np.random.default_rng(seed).spawn(runs):
        monitor = simulate_monitored(
            generator,
            claim=claim,
            present=present,
            absent=absent,
            steps=steps,
            fault=fault,
            # The training's own sampler plants where a fault of it is to be seen.
            own_coin=fault.rate == 1.0,
            error=error,
            kind=_WithoutImplied,
        )
        found.append(math.inf if monitor.alarm is None else float(monitor.steps))
    return np.sort(found)
