"""The whole trade-off curve of a mechanism on one pair (Askin et al., arXiv 2502.07066)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.mechanism_audit.events import separating_score
from askgauss.mechanism_audit.outputs import Mechanism, Sampler, check_pair
from askgauss.stats.tradeoff import TradeOff

__all__ = ["MeasuredCurve", "tradeoff_curve"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredCurve:
    """Errors of telling one input of a pair from the other by one score.

    Attributes:
        score: The score, chosen on outputs of its own.
        alpha: Estimated false positive rates: neighbour taken for data.
        beta: Estimated false negative rates: data taken for neighbour.
        bound: A curve that the mechanism's lies nowhere above, with the stated confidence.
        confidence: Probability that the whole of ``bound`` holds.
        samples: Outputs of each side that were drawn in all.
    """

    score: str
    alpha: Array
    beta: Array
    bound: TradeOff
    confidence: float
    samples: int

    def contradicts(self, claimed: TradeOff) -> bool:
        """Whether the bound lies below a claimed curve somewhere, at any slope."""
        alpha, beta = self.bound.points()
        return bool(np.any(beta < claimed.beta_at(alpha)))


def tradeoff_curve(
    mechanism: Mechanism,
    data: Any,
    neighbour: Any,
    *,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> MeasuredCurve:
    """Estimate the trade-off curve of a mechanism on one pair, with a bound that holds everywhere.

    A third of the outputs fits scores, a third chooses the one that tells the sides apart best,
    and the rest measures its errors at every threshold at once (Dvoretzky-Kiefer-Wolfowitz).

    Args:
        mechanism: What is looked at.
        data: One input of it.
        neighbour: Its neighbour.
        samples: Outputs of each side.
        confidence: Probability that the whole bound holds.
        seed: Where the seeds of a mechanism that takes them come from.

    Returns:
        The estimate and the bound.
    """
    _validate.integer(90, samples=samples)
    _validate.within(0.5, 1, confidence=confidence)
    check_pair(data, neighbour)
    sampler = Sampler(mechanism, np.random.default_rng(seed))
    chosen = 2 * samples // 3
    known = [sampler.draw(item, side, chosen) for side, item in enumerate((data, neighbour))]
    name, score = separating_score(*known)
    fresh = [
        sampler.draw(item, side, samples - chosen) for side, item in enumerate((data, neighbour))
    ]
    # Only the order of scores matters, and infinite ones have a place in it.
    ours, theirs = (score(outputs) for outputs in fresh)
    _, places = np.unique(np.concatenate((ours, theirs)), return_inverse=True)
    present, absent = (part.astype(np.float64) for part in np.split(places, [ours.size]))
    cuts = np.arange(places.max() + 2)
    alpha = 1.0 - np.searchsorted(np.sort(absent), cuts) / absent.size
    beta = np.searchsorted(np.sort(present), cuts) / present.size
    return MeasuredCurve(
        score=name,
        alpha=alpha[::-1],
        beta=beta[::-1],
        bound=TradeOff.empirical(present, absent, confidence=confidence),
        confidence=confidence,
        samples=samples,
    )
