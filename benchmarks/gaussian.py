"""Inverting the divergence of Gaussian pairs: the vectorised inverse against a root search each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from askgauss.stats import gaussian

PAIRS = 100_000
NAIVE_PAIRS = 300
SINGLE_CALLS = 2_000


def rows() -> Iterator[tuple[str, str]]:
    rng = np.random.default_rng(0)
    delta = 10.0 ** rng.uniform(-12, -2, PAIRS)
    sigma = 10.0 ** rng.uniform(-2, 2, PAIRS)
    # Equal, almost equal and unequal deviations, small and large gaps.
    spread = rng.choice([0.0, 1e-9, 1e-3, 1.0], PAIRS) * rng.normal(size=PAIRS)
    pairs = (
        np.zeros(PAIRS),
        sigma,
        sigma * 10.0 ** rng.uniform(-1, 1, PAIRS),
        sigma * np.exp(spread),
    )

    few = [values[:NAIVE_PAIRS].tolist() for values in (delta, *pairs)]
    naive = _seconds(lambda: [_naive(*row) for row in zip(*few, strict=True)]) / NAIVE_PAIRS
    fast = _seconds(lambda: gaussian.epsilon(delta, *pairs)) / PAIRS
    yield f"inversions per second, {PAIRS:,} mixed pairs, one core", f"{1.0 / fast:.1e}"
    yield "the same, over a root search by brentq for each", f"{naive / fast:.0f} x"
    forward = _seconds(lambda: gaussian.log_delta(1.0, *pairs)) / PAIRS
    yield f"log_delta per second, {PAIRS:,} mixed pairs, one core", f"{1.0 / forward:.1e}"

    calls = [values[:SINGLE_CALLS].tolist() for values in (delta, *pairs)]
    single = _seconds(lambda: [gaussian.epsilon(*row) for row in zip(*calls, strict=True)])
    yield "one inversion of plain numbers", f"{1e6 * single / SINGLE_CALLS:.0f} microseconds"


def _seconds(work: Callable[[], object]) -> float:
    """Processor time of the fastest of three, which a busy machine disturbs least."""
    spent = []
    for _ in range(3):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def _naive(delta: float, mu1: float, sigma1: float, mu2: float, sigma2: float) -> float:
    """What one would write first: the closed form in a bracket that doubles until it holds."""

    def excess(epsilon: float) -> float:
        return (
            max(
                _one_direction(epsilon, mu1, sigma1, mu2, sigma2),
                _one_direction(epsilon, mu2, sigma2, mu1, sigma1),
            )
            - delta
        )

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(brentq(excess, 0.0, high, xtol=1e-12))


def _one_direction(epsilon: float, mu1: float, sigma1: float, mu2: float, sigma2: float) -> float:
    square = 0.5 * (sigma2**-2 - sigma1**-2)
    linear = mu1 / sigma1**2 - mu2 / sigma2**2
    constant = 0.5 * (mu2**2 / sigma2**2 - mu1**2 / sigma1**2) + math.log(sigma2 / sigma1) - epsilon

    def tail(x: float, sign: float) -> float:
        first = math.exp(log_ndtr(sign * (x - mu1) / sigma1))
        return first - math.exp(epsilon + log_ndtr(sign * (x - mu2) / sigma2))

    if abs(square) * sigma1**2 < 1e-8:
        return tail(-constant / linear, -math.copysign(1.0, linear))
    discriminant = linear**2 - 4.0 * square * constant
    if discriminant <= 0.0:
        return 0.0
    root = math.sqrt(discriminant)
    ends = sorted([(-linear - root) / (2.0 * square), (-linear + root) / (2.0 * square)])
    if square > 0.0:
        return tail(ends[0], 1.0) + tail(ends[1], -1.0)
    return tail(ends[1], 1.0) - tail(ends[0], 1.0)


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what}: {measured}")
