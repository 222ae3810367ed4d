"""What scores show where nobody randomised membership, and what that rests on.

Members and non-members of a dataset that was not split at random differ before any training, and a
score that tells them apart need not show a leak. With e(x), the probability that a record like x is
a member, the difference can be weighed out: records are thinned so that inclusion is even given x,
and the audit of randomised membership applies (arXiv 2605.14591 for the problem).

e(x) is estimated by a *blind* classifier, which sees features and never the audited model. Where
the true odds of membership are within a factor Gamma of the estimated ones (Rosenbaum's sensitivity
analysis), the odds of a right guess under (epsilon, delta)-DP are at most Gamma e^epsilon, and the
failure probability delta is paid once per record as before. So the bound at Gamma is the bound at
one less log Gamma. It is reported as that curve, never as a verdict of VIOLATION.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.auditors.guessing import OneRun
from askgauss.blackbox.membership import Membership
from askgauss.claims import HOW_TO_CLAIM, PrivacyClaim
from askgauss.exceptions import InvalidArgumentError, MissingExtraError
from askgauss.scores import CanaryScores
from askgauss.stats.attack_metrics import AttackMetrics, Estimate, attack_metrics
from askgauss.stats.limits import clopper_pearson_lower, clopper_pearson_upper

__all__ = ["ObservationalReport", "label_inference", "observational"]

Array = NDArray[np.float64]

_FOLDS = 5
_FEWEST = 100
# Records whose membership is nearly certain from features alone show nothing of training.
_CERTAIN = 0.02
_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationalReport:
    """What an audit without randomised membership can say.

    Attributes:
        epsilon: The lower bound on epsilon if the estimated odds of membership are exact.
        delta: The delta it is stated at.
        confidence: It is above the truth in at most 1 - confidence of audits, if they are.
        used: Records left after thinning.
        given: Records given.
        attack: Figures of the attack on all records, as given.
        weighed: Figures of the attack on the records left after thinning.
        blind: Area under the curve of the blind classifier: what features alone tell.
        gamma_rejected: The blind classifier's own calibration on held-out records rules out that
            its odds are within a smaller factor than this; 1 where it is not contradicted.
        propensities: Whether the odds were known or estimated.
        claim: The claim, if there is one.
    """

    epsilon: float
    delta: float
    confidence: float
    used: int
    given: int
    attack: AttackMetrics = field(repr=False)
    weighed: AttackMetrics = field(repr=False)
    blind: Estimate
    gamma_rejected: float
    propensities: Literal["known", "estimated"]
    claim: PrivacyClaim | None = None

    def epsilon_at(self, gamma: float) -> float:
        """The bound if the odds of membership are within a factor ``gamma`` of those used."""
        _validate.within(1.0, math.inf, closed="left", gamma=gamma)
        return max(0.0, self.epsilon - math.log(gamma))

    @property
    def gamma_to_zero(self) -> float:
        """The factor at which the bound reaches 0: a hidden difference this large explains it."""
        return math.exp(self.epsilon)

    @property
    def learnt(self) -> bool:
        """Whether the model tells more about membership than the features do."""
        return self.epsilon_at(max(1.0, self.gamma_rejected)) > 0.0

    def __str__(self) -> str:
        kind = "known" if self.propensities == "known" else "estimated by a blind classifier"
        lines = [
            f"observational audit of {self.given:,} records ({self.used:,} after thinning)",
            f"  membership    not randomised; odds of membership given features {kind}",
            f"  blind AUC     {self.blind} from features alone",
            f"  attack AUC    {self.attack.auc} as given, {self.weighed.auc} after thinning",
            f"  epsilon >=    {self.epsilon:.3g} at delta {self.delta:g}, confidence "
            f"{self.confidence:g}, if these odds are exact",
            *(
                f"  {'':<12}  {self.epsilon_at(gamma):.3g} if they are within a factor {gamma:g}"
                for gamma in (1.5, 2.0, 3.0)
            ),
            f"  explained by  odds off by a factor {self.gamma_to_zero:.3g}; calibration on "
            f"held-out records rules out less than {self.gamma_rejected:.3g}",
            f"  verdict       {self.verdict}",
        ]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """One sentence. It never says that a claim is violated: the odds were not randomised."""
        if not self.learnt:
            return (
                "nothing was learnt about the model: features alone explain the difference within "
                "what the odds are known to."
            )
        above = ""
        if self.claim is not None and self.epsilon_at(self.gamma_rejected) > self.claim.epsilon:
            above = " It exceeds the claim under that assumption: audit with randomised membership."
        return (
            "the model tells members from non-members beyond the features, unless a hidden "
            f"difference changes the odds by more than a factor {self.gamma_to_zero:.3g}.{above}"
        )


def observational(
    scores: CanaryScores,
    features: ArrayLike,
    *,
    claim: PrivacyClaim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    propensity: ArrayLike | None = None,
    seed: int | None = None,
) -> ObservationalReport:
    """Audit scores of members and non-members that nobody randomised.

    Args:
        scores: Values of members and non-members of the model under audit.
        features: One row per record of what distinguishes records without the model, such as the
            inputs, their embeddings or their dates. The model's outputs must not be among them.
        claim: What the training claims, for delta and for the report.
        delta: The delta of the bound where there is no claim.
        confidence: Confidence of the bound and of every interval.
        propensity: The probability that each record is a member, where it is known; else it is
            estimated by a cross-fitted blind classifier (needs scikit-learn).
        seed: Seed of the folds; 0 is as good as any, since nothing is hidden by it.

    Assumes:
        Pairs of record and membership are independent, and the odds of membership given the
        features are within a factor Gamma of those used. Report `epsilon_at(gamma)`.

    Raises:
        InvalidArgumentError: An argument is out of its range, or shapes do not fit.
        MissingExtraError: scikit-learn is not installed.
        ScoresError: Too few records are left after thinning.
    """
    _validate.instance(PrivacyClaim, HOW_TO_CLAIM, claim=claim)
    if (claim is None) == (delta is None):
        raise InvalidArgumentError("Expected exactly one of claim and delta.")
    level = claim.delta if claim is not None else delta
    assert level is not None
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(scores) or not np.isfinite(rows).all():
        raise InvalidArgumentError(
            f"Expected features of shape ({len(scores)}, columns) without nan, got {rows.shape}."
        )
    if len(scores) < _FEWEST:
        raise InvalidArgumentError(f"Expected at least {_FEWEST} records, got {len(scores)}.")
    if propensity is None:
        chance, kind = _blind(rows, scores.member, 0 if seed is None else int(seed)), "estimated"
    else:
        chance, kind = np.asarray(propensity, dtype=np.float64), "known"
        if chance.shape != scores.score.shape or not ((chance > 0.0) & (chance < 1.0)).all():
            raise InvalidArgumentError(
                f"Expected propensity in (0, 1) for each of {len(scores)} records."
            )
    clear = (chance > _CERTAIN) & (chance < 1.0 - _CERTAIN)
    plain = CanaryScores(
        score=scores.score[clear], member=scores.member[clear], membership="declared"
    )
    even = plain.with_fair_coins(chance[clear])
    auditor = OneRun()
    evidence = auditor.gather(even, delta=level, confidence=confidence)
    member = scores.member
    return ObservationalReport(
        epsilon=auditor.epsilon_lower(evidence, delta=level, confidence=confidence),
        delta=level,
        confidence=confidence,
        used=len(even),
        given=len(scores),
        attack=attack_metrics(scores.present, scores.absent, confidence=confidence),
        weighed=attack_metrics(even.present, even.absent, confidence=confidence),
        blind=attack_metrics(chance[member], chance[~member], confidence=confidence).auc,
        gamma_rejected=1.0 if kind == "known" else _miscalibration(chance, member, confidence),
        propensities="known" if kind == "known" else "estimated",
        claim=claim,
    )


def label_inference(
    labels: ArrayLike, proxy: ArrayLike, *, seed: int | None = None
) -> tuple[NDArray[np.int64], Membership]:
    """Shown labels, each the real one or a draw from a proxy, and which of them are real.

    For audits of label privacy without touching the training (arXiv 2511.14084): a fair draw
    decides for each record whether an attacker is shown its training label or one drawn from a
    proxy model's conditional distribution. Score the model on the *shown* labels; a model that is
    private in its labels cannot tell which are real. An error of the proxy within a factor Gamma
    costs log Gamma of the bound, as in `observational`.

    Args:
        labels: The labels that the model was trained with, as class indices.
        proxy: The proxy's probability of every class given the record, one row per record, from a
            model that was not trained on these labels.
        seed: Seed of the draws; taken from the operating system if not given.

    Returns:
        The labels to score the model with, and a membership whose members are the real ones.
    """
    rows = np.asarray(proxy, dtype=np.float64)
    truth = np.asarray(labels)
    if rows.ndim != 2 or truth.shape != (len(rows),) or truth.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"Expected one class index and one row of probabilities per record, got {truth.shape} "
            f"and {rows.shape}."
        )
    if not ((rows >= 0.0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-4)):
        raise InvalidArgumentError("Expected rows of the proxy to be probabilities that sum to 1.")
    membership = Membership.randomised(audited=np.arange(len(rows)), seed=seed)
    generator = np.random.default_rng(None if seed is None else [seed, 1])
    drawn = (generator.random((len(rows), 1)) > rows.cumsum(axis=1)).sum(axis=1)
    drawn = np.minimum(drawn, rows.shape[1] - 1)
    return np.where(membership.member, truth, drawn).astype(np.int64), membership


def _blind(features: Array, member: NDArray[np.bool_], seed: int) -> Array:
    """The probability of membership from features alone, each record by folds without it."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise MissingExtraError(
            "Blind classifiers need scikit-learn: pip install 'askgauss[sklearn]'."
        ) from error
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    kinds: tuple[Any, ...] = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        HistGradientBoostingClassifier(max_depth=3, max_iter=100, random_state=seed),
    )
    found = [
        cross_val_predict(kind, features, member, cv=folds, method="predict_proba")[:, 1]
        for kind in kinds
    ]
    surprise = [
        -np.where(member, np.log(np.maximum(chance, 1e-9)), np.log(np.maximum(1 - chance, 1e-9)))
        for chance in found
    ]
    # The classifier that predicts held-out records better; both saw neither model nor scores.
    best = int(np.argmin([item.mean() for item in surprise]))
    return np.asarray(found[best])


def _miscalibration(chance: Array, member: NDArray[np.bool_], confidence: float) -> float:
    """The smallest factor by which some odds must be off, by records the classifier did not see.

    In bins of equal size the rate of members is compared with the mean prediction, with exact
    limits that hold for all bins together.
    """
    half = 0.5 * (1.0 - confidence) / _BINS
    worst = 1.0
    for part in np.array_split(np.argsort(chance), _BINS):
        count, size = int(member[part].sum()), part.size
        stated = float(chance[part].mean())
        low = clopper_pearson_lower(count, size, half)
        high = clopper_pearson_upper(count, size, half)
        odds = stated / (1.0 - stated)
        if low < 1.0 and low / (1.0 - low) > odds:
            worst = max(worst, low / (1.0 - low) / odds)
        if high > 0.0 and high < 1.0 and high / (1.0 - high) < odds:
            worst = max(worst, odds * (1.0 - high) / high)
    return worst
