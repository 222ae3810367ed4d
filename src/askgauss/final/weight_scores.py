"""Scores of planted canaries from two snapshots of the weights, and nothing in between."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.exceptions import InvalidArgumentError
from askgauss.final.filters import LinearFilter, finite_numbers
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats.sampled_sum import StepWeights

__all__ = ["every_so_often", "least_updated", "weight_scores"]

_FEWEST_STEPS = 100


def weight_scores(
    before: ArrayLike,
    after: ArrayLike,
    canaries: DiracCanaries | BlockCanaries,
    *,
    filter: LinearFilter,
    clip_norm: float,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    background: ArrayLike | None = None,
) -> CanaryScores:
    """One score a canary from the weights before and after: its own sum of the released steps.

    Scaled such that the noise has its deviation in one step, ``clip_norm * noise_multiplier``, as
    in the scores of a transcript. They keep the weight of every step, so that bound and power are
    those of what the snapshots show, which is less than the steps themselves.

    Args:
        before: The first snapshot, flat.
        after: The last snapshot, flat.
        canaries: Who was planted where.
        filter: How the last snapshot follows from the first and the releases.
        clip_norm: Norm of a planted canary.
        sampling_rate: Probability that a present canary was planted in a step, by coins of its
            own; None where it was planted in steps that were fixed beforehand.
        noise_multiplier: The claimed noise multiplier, for the findings.
        background: What the other records' sums add up to along each canary, passed through the
            filter; None where it is unknown, as it is to whoever has only the weights.

    Raises:
        InvalidArgumentError: A snapshot has another size than the canaries' vector or is not
            finite, or an argument is outside its range.
    """
    _validate.magnitude(clip_norm=clip_norm)
    if sampling_rate is not None:
        _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    if noise_multiplier is not None:
        _validate.magnitude(noise_multiplier=noise_multiplier)
    first, last = (
        np.asarray(canaries.project(finite_numbers(name, given)), dtype=np.float64)
        for name, given in (("before", before), ("after", after))
    )
    moved = filter.kept * first - last
    if background is not None:
        clean = finite_numbers("background", background)
        if clean.shape != moved.shape:
            raise InvalidArgumentError(
                f"Expected background to hold {moved.size} numbers, one a canary, got "
                f"{clean.size}. Project the sums with canaries.project."
            )
        moved = moved - clean
    sign = 1.0 if filter.weights.sum() >= 0.0 else -1.0
    weights = sign * filter.weights
    even = bool((weights == weights[0]).all())
    sampled = sampling_rate is not None and sampling_rate < 1.0
    equal_steps = weights.size if even else math.floor(filter.effective_steps)
    # Few equal steps are no good stand-in for uneven ones; checks of the scores use no other law.
    counted = sampled and (even or equal_steps >= _FEWEST_STEPS)
    weighted = None
    if sampled and not even:
        assert sampling_rate is not None
        weighted = StepWeights.of(weights, sampling_rate)
    return CanaryScores(
        score=sign * moved / filter.length,
        member=canaries.member,
        metadata=ScoreMetadata(
            steps=equal_steps if counted else None,
            sampling_rate=sampling_rate if counted else None,
            clip_norm=clip_norm if counted else None,
            noise_multiplier=noise_multiplier,
            weighted=weighted,
            background="unknown" if background is None else "known",
            fair_coins=canaries.fair_coins,
            noise="gaussian",
        ),
    )


def every_so_often(steps: int, *, every: int = 1) -> NDArray[np.int64]:
    """Numbers of the steps, from 0, in which a canary of the hidden state is planted.

    The last step is one of them: noise that comes after a canary only hides it.

    Args:
        steps: Number of steps of the run.
        every: Plant in one of so many.

    Examples:
        >>> every_so_often(10, every=4)
        array([1, 5, 9])
    """
    _validate.integer(1, steps=steps)
    _validate.integer(1, every=every)
    return np.arange((steps - 1) % every, steps, every, dtype=np.int64)


def least_updated(before: ArrayLike, after: ArrayLike, count: int) -> NDArray[np.int64]:
    """Coordinates that a rehearsal without noise moved least: there the background is smallest.

    Choose canaries among them: ``DiracCanaries(present=, absent=, dimension=count)`` on the vector
    ``weights[least_updated(...)]``. The rehearsal must not be the run that is audited.

    Args:
        before: Weights before the rehearsal, flat.
        after: Weights after it.
        count: How many coordinates.

    Returns:
        Their numbers, in order.
    """
    first = finite_numbers("before", before)
    last = finite_numbers("after", after)
    if first.shape != last.shape:
        raise InvalidArgumentError(
            f"Expected before and after of one length, got {first.size} and {last.size}."
        )
    _validate.integer(1, count=count)
    _validate.within(0, first.size, closed="right", count=count)
    moved = np.abs(last - first)
    return np.sort(np.argpartition(moved, count - 1)[:count]).astype(np.int64)
