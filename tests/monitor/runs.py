"""The run that the figures of the monitor are stated for."""

from __future__ import annotations

import askgauss as ag
from askgauss.monitor.simulate_run import simulate_monitored

NOISE = 2.576
RATE = 0.08


def claimed(*, noise=NOISE, planned=2500):
    """Epsilon 8 by 2,500 steps."""
    return ag.PrivacyClaim(
        epsilon=8.0, delta=1e-5, noise_multiplier=noise, sampling_rate=RATE, steps=planned
    )


def watched(generator, *, planned=2500, schedule=None, present=250, absent=4750, **options):
    """A monitor after such a run."""
    claim = claimed(noise=NOISE if schedule is None else None, planned=planned)
    return simulate_monitored(
        generator, claim=claim, present=present, absent=absent, schedule=schedule, **options
    )
