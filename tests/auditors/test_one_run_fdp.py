from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.auditors import EpsilonDeltaFamily, GaussianFamily, SubsampledFamily
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.simulation import simulate_scores
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts

RUN = {"steps": 40, "sampling_rate": 0.3}
SCORES = simulate_scores(**RUN, noise_multiplier=1.5, present=500, absent=500, seed=0)


def audited(**options):
    return ag.audit(SCORES, delta=1e-5, auditor=ag.OneRunFDP(**options), diagnostics=False)


def test_counts_of_the_published_example():
    counts = GuessCounts(canaries=100, guesses=80, correct=70)
    assert guess_counts.gaussian_from_counts(counts, delta=1e-6, confidence=0.95) == pytest.approx(
        3.2956, abs=1e-4
    )


def test_families_by_what_they_assume():
    levels = {
        GaussianFamily(): ag.Assumption.MECHANISM_FAMILY,
        SubsampledFamily(): ag.Assumption.SAMPLED_FAMILY,
        EpsilonDeltaFamily(): ag.Assumption.DISTRIBUTION_FREE,
    }
    for family, level in levels.items():
        auditor = ag.OneRunFDP(family=family)
        assert auditor.assumption is level
        evidence = auditor.gather(SCORES, delta=1e-5, confidence=0.95)
        checks = {item.check for item in auditor.findings(evidence, delta=1e-5, confidence=0.95)}
        assert ("family" in checks) == (family != EpsilonDeltaFamily())


def test_the_family_without_assumptions_is_below_the_gaussian_one():
    free, gaussian = audited(family=EpsilonDeltaFamily()), audited()
    assert 0 < free.epsilon_lower < gaussian.epsilon_lower


class TestSubsampled:
    result = audited(family=SubsampledFamily(), selection=ag.Fixed(guesses=120))
    counts = result.evidence.trial

    def rejected(self, noise_multiplier):
        curve = accounting.dpsgd_tradeoff(noise_multiplier=noise_multiplier, **RUN)
        return guess_counts.curve_rejects(curve.inverse_blow_up, self.counts, error=0.05)

    def test_the_bound_is_the_noise_at_which_rejection_ends(self):
        """By bisection over the noise multiplier."""
        low, high = 0.5, 20.0
        assert self.rejected(high)
        assert not self.rejected(low)
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if self.rejected(middle) else (middle, high)
        expected = accounting.dpsgd_epsilon_lower(signal_to_noise=1 / high, delta=1e-5, **RUN)
        assert self.result.epsilon_lower == pytest.approx(expected, rel=3e-3)

    def test_it_is_close_to_the_gaussian_one(self):
        gaussian = audited(selection=ag.Fixed(guesses=120)).epsilon_lower
        assert self.result.epsilon_lower == pytest.approx(gaussian, rel=0.05)

    def test_p_value_and_bound_agree(self):
        bound = self.result.epsilon_lower
        assert (
            self.result.p_value(epsilon=0.99 * bound)
            < 0.05
            < self.result.p_value(epsilon=1.01 * bound)
        )

    def test_the_run_may_be_given_instead(self):
        plain = CanaryScores.from_groups(present=SCORES.present, absent=SCORES.absent)
        given = ag.OneRunFDP(family=SubsampledFamily(**RUN), selection=ag.Fixed(guesses=120))
        evidence = given.gather(plain, delta=1e-5, confidence=0.95)
        assert given.epsilon_lower(evidence, delta=1e-5, confidence=0.95) == pytest.approx(
            self.result.epsilon_lower
        )

    def test_an_unknown_run_is_refused(self):
        plain = CanaryScores.from_groups(present=SCORES.present, absent=SCORES.absent)
        with pytest.raises(UnsupportedError, match="sampling_rate and steps"):
            ag.audit(plain, delta=1e-5, auditor=ag.OneRunFDP(family=SubsampledFamily()))

    def test_nothing_to_find_is_zero(self):
        generator = np.random.default_rng(0)
        member = generator.random(200) < 0.5
        silent = CanaryScores(
            score=generator.standard_normal(200), member=member, metadata=ScoreMetadata(**RUN)
        )
        auditor = ag.OneRunFDP(family=SubsampledFamily(), selection=ag.Fixed(guesses=60))
        assert ag.audit(silent, delta=1e-5, auditor=auditor).epsilon_lower == 0.0

    def test_guesses_that_no_noise_explains_are_not_a_bound(self):
        """Half of the canaries are never sampled, so half of the guesses cannot be right."""
        generator = np.random.default_rng(0)
        member = generator.random(600) < 0.5
        score = member + 0.01 * generator.random(600)
        sure = CanaryScores(score=score, member=member, membership="randomised")
        result = ag.audit(
            sure,
            claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5),
            auditor=ag.GaussianDP(sampling_rate=0.5, steps=1, selection=ag.Fixed(threshold=0.5)),
            diagnostics=False,
        )
        assert result.epsilon_lower == result.ceiling == np.inf
        assert result.verdict is ag.Verdict.INVALID
        assert "even without noise" in result.reason


@pytest.mark.parametrize(
    "options", [{"sampling_rate": 0.0}, {"sampling_rate": 1.5}, {"steps": 0}], ids=str
)
def test_ranges(options):
    with pytest.raises(InvalidArgumentError):
        SubsampledFamily(**options)


def test_a_family_is_an_object():
    with pytest.raises(InvalidArgumentError, match="family"):
        ag.OneRunFDP(family="gaussian")
