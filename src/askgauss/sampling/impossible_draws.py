"""Draws of records that are each drawn by themselves: those that no scheme makes, and their odds.

The recorder's own coin draws canaries so, and by nothing but the scheme: a file whose counts cannot
come from the scheme that it states is damaged or forged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.scheme import Scheme

__all__ = ["NEVER", "broken_counts", "broken_rule"]

# What has smaller odds does not happen, in however many files.
NEVER = 1e-12


def broken_counts(
    scheme: Scheme, counts: NDArray[np.int64], steps: int, present: NDArray[np.bool_] | None = None
) -> str:
    """What is impossible in how often each record was drawn; empty if nothing is.

    Args:
        scheme: How each is drawn.
        counts: In how many of the steps each was.
        steps: Number of steps.
        present: Which of them could be drawn; the others were not. All if not given.
    """
    records = counts.size if present is None else int(np.count_nonzero(present))
    if records == 0:
        return ""
    fewest, most = scheme.draws_within(steps)
    # Ten million canaries are picked out only where it matters.
    able = counts if present is None or fewest == 0 else counts[present]
    least, largest = int(able.min()), int(able.max())
    if least < fewest or largest > most:
        odd = largest if largest > most else least
        allowed = str(most) if fewest == most else f"{fewest} to {most}"
        return f"a canary planted in {odd:,} of {steps:,} steps, where it allows {allowed}"
    drawn = int(counts.sum())
    if scheme.count_p_value(drawn, records=records, steps=steps) < NEVER:
        return f"plantings at rate {drawn / (records * steps):.3g}, of odds below {NEVER:g}"
    return ""


def broken_rule(scheme: Scheme, included: NDArray[np.bool_]) -> str:
    """What is impossible in when records were drawn, one row a step; empty if nothing is."""
    # These have no rule: any step may draw any record or leave it out.
    if included.size == 0 or scheme.draws_within(2) == (0, 2):
        return ""
    sums = SchemeSums(scheme, records=None, seen=included.shape[1])
    for step, row in enumerate(included):
        sums.add_inclusions(row)
        if sums.broken is not None:
            return f"other canaries planted in step {step + 1} than it may plant there"
    return ""
