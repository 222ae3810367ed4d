"""One number per audited record, higher where the finished model makes membership more likely.

Every function returns values in the order of the audited records, for `Membership.scores`. None of
them sees the membership: a bound holds whatever the scores are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.blackbox.membership import Membership
from askgauss.exceptions import InvalidArgumentError, MissingExtraError, ScoresError
from askgauss.scores import CanaryScores

__all__ = ["calibrate", "calibrated", "lira", "logit_confidence", "losses", "rmia"]

Array = NDArray[np.float64]

# The smallest probability that is told from 0, of a model that computes in float32.
_SMALLEST = 1e-45
# With fewer reference models of a kind, LiRA pools the variances of all records.
_FEW_REFERENCES = 32


def losses(
    model: Any,
    data: Any,
    membership: Membership,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Array:
    """The negative loss of every audited record: the higher, the more likely a member.

    Args:
        model: A ``torch.nn.Module`` (Hugging Face models included), an object with
            ``predict_proba`` (scikit-learn, XGBoost), or a callable that takes a list of records
            and returns one loss per record (JAX, anything else).
        data: The whole dataset, indexed by the ids of the membership. For ``predict_proba`` a pair
            of arrays, features and labels.
        membership: The audited records.
        loss: For torch models, a function of outputs and targets that returns one loss per record;
            cross-entropy if not given, averaged over the tokens of a text.
        batch_size: Records per forward pass.
        progress: Show progress on a terminal.

    Returns:
        One value per audited record, in the order of ``membership.ids``.

    Raises:
        InvalidArgumentError: The model or the data is of no known kind.
        ScoresError: A loss is not a finite number.
    """
    _validate.count(batch_size=batch_size)
    if hasattr(model, "predict_proba"):
        return _predicted(model, data, membership)
    if _is_torch_module(model):
        from askgauss.integrations.torch_scores import record_losses

        found = record_losses(
            model, data, membership.ids, loss=loss, batch_size=batch_size, progress=progress
        )
    elif callable(model):
        found = np.concatenate(
            [
                _losses_of(model([data[index] for index in batch]), len(batch))
                for batch in _batches(membership.ids, batch_size)
            ]
        )
    else:
        raise InvalidArgumentError(
            f"Expected model to be a torch module, to have predict_proba, or to be a callable that "
            f"returns one loss per record, got {type(model).__name__}."
        )
    return -_finite("loss", found)


def logit_confidence(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """The logit of the probability of the true class, ``log(p / (1 - p))``.

    Args:
        probabilities: One row per audited record, one column per class.
        labels: The true class of each, as a column index.

    Examples:
        >>> logit_confidence([[0.25, 0.75], [0.5, 0.5]], [1, 0]).round(4).tolist()
        [1.0986, 0.0]
    """
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise InvalidArgumentError(
            f"Expected probabilities of shape (records, classes), got {rows.shape}."
        )
    truth = _labels(labels, rows)
    if not ((rows >= 0.0) & (rows <= 1.0 + 1e-6)).all():
        raise InvalidArgumentError(
            "Expected probabilities in [0, 1], got others. Apply softmax to logits first."
        )
    own = rows[np.arange(len(rows)), truth]
    others = rows.sum(axis=1) - own
    # What is left of one by subtraction is rounding once a model is certain: sum the others anew.
    certain = others < 1e-3
    if certain.any():
        masked = rows[certain].copy()
        masked[np.arange(len(masked)), truth[certain]] = 0.0
        others[certain] = masked.sum(axis=1)
    confident, rest = np.maximum(own, _SMALLEST), np.maximum(others, _SMALLEST)
    return np.asarray(np.log(confident) - np.log(rest))


def calibrated(
    target: ArrayLike, references: ArrayLike, *, inside: ArrayLike | None = None
) -> Array:
    """Scores less their mean over reference models that were not trained on the record.

    Args:
        target: The audited model's value of every record.
        references: One row of the same values per reference model.
        inside: True where a reference was trained on the record; none was, if not given.
    """
    values, rows, member = _with_references(target, references, inside)
    return values - _mean_outside(rows, member)


def lira(
    target: ArrayLike,
    references: ArrayLike,
    *,
    inside: ArrayLike | None = None,
    membership: Membership | None = None,
    pooled: bool | None = None,
) -> Array:
    """The likelihood-ratio attack (Carlini et al., arXiv 2112.03570).

    Online, where ``inside`` says which references were trained on which record: the log-likelihood
    ratio of two Gaussians, fitted to the references with the record and to those without. Offline:
    how many standard deviations the value is above that of models without the record.

    Args:
        target: The audited model's value of every record, such as `logit_confidence`.
        references: One row of the same values per reference model, at least two.
        inside: True where a reference was trained on the record; None for the offline attack.
        membership: The audited membership, to refuse references that were trained on it.
        pooled: Whether one variance serves all records; by default below 32 references of a kind.

    Raises:
        InvalidArgumentError: Shapes differ, or a record has too few references of a kind.
        ScoresError: A value is not finite, or references share the audited membership.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> lira(rng.normal(size=5), rng.normal(size=(8, 5))).shape
        (5,)
    """
    values, rows, member = _with_references(target, references, inside)
    _check_independent(inside, membership)
    outside = _moments(rows, ~member, "without the record", pooled)
    if inside is None:
        return (values - outside[0]) / outside[1]
    within = _moments(rows, member, "with the record", pooled)
    return _log_density(values, *within) - _log_density(values, *outside)


def rmia(
    target: ArrayLike,
    references: ArrayLike,
    *,
    population: tuple[ArrayLike, ArrayLike],
    inside: ArrayLike | None = None,
    membership: Membership | None = None,
    gamma: float = 1.0,
    offline_scale: float = 0.3,
) -> Array:
    """The robust membership-inference attack (Zarifzadeh et al., arXiv 2312.03262).

    A record's score is the share of population records z for which its likelihood ratio exceeds
    that of z ``gamma`` times. The ratio is the probability under the audited model over the average
    probability under reference models.

    Args:
        target: The audited model's probability of the true class of every record.
        references: One row of the same per reference model; no rows at all for an attack without
            references, which ranks the probabilities.
        population: The same two for records that no model was trained on.
        inside: True where a reference was trained on the record; None where none was. Offline, the
            average over models with the record is extrapolated by ``offline_scale``.
        membership: The audited membership, to refuse references that were trained on it.
        gamma: How many times larger the ratio must be, at least 1.
        offline_scale: The extrapolation ``a`` in ``((1 + a) p_out + (1 - a)) / 2``, in [0, 1].

    Raises:
        InvalidArgumentError: Shapes differ, or a probability is outside (0, 1].
        ScoresError: A value is not finite, or references share the audited membership.
    """
    _validate.within(1.0, math.inf, closed="left", gamma=gamma)
    _validate.within(0.0, 1.0, closed="both", offline_scale=offline_scale)
    _check_independent(inside, membership)
    ratio = _likelihood_ratio(target, references, inside, offline_scale, "target")
    others = np.sort(
        _likelihood_ratio(population[0], population[1], None, offline_scale, "population")
    )
    return np.asarray(np.searchsorted(others, ratio / gamma, side="left") / others.size)


def _likelihood_ratio(
    target: ArrayLike, references: ArrayLike, inside: ArrayLike | None, scale: float, name: str
) -> Array:
    if np.size(references) == 0:
        values = _validate.finite_vector(name, target)
        return _probabilities(name, values)
    values, rows, member = _with_references(target, references, inside)
    _probabilities(name, values)
    _probabilities(f"references of the {name}", rows)
    outside = _mean_outside(rows, member)
    if inside is not None and (member.any(axis=0)).all():
        within = np.where(member, rows, 0.0).sum(axis=0) / member.sum(axis=0)
        return np.asarray(values / (0.5 * (within + outside)))
    return np.asarray(values / (0.5 * ((1.0 + scale) * outside + (1.0 - scale))))


def _probabilities(name: str, values: Array) -> Array:
    if not ((values > 0.0) & (values <= 1.0 + 1e-6)).all():
        raise InvalidArgumentError(
            f"Expected {name} to be probabilities of the true class in (0, 1], got "
            f"{float(values.min()):g} to {float(values.max()):g}."
        )
    return values


def _mean_outside(rows: Array, member: NDArray[np.bool_]) -> Array:
    count = (~member).sum(axis=0)
    if not count.all():
        raise InvalidArgumentError(
            f"Expected a reference that was not trained on record {int(np.argmin(count))}, got "
            "none. Train more references."
        )
    return np.asarray(np.where(member, 0.0, rows).sum(axis=0) / count)


def _moments(
    rows: Array, chosen: NDArray[np.bool_], kind: str, pooled: bool | None
) -> tuple[Array, Array]:
    """Mean and standard deviation of each record's values in the chosen references."""
    count = chosen.sum(axis=0)
    if count.min() < 2:
        raise InvalidArgumentError(
            f"Expected at least 2 references {kind} for each record, got {int(count.min())} for "
            f"record {int(np.argmin(count))}. Train more references."
        )
    mean = np.where(chosen, rows, 0.0).sum(axis=0) / count
    square = (np.where(chosen, rows - mean, 0.0) ** 2).sum(axis=0)
    if pooled if pooled is not None else count.min() < _FEW_REFERENCES:
        spread = np.full(mean.shape, math.sqrt(float(square.sum()) / float((count - 1).sum())))
    else:
        spread = np.sqrt(square / (count - 1))
    if not (spread > 0.0).all():
        raise ScoresError(
            f"Expected references {kind} to differ, got the same value from each. Train them from "
            "different seeds."
        )
    return mean, spread


