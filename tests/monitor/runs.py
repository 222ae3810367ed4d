"""Runs as a monitor sees them: the sums of a step drawn from their own laws, without the canaries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import askgauss as ag
from askgauss.monitor import Monitor, ObservedStep

NOISE = 2.576
RATE = 0.08


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a run; nothing by default.

    Attributes:
        noise: Noise in units of the claim.
        contribution: What a planted canary adds.
        rate: Sampling rate in units of the claim.
        period: Noise comes back after so many steps.
        start: The first faulty step.
    """

    noise: float = 1.0
    contribution: float = 1.0
    rate: float = 1.0
    period: int | None = None
    start: int = 1


def watched(
    generator,
    *,
    steps,
    fault=None,
    present=250,
    absent=4750,
    own_coin=False,
    error=0.001,
    planned=2500,
    schedule=None,
    monitor=None,
    stop=True,
):
    """A monitor after a run of so many steps; it stops at an alarm unless told otherwise."""
    fault = Fault() if fault is None else fault
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=0)
    claimed = NOISE if schedule is None else None
    claim = ag.PrivacyClaim(
        epsilon=8.0, delta=1e-5, noise_multiplier=claimed, sampling_rate=RATE, steps=planned
    )
    recorder = ag.Recorder(canaries)
    if monitor is None:
        monitor = Monitor(claim=claim, error=error, on_alarm=lambda alarm: None)
        monitor.attach(canaries, recorder.kept, sampling_rate=RATE)
    kept_absent = ~canaries.member[recorder.kept]
    kept = np.zeros(kept_absent.size)
    quiet = int(kept_absent.sum())
    rows = []
    for number in range(1, steps + 1):
        wrong = number >= fault.start
        declared = NOISE if schedule is None else schedule(number)
        scale = declared * (fault.noise if wrong else 1.0)
        count = generator.binomial(present, RATE * (fault.rate if wrong else 1.0))
        others = present + absent - count
        rows.append(generator.normal(size=quiet))
        if wrong and fault.period is not None and len(rows) > fault.period:
            rows[-1] = rows[-1 - fault.period]
        kept[kept_absent] = scale * rows[-1]
        planted = scale * generator.normal(size=count)
        planted += fault.contribution if wrong else 1.0
        rest = generator.chisquare(others - quiet) if others > quiet else 0.0
        step = ObservedStep(
            planted=np.array([count]),
            planted_total=np.array([planted.sum()]),
            planted_square=np.array([planted @ planted]),
            total=np.array([scale * np.sqrt(others) * generator.normal()]),
            square=np.array([kept @ kept + scale**2 * rest]),
            kept=kept.copy(),
            noise_multiplier=declared,
            known=True,
            own_coin=own_coin,
        )
        monitor.observe(step)
        if stop and monitor.alarm is not None:
            break
    return monitor
