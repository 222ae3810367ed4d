"""Checks of single rows of correlated noise: one row without noise gives a record away."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scipy.special import chdtri

from askgauss.checks.context import TOLERANCE
from askgauss.checks.findings import fact, judged, not_run
from askgauss.checks.rounding_to_error import coarse_spread
from askgauss.checks.tails import Spread, ratio_p_value
from askgauss.recording.facts import NoiseRowFacts
from askgauss.results import Consequence, Finding

__all__ = ["noise_row_checks"]

_FEWEST = 10
# About the error that is left for one check when all of them share that of the gate.
_SHARE = 5e-5


def noise_row_checks(rows: NoiseRowFacts) -> Iterator[Finding]:
    """Whether every row of the strategy has its noise."""
    yield fact(
        "rows without noise",
        rows.silent > 0,
        f"{rows.silent:,} of {rows.rows:,} rows of the strategy were released without noise, the "
        f"first of them row {rows.first_silent:,}."
        if rows.silent
        else f"all {rows.rows:,} rows of the strategy were released with noise.",
        consequence=Consequence.BREACH,
        measured=float(rows.silent),
        claimed=0.0,
        remedy="Draw noise for every row of the strategy before it is mixed into a step.",
    )
    yield _by_row(rows)


def _by_row(rows: NoiseRowFacts) -> Finding:
    name = "noise by row"
    if rows.rows < 2 or rows.absent < _FEWEST or not rows.least_square > 0.0:
        return not_run(name, f"two rows with noise, at {_FEWEST} absent canaries or more")
    found = []
    for row, square in ((rows.least, rows.least_square), (rows.most, rows.most_square)):
        others = Spread(float((rows.rows - 1) * rows.absent), max(rows.square - square, 0.0))
        one = Spread(float(rows.absent), square)
        if others.square == 0.0:
            return not_run(name, "noise in two rows")
        ratio = (one.scale / others.scale) ** 2
        found.append((ratio_p_value(ratio, one.freedom, others.freedom), row, one, others))
    p_value, row, one, others = min(found, key=lambda item: item[0])
    relative = coarse_spread(one).scale / coarse_spread(others).scale
    critical = chdtri(one.freedom, 1.0 - 0.5 * _SHARE / rows.rows)
    visible = 1.0 - math.sqrt(critical / chdtri(one.freedom, 0.2))
    return judged(
        name,
        min(1.0, rows.rows * p_value),
        f"row {row:,} of the strategy has about {relative:.3g} times the noise of the others.",
        if_fine=", as the oddest of so many may by chance.",
        consequence=Consequence.INVALIDATES if relative < 1.0 else Consequence.LOOSENS,
        measured=relative,
        claimed=1.0,
        remedy="Every row of the strategy must get noise of the same scale.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"noise {visible:.0%} below the claim in one row",
    )