def _log_density(values: Array, mean: Array, spread: Array) -> Array:
    return np.asarray(-0.5 * ((values - mean) / spread) ** 2 - np.log(spread))


def _with_references(
    target: ArrayLike, references: ArrayLike, inside: ArrayLike | None
) -> tuple[Array, Array, NDArray[np.bool_]]:
    values = _validate.finite_vector("target", target)
    rows = _finite("references", np.asarray(references, dtype=np.float64))
    if rows.ndim != 2 or rows.shape[1] != values.size:
        raise InvalidArgumentError(
            f"Expected references of shape (models, {values.size}), one column per record, got "
            f"{rows.shape}."
        )
    member = np.zeros(rows.shape, dtype=np.bool_)
    if inside is not None:
        given = np.asarray(inside)
        if given.shape != rows.shape or not np.isin(given, (0, 1)).all():
            raise InvalidArgumentError(
                f"Expected inside to say of each of {rows.shape} values whether the record was "
                f"trained on, got shape {given.shape}."
            )
        member = given.astype(np.bool_)
    return values, rows, member


def _check_independent(inside: ArrayLike | None, membership: Membership | None) -> None:
    """Refuse references whose training sets follow the audited membership.

    Independent halves of m records agree in m/2 of them, give or take sqrt(m)/2; six standard
    deviations do not happen by chance.
    """
    if inside is None or membership is None:
        return
    rows = np.asarray(inside, dtype=np.bool_)
    if rows.shape[-1] != len(membership):
        raise InvalidArgumentError(
            f"Expected inside to have {len(membership):,} columns, one per audited record, got "
            f"{rows.shape[-1]:,}."
        )
    included = membership.member - membership.probability
    spread = np.sqrt((membership.probability * (1.0 - membership.probability)).sum())
    for index, row in enumerate(rows):
        away = float((row - row.mean()) @ included) / (max(float(row.std()), 1e-9) * spread)
        if abs(away) > 6.0:
            raise ScoresError(
                f"Expected references drawn without looking at the audited membership, but "
                f"reference {index} follows it. Draw their training sets independently "
                "(train_references does)."
            )


