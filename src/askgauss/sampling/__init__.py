"""How batches are drawn: one small object a scheme.

Each knows the law of what a canary shows under it (`epsilon_lower`, `signal_to_noise`), what an
accountant claims for it (`epsilon`), how to draw batches (`draw`), and how to tell from drawn
batches whether it is the scheme that was used (`test`, `SchemeSums`).

The pair of worlds is the canary's own: its gradient is left out, everything else stays (zero-out
neighbours), and its draws stay hidden.
"""

from __future__ import annotations

from askgauss.sampling.as_scheme import scheme_of
from askgauss.sampling.batch_record import DrawnBatches
from askgauss.sampling.batch_testing import SchemeSums, SchemeTest
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.fixed import EveryStep, FixedSize, TruncatedPoisson
from askgauss.sampling.independent import CyclicPoisson, MinSeparation, Poisson
from askgauss.sampling.replace_one import ReplaceOne
from askgauss.sampling.scheme import Scheme
from askgauss.sampling.scheme_codec import from_plain
from askgauss.sampling.scheme_mismatch import Mismatch, mismatch

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
    "from_plain",
    "mismatch",
    "scheme_of",
]
