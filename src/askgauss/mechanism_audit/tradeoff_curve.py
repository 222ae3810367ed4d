"""The whole trade-off curve of a mechanism on one pair (Askin et al., arXiv 2502.07066)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.mechanism_audit.events import separating_score
from askgauss.mechanism_audit.outputs import Mechanism, Sampler, check_pair
from askgauss.scores import CanaryScores
from askgauss.stats.tradeoff import TradeOff

__all__ = ["MeasuredCurve", "mechanism_scores", "tradeoff_curve"]

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
    _validate.within(0.5, 1, confidence=confidence)
    name, ours, theirs = _scored(mechanism, data, neighbour, samples, seed)
    # Only the order of scores matters, and infinite ones have a place in it.
    present, absent = _ranked(ours, theirs)
    cuts = np.arange(max(present.max(), absent.max()) + 2)
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


def mechanism_scores(
    mechanism: Mechanism, data: Any, neighbour: Any, *, samples: int = 10_000, seed: int = 0
) -> CanaryScores:
    """Outputs of a mechanism as scores, so that every auditor, and `compare`, can read them.

    Outputs on ``data`` are the present ones, those on ``neighbour`` the absent ones. A third of
    them fits scores, a third chooses the one that tells the sides apart best, and the rest is
    scored by it. Infinite scores are replaced by ranks, all of them.

    Args:
        mechanism: What is looked at.
        data: One input of it.
        neighbour: Its neighbour.
        samples: Outputs of each side.
        seed: Where the seeds of a mechanism that takes them come from.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> class Laplace:
        ...     def sample(self, data, n, seed):
        ...         return data + np.random.default_rng(seed).laplace(0.0, 1.0, n)
        >>> scores = mechanism_scores(Laplace(), 0.0, 1.0, samples=3000)
        >>> table = ag.compare(scores, delta=1e-5, auditors=[ag.ClopperPearson(), ag.OneRun()])
        >>> [row.bound < 1.0 for row in table.rows]
        [True, True]
    """
    _, ours, theirs = _scored(mechanism, data, neighbour, samples, seed)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        ours, theirs = _ranked(ours, theirs)
    # Outputs of either input are drawn anew: what differs is the input.
    return CanaryScores.from_groups(present=ours, absent=theirs, membership="randomised")


def _scored(
    mechanism: Mechanism, data: Any, neighbour: Any, samples: int, seed: int
) -> tuple[str, Array, Array]:
    """The best score, chosen on two thirds of the outputs, and its values on the rest."""
    _validate.integer(90, samples=samples)
    check_pair(data, neighbour)
    sampler = Sampler(mechanism, np.random.default_rng(seed))
    chosen = 2 * samples // 3
    known = [sampler.draw(item, side, chosen) for side, item in enumerate((data, neighbour))]
    name, score = separating_score(*known)
    fresh = [
        sampler.draw(item, side, samples - chosen) for side, item in enumerate((data, neighbour))
    ]
    ours, theirs = (score(outputs) for outputs in fresh)
    return name, ours, theirs


def _ranked(ours: Array, theirs: Array) -> tuple[Array, Array]:
    _, places = np.unique(np.concatenate((ours, theirs)), return_inverse=True)
    first, second = np.split(places.astype(np.float64), [ours.size])
    return first, second
