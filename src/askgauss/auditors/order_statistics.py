"""Xiang et al. 2025: tight auditing in one run, from the most confident guesses (arXiv 2509.08704).

With every canary guessed it is the audit as bits transmission of arXiv 2501.17750.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from askgauss import _validate
from askgauss.auditors.families import (
    EpsilonDeltaFamily,
    GaussianFamily,
    check_family,
    sampling_findings,
)
from askgauss.auditors.guessing import (
    GuessEvidence,
    GuessingAuditor,
    accuracies,
    accuracy_lower,
    tried,
)
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Finding
from askgauss.selection import Fixed, Ranks, Selection, Split
from askgauss.stats import confident_mistakes, gaussian
from askgauss.stats.guess_counts import GuessCounts

__all__ = ["OrderStatistics"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# A shift at which the noise no longer matters.
_NOISELESS = 1e3
# Share of the canaries guessed in the Gaussian family: within a few percent of the best one from
# 100 canaries to millions and from epsilon 1 to 12.
_GUESSED = 0.75
# The accuracy of guesses that seem to say nothing.
_LEAST = 0.52


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatistics(GuessingAuditor):
    """The number of mistakes among the most confident guesses, against its exact law.

    Assumes:
        Each canary was made present by a fair coin of its own, and is seen through an independent
        copy of one channel of the family. The independence is essential: a mechanism of the same
        trade-off curve that couples the canaries is called a violation again and again.

    Guarantee:
        ``epsilon_lower`` exceeds the channel's epsilon in at most 1 - confidence of audits. Guesses
        that are not the most confident ones can only be worse, so the rule needs no model.

    Args:
        selection: As for `GuessingAuditor`; not by a threshold.
        two_sided: As for `GuessingAuditor`.
        family: `GaussianFamily` or `EpsilonDeltaFamily`.
        sampling_rate: Probability that a present canary is in a single-step score at all; None for
            always, and for scores summed over many steps.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 3.5 < ag.audit(scores, delta=1e-5, auditor=OrderStatistics()).epsilon_lower < 4.38
        True
    """

    family: GaussianFamily | EpsilonDeltaFamily = field(default_factory=GaussianFamily)
    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        GuessingAuditor.__post_init__(self)
        check_family(self.family)
        if not isinstance(self.family, GaussianFamily | EpsilonDeltaFamily):
            raise UnsupportedError(
                "OrderStatistics has no channel for a whole sampled run. Use GaussianFamily(), "
                "with sampling_rate= for the scores of a single step."
            )
        if self.sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
            if not isinstance(self.family, GaussianFamily):
                raise InvalidArgumentError(
                    f"Expected no sampling_rate with {self.family}, got {self.sampling_rate!r}. It "
                    "belongs to the Gaussian channel."
                )
        if self._by_threshold:
            raise UnsupportedError(
                "OrderStatistics knows the law of a fixed number of most confident guesses, not of "
                "those beyond a threshold. Use Ranks(), or Fixed(guesses=...)."
            )

    @property
    def assumption(self) -> Assumption:  # type: ignore[override]
        """Independent canaries, and what the family takes for granted."""
        if isinstance(self.family, EpsilonDeltaFamily):
            return Assumption.INDEPENDENT_CANARIES
        return Assumption.INDEPENDENT_FAMILY

    @property
    def _rule(self) -> Selection:
        if not isinstance(self.selection, Ranks):
            return self.selection
        # The distribution of the most confident guesses is that of all canaries or of a random
        # part of them, not of a part that was chosen by rank.
        whole = isinstance(self.family, GaussianFamily) and self._rate == 1.0
        return Fixed(fraction=_GUESSED) if whole else Split()

    @property
    def _rate(self) -> float:
        return 1.0 if self.sampling_rate is None else self.sampling_rate

    def _beyond_sampling(self, trial: GuessCounts, error: float) -> bool:
        """Whether guesses are better than so rarely sampled canaries allow without any noise."""
        if self._rate == 1.0:
            return False
        noiseless = confident_mistakes.Gaussian(mu=_NOISELESS, sampling_rate=self._rate)
        return confident_mistakes.p_value(noiseless, trial) < error

    def _bound(
        self, trial: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        if isinstance(self.family, GaussianFamily):
            if self._beyond_sampling(trial, error):
                return math.inf if delta < self._rate else 0.0
            return confident_mistakes.epsilon_from_counts(
                trial, delta=delta, confidence=1.0 - error, sampling_rate=self.sampling_rate
            )
        return confident_mistakes.strongest_rejected(
            lambda epsilon: confident_mistakes.EpsilonDelta(epsilon=epsilon, delta=delta),
            trial,
            confidence=1.0 - error,
        )

    def _p_value(
        self, trial: GuessCounts, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> float:
        if isinstance(self.family, EpsilonDeltaFamily):
            pair = confident_mistakes.EpsilonDelta(epsilon=epsilon, delta=delta)
            return confident_mistakes.p_value(pair, trial)
        rate = self._rate
        if delta >= rate:
            return 1.0  # no noise is too small for such a delta
        # The epsilon without sampling, log(1 + (e^epsilon - 1) / rate), without overflow.
        always = epsilon + math.log((1.0 - (1.0 - rate) * math.exp(-epsilon)) / rate)
        mu = gaussian.gdp_mu(always, delta / rate)
        channel = confident_mistakes.Gaussian(mu=mu, sampling_rate=rate)
        return confident_mistakes.p_value(channel, trial)

    def _promise(self, fraction: Array, guesses: Array, correct: Array, error: float) -> Array:
        if isinstance(self.family, EpsilonDeltaFamily):
            return GuessingAuditor._promise(self, fraction, guesses, correct, error)
        # The shift at which so confident guesses are so accurate.
        accuracy = accuracy_lower(guesses, correct, error)
        reach = fraction if self.two_sided else np.minimum(2.0 * fraction, 1.0)
        return np.asarray(ndtri(reach * accuracy) - ndtri(reach * (1.0 - accuracy)))

    def _best_share(self, correct: Integers, size: int, canaries: int, error: float) -> float:
        if isinstance(self.family, EpsilonDeltaFamily) or self._rate < 1.0:
            return GuessingAuditor._best_share(self, correct, size, canaries, error)
        # Of a Gaussian channel one shift says how accurate every share of guesses is. Taken from
        # half of the scores on either side, it depends on luck less than the shares themselves.
        counts = tried(size)
        halves = -1 if self.two_sided else int(np.argmin(np.abs(counts - 0.5 * size)))
        accuracy = min(max(correct[halves] / counts[halves], _LEAST), 1.0 - 0.5 / counts[halves])
        fraction = counts / size
        expected = accuracies(2.0 * float(ndtri(accuracy)), fraction, self.two_sided)
        guesses = fraction * canaries
        promise = self._promise(fraction, guesses, expected * guesses, error)
        return float(fraction[np.argmax(promise)])

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the counts were, and which family the bound rests on."""
        found = GuessingAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        bound = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
        found += sampling_findings(bound, self._rate)
        return found + self.family.findings()
