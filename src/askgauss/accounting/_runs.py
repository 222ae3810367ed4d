"""What claims and audits of DP-SGD have in common: a run's arguments, and runs without noise."""

from __future__ import annotations

import math

from askgauss import _validate

__all__ = ["check_run", "ever_sampled", "log1p", "noiseless_epsilon"]


def check_run(sampling_rate: float, steps: int) -> None:
    _validate.within(0.0, 1.0, closed="right", sampling_rate=sampling_rate)
    _validate.count(steps=steps)


def ever_sampled(sampling_rate: float, steps: int) -> float:
    return -math.expm1(steps * log1p(-sampling_rate))


def noiseless_epsilon(sampling_rate: float, steps: int, delta: float) -> float:
    """Without noise a record shows for certain once it is sampled, and not before."""
    return math.inf if delta < ever_sampled(sampling_rate, steps) else 0.0


def log1p(x: float) -> float:
    return math.log1p(x) if x > -1.0 else -math.inf