def _predicted(model: Any, data: Any, membership: Membership) -> Array:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidArgumentError(
            "Expected data to be a pair, features and labels, for a model with predict_proba."
        )
    features, labels = data
    chosen = (
        features.iloc[membership.ids] if hasattr(features, "iloc") else features[membership.ids]
    )
    rows = np.asarray(model.predict_proba(chosen), dtype=np.float64)
    classes = getattr(model, "classes_", None)
    truth = np.asarray(labels)[membership.ids]
    if classes is not None:
        known = np.isin(truth, classes)
        if not known.all():
            raise InvalidArgumentError(
                f"Expected labels that the model knows, got {truth[~known][0]!r}."
            )
        truth = np.searchsorted(classes, truth)
    own = rows[np.arange(len(rows)), _labels(truth, rows)]
    return _finite("loss", np.log(np.maximum(own, _SMALLEST)))


def _labels(labels: ArrayLike, rows: Array) -> NDArray[np.int64]:
    truth = np.asarray(labels)
    if truth.dtype.kind not in "iu" or truth.shape != (len(rows),):
        raise InvalidArgumentError(
            f"Expected one class index for each of {len(rows)} records, got dtype {truth.dtype} "
            f"and shape {truth.shape}."
        )
    if truth.size and not (truth.min() >= 0 and truth.max() < rows.shape[1]):
        raise InvalidArgumentError(
            f"Expected class indices in [0, {rows.shape[1]}), got {truth.min()} to {truth.max()}."
        )
    return truth.astype(np.int64)


def _losses_of(found: Any, count: int) -> Array:
    array = np.asarray(found, dtype=np.float64)
    if array.shape != (count,):
        raise InvalidArgumentError(
            f"Expected the callable to return one loss for each of {count} records, got shape "
            f"{array.shape}."
        )
    return array


def _finite(name: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values.ravel()))[0])
        raise ScoresError(
            f"Expected every {name} to be a finite number, got {values.ravel()[first]} (value "
            f"{first}). A record that scores nan is a failed run, not missing data."
        )
    return values


def _batches(ids: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    for start in range(0, ids.size, size):
        yield ids[start : start + size]


def _is_torch_module(model: Any) -> bool:
    return any(
        base.__module__ == "torch.nn.modules.module" and base.__name__ == "Module"
        for base in type(model).__mro__
    )


_FEWEST_HELD_OUT = 50
_CALIBRATION_FOLDS = 5
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
    if raw.size < _FEWEST_HELD_OUT:
        raise _validate.fail(
            "the number of held-out scores",
            raw.size,
            f">= {_FEWEST_HELD_OUT}",
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
    folds = KFold(_CALIBRATION_FOLDS, shuffle=True, random_state=seed)
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
