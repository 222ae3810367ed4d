"""How batches are drawn: one small object a scheme.

Each knows the law of what a canary shows under it (`epsilon_lower`, `signal_to_noise`), what an
accountant claims for it (`epsilon`), how to draw batches (`draw`), and how to tell from drawn
batches whether it is the scheme that was used (`test`, `SchemeSums`).

The pair of worlds is the canary's own: its gradient is left out, everything else stays (zero-out
neighbours), and its draws stay hidden.
"""

from __future__ import annotations

from askgauss.sampling.base import Scheme
from askgauss.sampling.coins import CyclicPoisson, MinSeparation, Poisson
from askgauss.sampling.comparing import Mismatch, mismatch
from askgauss.sampling.declared import scheme_of
from askgauss.sampling.drawn import DrawnBatches
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.fixed import EveryStep, FixedSize, TruncatedPoisson
from askgauss.sampling.plain import from_plain
from askgauss.sampling.replaced import ReplaceOne
from askgauss.sampling.testing import SchemeSums, SchemeTest

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
