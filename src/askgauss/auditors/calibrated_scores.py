"""Liu et al. 2025: scores relative to what a non-member of the same difficulty gets (2506.15349).

Some examples score high whether they were trained on or not. A regression on held-out non-members
learns what to expect of an example from its features; what a canary scores beyond that is evidence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, MissingExtraError
from askgauss.scores import CanaryScores

__all__ = ["calibrate"]

Array = NDArray[np.float64]

_FEWEST = 50
_FOLDS = 5
# The mean of log |z| of a standard Gaussian z, so that the fitted spread is a standard deviation.
_LOG_ABSOLUTE = -0.6351814227307391


def calibrate(
    scores: CanaryScores,
    *,
    features: ArrayLike,
    holdout_features: ArrayLike,
    holdout_scores: ArrayLike,
    seed: int = 0,
) -> CanaryScores:
    """Scores in standard deviations above the non-members of the same features.

    Args:
        scores: Raw scores of the canaries; higher means more likely present.
        features: One row of features a canary, in the order of the scores.
        holdout_features: One row a held-out example.
        holdout_scores: Raw scores of the held-out examples, by the same rule.
        seed: Seed of the regression.

    Returns:
        The same canaries with calibrated scores, for any auditor of scores.

    Assumes:
        No held-out example was trained on, none is a canary, and absent canaries score like
        held-out examples of the same features: mislabelled canaries need mislabelled hold-outs.
        Where that fails the scores are worse, not the bounds: who was present is never looked at.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        InvalidArgumentError: Shapes do not fit, or there are too few held-out examples.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.model_selection import KFold, cross_val_predict
    except ImportError as error:
        raise MissingExtraError(
            "Calibrating scores needs scikit-learn: pip install 'askgauss[sklearn]'."
        ) from error

    _validate.integer(0, seed=seed)
    canaries = _matrix("features", features, len(scores), "one row a canary")
    raw = _validate.finite_vector("holdout_scores", holdout_scores)
    if raw.size < _FEWEST:
        raise _validate.fail(
            "the number of held-out scores",
            raw.size,
            f">= {_FEWEST}",
            "Hold out more examples that were not trained on.",
        )
    others = _matrix("holdout_features", holdout_features, raw.size, "one row a held-out score")
    if others.shape[1] != canaries.shape[1]:
        raise InvalidArgumentError(
            f"Expected features and holdout_features of one width, got {canaries.shape[1]} and "
            f"{others.shape[1]}. Compute them with the same function."
        )

    def regression() -> Any:
        return HistGradientBoostingRegressor(random_state=seed)

    # Residuals of examples the fit has seen are too small, so they come from folds it has not.
    folds = KFold(_FOLDS, shuffle=True, random_state=seed)
    residuals = np.abs(raw - cross_val_predict(regression(), others, raw, cv=folds))
    if not residuals.any():
        raise InvalidArgumentError(
            "Expected holdout_scores that features do not determine, got an exact fit. The score "
            "must not be one of the features."
        )
    floor = float(residuals[residuals > 0.0].min())
    expected = regression().fit(others, raw).predict(canaries)
    spread = regression().fit(others, np.log(np.maximum(residuals, floor))).predict(canaries)
    calibrated = (scores.score - expected) / np.exp(spread - _LOG_ABSOLUTE)
    # What the run's facts say about the law of a raw sum does not hold for calibrated scores.
    facts = replace(
        scores.metadata, steps=None, sampling_rate=None, clip_norm=None, noise_multiplier=None
    )
    return CanaryScores(score=calibrated, member=scores.member, ids=scores.ids, metadata=facts)


def _matrix(name: str, values: ArrayLike, rows: int, meaning: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim != 2 or array.shape[0] != rows:
        raise InvalidArgumentError(
            f"Expected {name} to be numbers of shape ({rows}, columns), {meaning}, got dtype "
            f"{array.dtype} and shape {array.shape}."
        )
    matrix = array.astype(np.float64, copy=False)
    if not np.isfinite(matrix).all():
        raise InvalidArgumentError(
            f"Expected {name} to be finite, got nan or infinity. Drop or mend those rows."
        )
    return matrix
