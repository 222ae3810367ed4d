"""The fit of planting within each canary, where other records are left in what is released."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from askgauss.stats.shift import SlopeTest

__all__ = ["within_canaries"]


def within_canaries(
    *,
    planted: NDArray[np.int64],
    planted_total: NDArray[np.float64],
    total: NDArray[np.float64],
    square: NDArray[np.float64],
    steps: int,
) -> SlopeTest:
    """Least squares of all observations on planting, with a level of its own for each canary.

    What the other records add may be anything, in bursts and in a few coordinates only. The coins
    that plant know nothing of it, so that given what a canary would have shown without planting,
    its planted steps are a random choice of so many: the slope is unbiased, and it varies as that
    choice has it, by each canary's own variance and not by that of all. Where bursts are rare that
    variance is met late or never, and what the canaries themselves show tells more. The larger of
    the two, relative to the pooled one, is the fit's ``inflation``; noise alone has 1.

    Args:
        planted: In how many steps each canary was planted.
        planted_total: Sum of its observations in those.
        total: Sum of all of its observations.
        square: Sum of their squares.
        steps: Number of steps.
    """
    counts = planted.astype(np.float64)
    spreads = counts * (1.0 - counts / steps)
    products = planted_total - counts * total / steps
    spread, product = float(spreads.sum()), float(products.sum())
    slope = product / spread if spread else 0.0
    squares = np.maximum(square - total**2 / steps, 0.0)
    left = np.maximum(squares - 2.0 * slope * products + slope * slope * spreads, 0.0)
    residual = max(float(squares.sum()) - slope * product, 0.0)
    # The levels cost one degree of freedom each.
    count = max(counts.size * (steps - 1) + 1, 3)
    pooled = spread * residual / (count - 2)
    chosen = float((spreads * left).sum()) / max(steps - 1, 1)
    shown = float(((products - slope * spreads) ** 2).sum())
    inflation = math.sqrt(max(chosen, shown) / pooled) if pooled > 0.0 else 1.0
    return SlopeTest(
        count=count,
        slope=slope,
        spread=spread,
        residual=residual,
        inflation=max(inflation, 1.0),
    )
