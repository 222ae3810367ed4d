"""What all auditors that count guesses share."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily
from askgauss.auditors.auditor import shift_of_mechanism
from askgauss.auditors.guessing import fair_coins
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Status
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.selection import fingerprint
from askgauss.stats.guess_counts import GuessCounts

SELECTIONS = [
    ag.Fixed(guesses=40),
    ag.Fixed(fraction=0.25),
    ag.Split(),
    ag.Ranks(),
]
AUDITORS = [ag.OneRun, ag.OneRunFDP, ag.OrderStatistics]


def gaussian_scores(canaries, shift, seed=0, fair=True):
    generator = np.random.default_rng(seed)
    member = generator.random(canaries) < 0.5
    score = generator.standard_normal(canaries) + shift * member
    return CanaryScores(score=score, member=member, metadata=ScoreMetadata(fair_coins=fair))


def gather(auditor, scores):
    return auditor.gather(scores, delta=1e-5, confidence=0.95)


class TestCounting:
    """Against counting by hand."""

    scores = gaussian_scores(101, 1.0)

    @pytest.mark.parametrize("guesses", [1, 2, 7, 50, 101])
    @pytest.mark.parametrize("two_sided", [True, False])
    def test_fixed_guesses(self, guesses, two_sided):
        auditor = ag.OneRun(selection=ag.Fixed(guesses=guesses), two_sided=two_sided)
        ranked = sorted(zip(self.scores.score, self.scores.member, strict=True))
        low = guesses // 2 if two_sided else 0
        correct = sum(present for _, present in ranked[len(ranked) - (guesses - low) :])
        correct += sum(not present for _, present in ranked[:low])
        evidence = gather(auditor, self.scores)
        assert evidence.trial == GuessCounts(canaries=101, guesses=guesses, correct=correct)

    def test_a_threshold_guesses_present_at_or_above_it_and_nothing_else(self):
        threshold = float(np.sort(self.scores.score)[70])
        evidence = gather(ag.OneRun(selection=ag.Fixed(threshold=threshold)), self.scores)
        above = self.scores.score >= threshold
        correct = int((above & self.scores.member).sum())
        assert evidence.trial == GuessCounts(canaries=101, guesses=31, correct=correct)

    def test_canaries_that_told_their_membership_count_as_open_coins(self):
        """Delta is paid for every canary, whether it told, was guessed or neither."""
        scores = gaussian_scores(600, 1.0)
        trial = gather(ag.OneRun(), scores).trial
        told = int(np.count_nonzero(ag.Ranks.telling(600)))
        assert told == 100
        assert trial.canaries == 600
        assert 0 < trial.guesses <= 600 - told

    def test_a_fraction_is_rounded(self):
        assert gather(ag.OneRun(selection=ag.Fixed(fraction=0.25)), self.scores).trial.guesses == 25
        assert gather(ag.OneRun(selection=ag.Fixed(fraction=1e-9)), self.scores).trial.guesses == 1

    def test_a_split_tests_on_the_rest(self):
        evidence = gather(ag.OneRun(selection=ag.Split(fraction=0.3)), self.scores)
        assert evidence.trial.canaries == 71

    def test_who_was_present_in_the_tested_part_is_not_looked_at_in_choosing(self):
        """Turning their coins changes how many guesses are right, not how many are made."""
        scores, selection = gaussian_scores(300, 1.0), ag.Split()
        chosen = selection.part(300, fingerprint(scores.score))
        member = scores.member.copy()
        member[np.argsort(scores.score)[~chosen]] ^= True
        turned = CanaryScores(score=scores.score, member=member, metadata=scores.metadata)
        auditor = ag.OneRun(selection=selection)
        before, after = gather(auditor, scores).trial, gather(auditor, turned).trial
        assert before.guesses == after.guesses
        assert before.correct + after.correct == before.guesses

    def test_the_order_of_input_does_not_matter(self):
        shuffled = np.random.default_rng(3).permutation(101)
        again = CanaryScores(
            score=self.scores.score[shuffled],
            member=self.scores.member[shuffled],
            metadata=self.scores.metadata,
        )
        for selection in SELECTIONS:
            auditor = ag.OneRun(selection=selection)
            assert gather(auditor, self.scores).trial == gather(auditor, again).trial

    def test_a_monotone_change_of_scores_does_not_matter(self):
        """Where no canary is left out by chance, which the scores have a part in."""
        again = CanaryScores(
            score=np.exp(self.scores.score),
            member=self.scores.member,
            metadata=self.scores.metadata,
        )
        for selection in (ag.Fixed(guesses=40), ag.Ranks()):
            auditor = ag.OneRunFDP(selection=selection)
            assert gather(auditor, self.scores).trial == gather(auditor, again).trial


class TestQuestions:
    @pytest.mark.parametrize("kind", AUDITORS)
    @pytest.mark.parametrize("selection", SELECTIONS, ids=str)
    def test_bound_p_value_and_rejection_agree(self, kind, selection):
        auditor = kind(selection=selection)
        evidence = gather(auditor, gaussian_scores(400, 1.5))
        bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        assert bound > 0
        for factor, above in ((0.99, True), (1.01, False)):
            claim = {"epsilon": factor * bound, "delta": 1e-5}
            assert (auditor.p_value(evidence, **claim) < 0.05) == above
            assert auditor.rejects(evidence, **claim, error=0.05) == above

    @pytest.mark.parametrize("kind", AUDITORS)
    @pytest.mark.parametrize("selection", SELECTIONS, ids=str)
    def test_perfect_guesses_reach_the_ceiling_and_no_more(self, kind, selection):
        auditor = kind(selection=selection)
        scores = gaussian_scores(200, 100.0)
        evidence = gather(auditor, scores)
        bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        ceiling = auditor.ceiling(evidence, delta=1e-5, confidence=0.95)
        assert bound <= ceiling * (1 + 1e-9)
        if isinstance(selection, ag.Fixed):
            # With 40 or 50 guesses of some 200 fair coins all can be right.
            assert bound == pytest.approx(ceiling)

    def test_a_claim_above_the_ceiling_is_inconclusive_and_names_it(self):
        scores = gaussian_scores(100, 100.0)
        result = ag.audit(
            scores, claim=ag.PrivacyClaim(epsilon=12.0, delta=1e-5), auditor=ag.OneRun()
        )
        assert result.verdict is ag.Verdict.INCONCLUSIVE
        assert "never report more than" in result.reason

    @pytest.mark.parametrize("kind", AUDITORS)
    @pytest.mark.parametrize("two_sided", [True, False])
    def test_power_is_the_share_of_simulated_audits_that_reject(self, kind, two_sided):
        auditor = kind(selection=ag.Fixed(fraction=0.4), two_sided=two_sided)
        true_epsilon, error = 4.0, 0.05
        shift = ag.gaussian.gdp_mu(true_epsilon, 1e-5)
        evidences = [gather(auditor, gaussian_scores(300, shift, seed)) for seed in range(150)]
        bounds = [
            auditor.epsilon_lower(evidence, delta=1e-5, confidence=1 - error)
            for evidence in evidences[:50]
        ]
        epsilon = float(np.median(bounds))
        rejected = np.mean(
            [auditor.rejects(item, epsilon=epsilon, delta=1e-5, error=error) for item in evidences]
        )
        power = auditor.power(
            evidences[0], epsilon=epsilon, true_epsilon=true_epsilon, delta=1e-5, error=error
        )
        # Four standard errors of the simulation: a correct formula fails one seed in 15,000.
        assert power == pytest.approx(rejected, abs=4 * math.sqrt(0.25 / 150))

    def test_power_of_a_sampled_run_is_that_of_its_sum(self):
        """The sum of the steps carries less than the steps do."""
        evidence = gather(ag.OneRunFDP(), gaussian_scores(2000, 1.5))
        sampled = replace(evidence, steps=100, sampling_rate=0.01)
        plain = shift_of_mechanism(evidence, 8.0, 1e-5)
        assert shift_of_mechanism(sampled, 8.0, 1e-5) < 0.5 * plain
        always = replace(evidence, steps=100, sampling_rate=1.0)
        assert shift_of_mechanism(always, 8.0, 1e-5) == pytest.approx(plain)

    @pytest.mark.parametrize("auditor", [ag.OneRunFDP(), ag.AdaptiveOneRun(), ag.GaussianDP()])
    def test_power_is_that_of_the_share_that_scores_carry(self, auditor):
        plain = gaussian_scores(2000, 1.5)
        evidence = gather(
            auditor,
            CanaryScores(
                score=plain.score, member=plain.member, metadata=ScoreMetadata(carried_shift=0.8)
            ),
        )
        whole = shift_of_mechanism(gather(auditor, plain), 8.0, 1e-5)
        assert shift_of_mechanism(evidence, 8.0, 1e-5) == pytest.approx(0.8 * whole)
        assert shift_of_mechanism(replace(evidence, steps=9), 8.0, 1e-5) == 0.8 * whole

    @pytest.mark.parametrize("selection", [*SELECTIONS, ag.Fixed(threshold=0.3)], ids=str)
    def test_json(self, selection):
        result = ag.audit(
            gaussian_scores(200, 1.0),
            claim=ag.PrivacyClaim(epsilon=3.0, delta=1e-5),
            auditor=ag.OneRunFDP(selection=selection, family=EpsilonDeltaFamily()),
        )
        again = ag.AuditResult.from_json(result.to_json())
        assert again == result
        assert again.auditor.selection == selection
        assert again.p_value(epsilon=0.1) == result.p_value(epsilon=0.1)

    def test_other_deltas_from_the_same_counts(self):
        result = ag.audit(gaussian_scores(2000, 1.0), delta=1e-5, auditor=ag.OneRun())
        assert result.epsilon_at(delta=1e-3) < result.epsilon_lower < result.epsilon_at(delta=1e-9)

    def test_the_curve_of_a_distribution_free_bound_is_that_of_epsilon_delta(self):
        result = ag.audit(gaussian_scores(2000, 1.0), delta=1e-5, auditor=ag.OneRun())
        assert result.tradeoff().epsilon_at(1e-5) == pytest.approx(result.epsilon_lower)
        assert result.tradeoff().epsilon_at(0.0) == math.inf

    def test_the_curve_of_a_gaussian_bound_is_gaussian(self):
        result = ag.audit(gaussian_scores(2000, 1.0), delta=1e-5, auditor=ag.OneRunFDP())
        mu = ag.gaussian.gdp_mu(result.epsilon_lower, 1e-5)
        assert result.tradeoff().beta_at(0.1) == pytest.approx(
            stats.norm.cdf(stats.norm.isf(0.1) - mu)
        )
        shift = ag.audit(gaussian_scores(2000, 1.0), delta=1e-5, auditor=ag.GaussianShift())
        assert shift.tradeoff().epsilon_at(1e-5) == pytest.approx(shift.epsilon_lower)
        certain = CanaryScores.from_groups(present=[1.0] * 5, absent=[0.0] * 5, noise="gaussian")
        assert ag.audit(certain, delta=1e-5).tradeoff().advantage() == 1.0


class TestFairCoins:
    def metadata(self, fair):
        return ScoreMetadata(fair_coins=fair)

    def scores(self, present, absent, fair):
        generator = np.random.default_rng(present)
        member = np.arange(present + absent) < present
        return CanaryScores(
            score=generator.standard_normal(member.size),
            member=member,
            metadata=self.metadata(fair),
        )

    def test_recorded_coins_are_believed(self):
        *_, coins = fair_coins(self.scores(900, 100, True))
        assert (coins.origin, coins.used) == ("fair", 1000)
        assert coins.findings() == ()

    @pytest.mark.parametrize(
        ("present", "absent", "fair"), [(700, 300, None), (520, 480, None), (500, 500, False)]
    )
    def test_others_are_thinned(self, present, absent, fair):
        score, member, coins = fair_coins(self.scores(present, absent, fair))
        smaller = min(present, absent)
        assert coins.origin == "drawn"
        assert 2 * smaller - 12 * math.sqrt(smaller) < coins.used <= 2 * smaller
        assert score.size == member.size == coins.used
        assert f"{coins.used:,} of 1,000 canaries" in coins.findings()[0].summary

    @pytest.mark.parametrize("auditor", [ag.OneRun, ag.OneRunFDP, ag.OrderStatistics])
    @pytest.mark.parametrize(("present", "absent"), [(575, 425), (425, 575)])
    def test_groups_of_unequal_sizes_are_no_leak(self, auditor, present, absent):
        """Guessing the more frequent side gave a bound above 0 on noise alone in 88 of 100."""
        above = 0
        for seed in range(60):
            scores = CanaryScores(
                score=np.random.default_rng(seed).standard_normal(1000),
                member=np.arange(1000) < present,
            )
            evidence = gather(auditor(two_sided=False), scores)
            above += auditor(two_sided=False).rejects(evidence, epsilon=0.0, delta=1e-5, error=0.05)
        assert above <= stats.binom.isf(1e-5, 60, 0.05)

    def test_drawn_groups_have_binomial_sizes(self):
        """Mean and variance over many score sets; four standard errors each."""
        generator = np.random.default_rng(0)
        sizes = []
        for _ in range(800):
            scores = CanaryScores(
                score=generator.standard_normal(120),
                member=np.arange(120) < 60,
                metadata=self.metadata(False),
            )
            _, member, coins = fair_coins(scores)
            sizes.append(int(member.sum()))
        used = coins.used
        assert np.mean(sizes) == pytest.approx(used / 2, abs=4 * math.sqrt(used / 4 / 800))
        assert np.var(sizes) == pytest.approx(used / 4, rel=4 * math.sqrt(2 / 800))

    def test_few_canaries_are_thinned_to_one_group(self):
        *_, coins = fair_coins(self.scores(3, 5, False))
        assert coins.used == 3

    def test_the_result_says_how_many_were_used(self):
        result = ag.audit(self.scores(700, 300, None), delta=1e-5, auditor=ag.OneRun())
        (finding,) = [item for item in result.findings if item.check == "fair coins"]
        assert "not recorded, so" in finding.summary
        assert finding.status is Status.INFO
        assert result.present == 700


class TestArguments:
    scores = gaussian_scores(100, 1.0)

    def test_a_selection_is_an_object(self):
        with pytest.raises(InvalidArgumentError, match="selection"):
            ag.OneRun(selection="split")

    def test_no_guesses(self):
        with pytest.raises(InvalidArgumentError, match=r"threshold <= .*got 99"):
            gather(ag.OneRun(selection=ag.Fixed(threshold=99.0)), self.scores)

    def test_more_guesses_than_canaries(self):
        with pytest.raises(InvalidArgumentError, match="guesses <= 100"):
            gather(ag.OneRun(selection=ag.Fixed(guesses=101)), self.scores)

    @pytest.mark.parametrize("selection", SELECTIONS[2:], ids=str)
    def test_a_handful_of_canaries(self, selection):
        tiny = CanaryScores.from_groups(present=[1.0, 2.0], absent=[0.0, -1.0], fair_coins=True)
        result = ag.audit(tiny, delta=1e-5, auditor=ag.OneRun(selection=selection))
        assert result.epsilon_lower == 0.0

    @pytest.mark.parametrize("kind", [*AUDITORS, ag.AdaptiveOneRun])
    def test_constant_scores(self, kind):
        flat = CanaryScores.from_groups(present=[1.0] * 50, absent=[1.0] * 50)
        result = ag.audit(flat, delta=1e-5, auditor=kind())
        assert result.epsilon_lower == 0.0
