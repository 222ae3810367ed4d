"""Clopper-Pearson, Gaussian-DP and Bayesian: what auditors of confusion matrices share."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss import accounting
from askgauss.auditors import thresholding as bayesian
from askgauss.exceptions import (
    InvalidArgumentError,
    NotDefinedError,
    UnsupportedError,
)
from askgauss.scores import CanaryScores
from askgauss.simulation import simulate_scores
from askgauss.stats.error_rates import (
    ConfusionMatrix,
    bayesian_epsilon,
)
from askgauss.stats.tradeoff import TradeOff
from tests.auditors.matrices import clopper_pearson_epsilon, gaussian_dp_epsilon

SELECTIONS = [
    ag.Fixed(threshold=0.7),
    ag.Split(),
    ag.Ranks(),
]
CONFIDENT = [ag.ClopperPearson, ag.GaussianDP]
KINDS = [*CONFIDENT, ag.Bayesian]


def draw(present, absent, shift, seed=0):
    generator = np.random.default_rng(seed)
    return CanaryScores.from_groups(
        present=generator.normal(shift, 1, present),
        absent=generator.normal(0, 1, absent),
        membership="randomised",
    )


def gather(auditor, scores):
    return auditor.gather(scores, delta=1e-5, confidence=0.95)


def matrix_by_hand(scores, threshold):
    return ConfusionMatrix(
        true_positive=sum(value >= threshold for value in scores.present),
        true_negative=sum(value < threshold for value in scores.absent),
        false_positive=sum(value >= threshold for value in scores.absent),
        false_negative=sum(value < threshold for value in scores.present),
    )


class TestCounting:
    scores = draw(60, 45, 1.0)

    @pytest.mark.parametrize("threshold", [-9.0, -0.5, 0.0, 1.3, 9.0])
    def test_fixed(self, threshold):
        evidence = gather(ag.ClopperPearson(selection=ag.Fixed(threshold=threshold)), self.scores)
        assert evidence.trials == (matrix_by_hand(self.scores, threshold),)

    def test_a_threshold_at_a_score_includes_it(self):
        threshold = float(self.scores.present[3])
        evidence = gather(ag.ClopperPearson(selection=ag.Fixed(threshold=threshold)), self.scores)
        assert evidence.trials == (matrix_by_hand(self.scores, threshold),)

    @pytest.mark.parametrize(("present", "absent"), [(60, 45), (45, 60)])
    def test_a_threshold_at_a_rank_has_its_own_canary_on_the_right_side(self, present, absent):
        """Above the k-th highest absent score, or from the j-th lowest present one on."""
        scores = draw(present, absent, 1.0)
        trials = gather(ag.ClopperPearson(), scores).trials
        larger, smaller = ag.Ranks.thresholds(60), ag.Ranks.other_thresholds(45)
        assert len(trials) == larger.size + smaller.size
        for ranks, found in ((larger, trials[: larger.size]), (smaller, trials[larger.size :])):
            by_absent = (ranks is larger) == (absent > present)
            for rank, trial in zip(ranks, found, strict=True):
                if by_absent:
                    cut = np.nextafter(np.sort(scores.absent)[-rank], np.inf)
                else:
                    cut = np.sort(scores.present)[rank - 1]
                assert trial == matrix_by_hand(scores, cut)

    def test_the_p_value_of_thresholds_at_ranks_pays_for_all_of_them(self):
        auditor = ag.ClopperPearson()
        evidence = gather(auditor, self.scores)
        curve = TradeOff.epsilon_delta(0.1, 1e-5).beta_at
        alone = [
            float(auditor._rates((trial,)).p_values(curve)[0])
            for trial in evidence.trials
            if trial.telling
        ]
        together = auditor.p_value(evidence, epsilon=0.1, delta=1e-5)
        assert together == pytest.approx(len(evidence.trials) * min(alone), rel=1e-9)

    def test_a_split_tests_on_the_rest(self):
        (trial,) = gather(ag.ClopperPearson(selection=ag.Split(fraction=0.2)), self.scores).trials
        assert trial.present + trial.absent == 84

    def test_tied_scores_are_never_split(self):
        """Whatever threshold is chosen, equal scores fall on one side of it."""
        generator = np.random.default_rng(0)
        scores = CanaryScores.from_groups(
            present=generator.integers(0, 2, 300).astype(float),
            absent=generator.integers(0, 2, 300).astype(float),
        )
        ones = int((scores.score == 1.0).sum())
        for seed in range(10):
            auditor = ag.ClopperPearson(selection=ag.Split(seed=seed))
            (trial,) = gather(auditor, scores).trials
            read_as_present = trial.true_positive + trial.false_positive
            tested = trial.present + trial.absent
            assert read_as_present in (0, tested) or abs(read_as_present - 0.8 * ones) < 60


class TestQuestions:
    @pytest.mark.parametrize("kind", CONFIDENT)
    @pytest.mark.parametrize("selection", SELECTIONS, ids=str)
    def test_bound_p_value_and_rejection_agree(self, kind, selection):
        auditor = kind(selection=selection)
        evidence = gather(auditor, draw(400, 300, 2.0))
        bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        assert bound > 0
        for factor, above in ((0.99, True), (1.01, False)):
            claim = {"epsilon": factor * bound, "delta": 1e-5}
            assert (auditor.p_value(evidence, **claim) < 0.05) == above
            assert auditor.rejects(evidence, **claim, error=0.05) == above

    @pytest.mark.parametrize(
        ("kind", "counted"),
        [
            (ag.ClopperPearson, clopper_pearson_epsilon),
            (ag.GaussianDP, gaussian_dp_epsilon),
        ],
    )
    def test_one_threshold_is_the_function_of_its_counts(self, kind, counted):
        auditor = kind(selection=ag.Fixed(threshold=0.7))
        scores = draw(400, 300, 1.5)
        expected = counted(matrix_by_hand(scores, 0.7), delta=1e-5, confidence=0.95)
        result = ag.audit(scores, delta=1e-5, auditor=auditor)
        assert result.epsilon_lower == pytest.approx(expected, rel=1e-9)

    def test_published_counts(self):
        matrix = ConfusionMatrix(
            true_positive=900, true_negative=900, false_positive=100, false_negative=100
        )
        level = {"delta": 1e-5, "confidence": 0.95}
        assert clopper_pearson_epsilon(matrix, **level) == pytest.approx(1.9897, abs=1e-4)
        assert bayesian_epsilon(matrix, **level) == pytest.approx(2.1095, abs=1e-4)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("selection", SELECTIONS[:5], ids=str)
    def test_perfect_scores_reach_the_ceiling_and_no_more(self, kind, selection):
        auditor = kind(selection=selection)
        evidence = gather(auditor, draw(200, 150, 100.0))
        bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        ceiling = auditor.ceiling(evidence, delta=1e-5, confidence=0.95)
        # Curves at stated ranks are searched to a millionth.
        assert bound <= ceiling * (1 + (2e-6 if selection == ag.Ranks() else 1e-9))
        assert bound > 0
        result = ag.audit(
            draw(200, 150, 100.0),
            claim=ag.PrivacyClaim(epsilon=100.0, delta=1e-5),
            auditor=auditor,
            diagnostics=False,
        )
        assert result.verdict is ag.Verdict.INCONCLUSIVE
        assert "never report more than" in result.reason

    @pytest.mark.parametrize("kind", KINDS)
    def test_power_is_the_share_of_simulated_audits_that_reject(self, kind):
        auditor = kind(selection=ag.Fixed(threshold=1.0))
        true_epsilon = 6.0
        shift = ag.gaussian.gdp_mu(true_epsilon, 1e-5)
        evidences = [gather(auditor, draw(300, 300, shift, seed)) for seed in range(150)]
        epsilon = float(
            np.median(
                [
                    auditor.epsilon_lower(item, delta=1e-5, confidence=0.95)
                    for item in evidences[:40]
                ]
            )
        )
        rejected = np.mean(
            [auditor.rejects(item, epsilon=epsilon, delta=1e-5, error=0.05) for item in evidences]
        )
        # The power reads the threshold off the counts, so a typical audit is asked.
        typical = sorted(evidences, key=lambda item: item.trials[0].false_positive)[75]
        power = auditor.power(
            typical, epsilon=epsilon, true_epsilon=true_epsilon, delta=1e-5, error=0.05
        )
        # Four standard errors of both simulations.
        assert power == pytest.approx(rejected, abs=4 * math.sqrt(0.25 / 150 + 0.25 / 200))

    @pytest.mark.parametrize("selection", SELECTIONS, ids=str)
    def test_json(self, selection):
        result = ag.audit(
            draw(100, 100, 1.0),
            claim=ag.PrivacyClaim(epsilon=3.0, delta=1e-5),
            auditor=ag.GaussianDP(selection=selection),
        )
        again = ag.AuditResult.from_json(result.to_json())
        assert again == result
        assert again.auditor.selection == selection
        assert again.p_value(epsilon=0.5) == result.p_value(epsilon=0.5)

    def test_a_violation_is_found(self):
        result = ag.audit(
            draw(2500, 2500, 3.0).with_membership("randomised"),
            claim=ag.PrivacyClaim(epsilon=2.0, delta=1e-5),
            auditor=ag.ClopperPearson(),
            diagnostics=False,
        )
        assert result.verdict is ag.Verdict.VIOLATION


class TestBayesian:
    def test_no_leak_has_no_bound(self):
        """Published as it is, the posterior of epsilon has no mass at 0, and a bound above it."""
        matrix = ConfusionMatrix(
            true_positive=250, true_negative=250, false_positive=250, false_negative=250
        )
        assert bayesian_epsilon(matrix, delta=1e-5, confidence=0.95) > 0.0
        scores = draw(500, 500, 0.0)
        auditor = ag.Bayesian(selection=ag.Fixed(threshold=0.0))
        assert ag.audit(scores, delta=1e-5, auditor=auditor).epsilon_lower == 0.0

    def test_the_directed_posterior_is_a_share_of_draws(self):
        """Draws of both rates, and the epsilon each shows."""
        matrix = ConfusionMatrix(
            true_positive=60, true_negative=60, false_positive=40, false_negative=40
        )
        generator = np.random.default_rng(0)
        missed = generator.beta(40.5, 60.5, 400_000)
        false = generator.beta(40.5, 60.5, 400_000)
        for epsilon in (0.0, 0.2, 0.6):
            lowest = np.maximum(
                1 - 1e-5 - math.exp(epsilon) * missed, math.exp(-epsilon) * (1 - 1e-5 - missed)
            )
            # Five standard errors, and what the midpoint rule leaves.
            assert bayesian._credence(matrix, epsilon, 1e-5) == pytest.approx(
                np.mean(false >= lowest), abs=5 * math.sqrt(0.25 / 400_000) + 1e-4
            )

    def test_the_level_by_simulation(self):
        """The product of two uniform numbers is below it as often as the error says."""
        generator = np.random.default_rng(0)
        product = generator.random(400_000) * generator.random(400_000)
        for error in (0.05, 0.2):
            found = np.mean(product < bayesian._level(error))
            assert found == pytest.approx(error, abs=5 * math.sqrt(error / 400_000))
        assert bayesian._level(0.05) == pytest.approx(0.0087, abs=1e-4)

    @pytest.mark.parametrize(("size", "epsilon"), [(50, 2.0), (100, 3.0)])
    def test_how_often_it_is_above_the_truth(self, size, epsilon):
        """Enumerated for randomised response, where both directions have the same epsilon."""
        mistakes = np.arange(size + 1)
        chance = stats.binom.pmf(mistakes, size, 1.0 / (1.0 + math.exp(epsilon)))
        above = {0.05: 0.0, 0.01: 0.0, 0.0005: 0.0}
        likely = mistakes[chance > 1e-7]
        for false, missed in itertools.product(likely.tolist(), repeat=2):
            matrix = ConfusionMatrix(
                true_positive=size - missed,
                true_negative=size - false,
                false_positive=false,
                false_negative=missed,
            )
            credence = bayesian._credence(matrix, epsilon, 1e-5)
            for error in above:
                if credence < bayesian._level(error):
                    above[error] += chance[false] * chance[missed]
        assert all(0.7 * error < found < 1.4 * error for error, found in above.items())
        result = ag.audit(draw(100, 100, 1.0), delta=1e-5, auditor=ag.Bayesian())
        assert any(item.check == "credible bound" for item in result.findings)

    def test_one_threshold_is_the_function_of_its_counts_at_that_level(self):
        auditor = ag.Bayesian(selection=ag.Fixed(threshold=0.7))
        scores = draw(400, 300, 1.5)
        confidence = 1.0 - bayesian._level(0.05)
        expected = bayesian_epsilon(matrix_by_hand(scores, 0.7), delta=1e-5, confidence=confidence)
        result = ag.audit(scores, delta=1e-5, auditor=auditor)
        assert result.epsilon_lower == pytest.approx(expected, rel=1e-9)

    def test_the_median_is_the_estimate(self):
        auditor = ag.Bayesian(selection=ag.Fixed(threshold=0.7))
        result = ag.audit(draw(400, 300, 1.5), delta=1e-5, auditor=auditor)
        counts = result.evidence.trials[0]
        median = bayesian_epsilon(counts, delta=1e-5, confidence=0.5)
        assert result.epsilon_point == pytest.approx(median, rel=1e-6)
        assert result.epsilon_lower < result.epsilon_point

    def test_no_p_values(self):
        result = ag.audit(draw(100, 100, 1.0), delta=1e-5, auditor=ag.Bayesian())
        with pytest.raises(NotDefinedError, match="posterior"):
            result.p_value(epsilon=1.0)


class TestSubsampledCurve:
    RUN = {"steps": 40, "sampling_rate": 0.3}
    scores = simulate_scores(**RUN, noise_multiplier=1.5, present=400, absent=400, seed=0)

    @pytest.mark.parametrize("selection", [ag.Fixed(threshold=2.7), ag.Split()], ids=str)
    def test_the_bound_is_the_noise_at_which_contradiction_ends(self, selection):
        """By bisection over the noise multiplier."""
        auditor = ag.GaussianDP(selection=selection, **self.RUN)
        evidence = gather(auditor, self.scores)
        points = [evidence.trials[0].rate_limits(confidence=0.95)]

        def contradicted(noise):
            curve = accounting.dpsgd_tradeoff(noise_multiplier=noise, **self.RUN)
            return any(negative < curve.beta_at(positive) for positive, negative in points)

        low, high = 0.5, 20.0
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if contradicted(middle) else (middle, high)
        expected = accounting.dpsgd_epsilon_lower(signal_to_noise=1 / high, delta=1e-5, **self.RUN)
        bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        assert bound == pytest.approx(expected, rel=3e-3)
        assert auditor.assumption is ag.Assumption.INDEPENDENT_SAMPLED_FAMILY
        p_values = [
            auditor.p_value(evidence, epsilon=factor * bound, delta=1e-5) for factor in (0.99, 1.01)
        ]
        assert p_values[0] < 0.05 < p_values[1]

    def test_both_or_neither(self):
        with pytest.raises(InvalidArgumentError, match="sampling_rate and steps"):
            ag.GaussianDP(sampling_rate=0.1)


class TestArguments:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_count_leaves_the_threshold_to_the_scores(self, kind):
        with pytest.raises(UnsupportedError, match="threshold"):
            kind(selection=ag.Fixed(guesses=10))

    def test_a_selection_is_an_object(self):
        with pytest.raises(InvalidArgumentError, match="selection"):
            ag.ClopperPearson(selection=0.5)

    def test_few_of_a_kind_are_on_both_sides(self):
        """By chance all of them would be on one side in every other audit."""
        for seed in range(50):
            gather(ag.ClopperPearson(selection=ag.Split()), draw(2, 300, 1.0, seed))

    @pytest.mark.parametrize("kind", KINDS)
    def test_constant_scores(self, kind):
        flat = CanaryScores.from_groups(present=[1.0] * 50, absent=[1.0] * 50)
        assert ag.audit(flat, delta=1e-5, auditor=kind()).epsilon_lower == 0.0
