"""How batches are drawn: one small object a scheme.

Each computes what a canary leaks under it, from below (`epsilon_lower`, `signal_to_noise`), and
what an accountant claims, from above (`epsilon`); draws batches (`draw`); and tests drawn batches
(`test`, `SchemeSums`). What other modules need to know of a scheme is a property of it, so that a
new one takes its class, an entry in `registry` and a row in the documentation.

The neighbouring datasets are the canary's: its gradient is left out, everything else stays
(zero-out neighbours), and its draws stay secret.
"""

from __future__ import annotations

from askgauss.sampling.batch_testing import DrawnBatches, SchemeSums, SchemeTest
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.independent import (
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    TruncatedPoisson,
)
from askgauss.sampling.registry import (
    Mismatch,
    assumed_poisson,
    from_plain,
    mismatch,
    scheme_of,
)
from askgauss.sampling.scheme import ReplaceOne, Scheme

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "DrawnBatches",
    "EveryStep",
    "FixedSize",
    "MinSeparation",
    "Mismatch",
    "Poisson",
    "ReplaceOne",
    "Scheme",
    "SchemeSums",
    "SchemeTest",
    "Shuffled",
    "TruncatedPoisson",
    "assumed_poisson",
    "from_plain",
    "mismatch",
    "scheme_of",
]
