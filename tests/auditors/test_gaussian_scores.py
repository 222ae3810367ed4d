from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss import GaussianShift, accounting
from askgauss.auditors.gaussian_scores import PairEvidence
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Consequence, Status
from askgauss.scores import GroupMoments, ScoreMetadata
from askgauss.simulation import simulate_scores
from askgauss.stats import gaussian
from askgauss.stats.shift import SampledShiftTest, ShiftTest, sampling_variance

PAPER = {"steps": 2500, "sampling_rate": 4096 / 50000}
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
REGIONS = [
    ag.GaussianRectangle(),
    ag.GaussianRectangle(pooled=True),
    ag.GaussianEllipsoid(resamples=400),
    ag.GaussianEllipsoid(resamples=400, pooled=True),
]


def scores(noise_multiplier=2.576, seed=0, present=2500, absent=2500, **sampling):
    return simulate_scores(
        **{**PAPER, **sampling},
        noise_multiplier=noise_multiplier,
        present=present,
        absent=absent,
        seed=seed,
    )


def test_shift_beats_the_ellipsoid_and_the_ellipsoid_the_rectangle():
    """The order of the means over a dozen runs; single runs may differ."""
    means = {
        auditor: np.mean(
            [ag.audit(scores(seed=s), delta=1e-5, auditor=auditor).epsilon_lower for s in range(12)]
        )
        for auditor in (ag.GaussianShift(), *REGIONS)
    }
    shift, rectangle, rectangle_pooled, ellipsoid, ellipsoid_pooled = means.values()
    assert 8 > shift > ellipsoid_pooled > rectangle_pooled > 6
    assert shift > ellipsoid > rectangle > 6


@pytest.mark.parametrize("auditor", REGIONS, ids=lambda a: f"{a.name} pooled={a.pooled}")
class TestRegions:
    def test_bound_grows_as_confidence_falls(self, auditor):
        run = scores()
        bounds = [
            ag.audit(run, delta=1e-5, auditor=auditor, confidence=c).epsilon_lower
            for c in (0.51, 0.95, 0.999)
        ]
        assert bounds == sorted(bounds, reverse=True)

    def test_p_value_and_bound_agree(self, auditor):
        result = ag.audit(scores(), delta=1e-5, auditor=auditor)
        lower = result.epsilon_lower
        assert result.p_value(epsilon=lower * 0.999) < 0.05 < result.p_value(epsilon=lower * 1.001)

    def test_verdicts(self, auditor):
        kept = ag.audit(scores(), claim=CLAIM, auditor=auditor)
        # Four intervals that share the gate's error leave the rectangle too wide to see 10 for 8.
        narrow = isinstance(auditor, ag.GaussianEllipsoid)
        assert (kept.verdict is ag.Verdict.CONSISTENT) == narrow
        assert (kept.power > 0.8) == narrow
        broken = ag.audit(scores(2.576 / 2), claim=CLAIM, auditor=auditor)
        assert broken.verdict is ag.Verdict.VIOLATION
        weak = ag.audit(scores(present=6, absent=6), claim=CLAIM, auditor=auditor)
        expected = ag.Verdict.INVALID if narrow else ag.Verdict.INCONCLUSIVE
        assert weak.verdict is expected

    def test_a_p_value_beyond_what_a_confidence_can_tell(self, auditor):
        result = ag.audit(scores(0.05), claim=CLAIM, auditor=auditor)
        assert result.p_value(epsilon=1.0) == pytest.approx(1e-15, rel=1e-5)

    def test_power_where_sampling_widens_scores_as_fast_as_it_shifts_them(self, auditor):
        """No shift makes an average audit of 200 canaries sampled half a time reject 1e4."""
        run = scores(present=200, absent=200, steps=10, sampling_rate=0.05)
        claim = ag.PrivacyClaim(epsilon=1e4, delta=1e-5)
        result = ag.audit(run, claim=claim, auditor=auditor, diagnostics=False)
        assert result.power == pytest.approx(0.0, abs=1e-9)
        assert result.verdict is ag.Verdict.INCONCLUSIVE

    def test_present_scores_that_do_not_vary_have_no_law(self, auditor):
        """No epsilon is read from a variance of zero."""
        absent = np.random.default_rng(0).normal(0, 1, 200)
        run = ag.CanaryScores.from_groups(present=np.full(200, 0.7), absent=absent)
        result = ag.audit(run, claim=CLAIM, auditor=auditor, diagnostics=False)
        assert result.verdict is ag.Verdict.INVALID
        assert result.epsilon_lower == 0.0
        assert "200 present scores are the same" in result.reason

    def test_power_is_about_what_simulation_says(self, auditor):
        """Against epsilon 12 with 200 canaries a group, where power is middling."""
        claim = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)
        runs = [
            ag.audit(
                scores(3.6, seed, present=300, absent=300),
                claim=claim,
                auditor=auditor,
                gate_error=0.05,
                diagnostics=False,
            )
            for seed in range(60)
        ]
        evidence = runs[0].evidence
        shift = math.sqrt(2500) * PAPER["sampling_rate"] / 3.6
        true_epsilon = gaussian.gdp_epsilon(1e-5, shift) * 1.01
        power = auditor.power(
            evidence, epsilon=4.0, true_epsilon=true_epsilon, delta=1e-5, error=0.05
        )
        found = np.mean([run.verdict is ag.Verdict.VIOLATION for run in runs])
        assert abs(found - power) < 0.3

    def test_where_the_pair_exceeds_the_law_the_result_is_invalid(self, auditor):
        run = scores(0.25, steps=1, sampling_rate=0.5, present=500, absent=500)
        result = ag.audit(run, claim=CLAIM, auditor=auditor)
        assert result.verdict is ag.Verdict.INVALID
        assert any(item.check == "Gaussian pair" for item in result.findings)
        if not auditor.pooled:  # one pooled deviation is wide enough here to stay below the truth
            law = ag.ScoreLaw(steps=1, sampling_rate=0.5, noise_multiplier=0.25)
            assert result.epsilon_lower > law.epsilon_at(1e-5)

    def test_no_noise_is_unbounded(self, auditor):
        run = ag.CanaryScores.from_groups(present=[1.0, 1.0, 1.0], absent=[0.0, 0.0, 0.0])
        result = ag.audit(run, claim=CLAIM, auditor=auditor)
        assert result.epsilon_lower == math.inf
        assert result.verdict is ag.Verdict.VIOLATION


@pytest.mark.parametrize(("present", "absent"), [(99, 500), (500, 99), (100, 100)])
def test_an_ellipsoid_of_few_canaries_is_invalid(present, absent):
    run = scores(present=present, absent=absent)
    auditor = ag.GaussianEllipsoid(resamples=100)
    result = ag.audit(run, claim=CLAIM, auditor=auditor, diagnostics=False)
    few = min(present, absent) < 100
    assert (result.verdict is ag.Verdict.INVALID) == few
    assert any(item.check == "number of canaries" for item in result.findings) == few


def test_ellipsoid_is_the_same_for_the_same_seed():
    run = scores(present=200, absent=200)
    bounds = [
        ag.audit(
            run, delta=1e-5, auditor=ag.GaussianEllipsoid(resamples=200, seed=seed)
        ).epsilon_lower
        for seed in (1, 1, 2)
    ]
    assert bounds[0] == bounds[1] != bounds[2]


def test_ellipsoid_options_are_checked():
    with pytest.raises(InvalidArgumentError, match="resamples"):
        ag.GaussianEllipsoid(resamples=1)
    with pytest.raises(InvalidArgumentError, match="seed"):
        ag.GaussianEllipsoid(seed=-1)


class TestExactLaw:
    def test_few_steps_read_the_exact_law(self):
        """At one step the Gaussian pair would over-report; the exact law keeps below the truth."""
        law = ag.ScoreLaw(steps=1, sampling_rate=0.5, noise_multiplier=0.25)
        truth = law.epsilon_at(delta=1e-5)
        above = sum(
            ag.audit(
                scores(0.25, seed, steps=1, sampling_rate=0.5, present=500, absent=500),
                delta=1e-5,
                diagnostics=False,
            ).epsilon_lower
            > truth
            for seed in range(60)
        )
        assert above <= 11  # 60 audits at 5 %: more has a probability below 1e-4

    def test_unknown_sampling_falls_back_to_the_plain_shift(self):
        run = scores()
        groups = {"present": run.present, "absent": run.absent}
        plain = ag.CanaryScores.from_groups(**groups, noise="gaussian")
        known, unknown = (ag.audit(s, delta=1e-5).epsilon_lower for s in (run, plain))
        assert unknown < known < 1.03 * unknown
        # Where nobody says that the noise is Gaussian, that bound stands beside a free one.
        randomised = ag.CanaryScores.from_groups(**groups, membership="randomised")
        undeclared = ag.audit(randomised, delta=1e-5)
        assert undeclared.assumption is ag.Assumption.INDEPENDENT_CANARIES
        assert undeclared.epsilon_lower < undeclared.if_gaussian.epsilon_lower == unknown

    def test_full_sampling_is_exactly_gaussian_privacy(self):
        generator = np.random.default_rng(0)
        run = ag.CanaryScores.from_groups(
            present=generator.normal(1, 1, 400),
            absent=generator.normal(0, 1, 400),
            steps=10,
            sampling_rate=1.0,
        )
        result = ag.audit(run, delta=1e-5)
        shift = result.evidence.test().lower(1.0 - result.confidence)
        assert result.epsilon_lower == gaussian.gdp_epsilon(1e-5, shift)


@pytest.mark.parametrize("auditor", [GaussianShift(), *REGIONS], ids=repr)
def test_scores_of_few_values_are_no_unbounded_leak(auditor):
    """Exact matches: none of 100 absent canaries came out, and 3 of 100 present ones."""
    run = ag.CanaryScores.from_groups(present=np.arange(100) < 3, absent=np.zeros(100))
    for diagnostics in (True, False):
        result = ag.audit(run, claim=CLAIM, auditor=auditor, diagnostics=diagnostics)
        assert result.epsilon_lower == 0.0
        assert result.p_value(epsilon=8.0) == 1.0
        assert result.verdict is ag.Verdict.INVALID
        assert "not Gaussian" in result.reason
        assert ag.AuditResult.from_json(result.to_json()) == result


class TestFewInclusions:
    """Which test reads the shift depends on how often present canaries are sampled, all told."""

    @pytest.mark.parametrize(
        ("present", "steps", "rate", "kind"),
        [
            (50, 10, 0.1, SampledShiftTest),
            (9, 1000, 0.1, SampledShiftTest),
            (10, 1000, 0.1, ShiftTest),
            (50, 10, 1.0, ShiftTest),
        ],
    )
    def test_the_test_is_chosen_by_the_design(self, present, steps, rate, kind):
        run = scores(present=present, absent=100, steps=steps, sampling_rate=rate)
        assert type(ag.audit(run, delta=1e-5).evidence.test()) is kind

    def test_an_audit_of_canaries_hardly_ever_sampled_says_so(self):
        run = scores(0.1, present=3, absent=100, steps=1, sampling_rate=0.1)
        result = ag.audit(run, claim=CLAIM, diagnostics=False)
        assert (result.epsilon_lower, result.power) == (0.0, 0.0)
        assert result.verdict is ag.Verdict.INCONCLUSIVE

    @pytest.mark.parametrize("present", [100, 10**7])
    def test_a_claim_that_no_shift_contradicts(self, present):
        """A canary sampled more rarely than delta leaks nothing, and no audit has power."""
        evidence = PairEvidence(
            present=GroupMoments(count=present, mean=5.0, sum_of_squares=float(present)),
            absent=GroupMoments(count=100, mean=0.0, sum_of_squares=100.0),
            steps=1,
            sampling_rate=1e-3,
        )
        claim = {"epsilon": 1.0, "delta": 2e-3}
        assert GaussianShift().p_value(evidence, **claim) == 1.0
        assert GaussianShift().power(evidence, **claim, true_epsilon=2.0, error=0.05) == 0.0


class TestWhatScoresCarry:
    generator = np.random.default_rng(3)
    groups = {"present": generator.normal(1, 1, 300), "absent": generator.normal(0, 1, 300)}

    def audited(self, **metadata):
        plain = ag.CanaryScores.from_groups(**self.groups)
        run = ag.CanaryScores(
            score=plain.score,
            member=plain.member,
            metadata=ScoreMetadata(**metadata, noise="gaussian"),
        )
        claim = ag.PrivacyClaim(epsilon=4.5, delta=1e-5)
        return ag.audit(run, claim=claim, gate_error=0.1, diagnostics=False)

    @staticmethod
    def noted(result):
        return any(item.check == "what scores carry" for item in result.findings)

    def test_unknown_it_is_taken_for_all_and_said(self):
        assert self.noted(self.audited())
        assert not self.noted(self.audited(sampling_rate=1.0))
        assert not self.noted(self.audited(carried_shift=0.93))

    def test_power_is_that_of_the_share(self):
        """Scores that carry a share of mu have the power of a mechanism with that share of it."""
        whole, part = self.audited(carried_shift=1.0), self.audited(carried_shift=0.93)
        assert whole.epsilon_lower == part.epsilon_lower
        mu = 0.93 * gaussian.gdp_mu(1.25 * 4.5, 1e-5)
        expected = GaussianShift().power(
            whole.evidence,
            epsilon=4.5,
            true_epsilon=gaussian.gdp_epsilon(1e-5, mu),
            delta=1e-5,
            error=0.1,
        )
        assert part.power == pytest.approx(expected, rel=1e-6)
        assert part.power < whole.power - 0.1
        assert ag.AuditResult.from_json(part.to_json()) == part


class TestRelativeShift:
    """Canaries that presence moves by different, known amounts."""

    generator = np.random.default_rng(1)
    member = np.arange(4000) % 2 == 0
    relative = np.where(np.arange(4000) % 4 < 2, 1.0, 0.35)

    def make(self, generator):
        score = np.where(self.member, 1.5 * self.relative, 0.0) + generator.normal(0, 1, 4000)
        return ag.CanaryScores(
            score=score,
            member=self.member,
            relative_shift=self.relative,
            metadata=ScoreMetadata(noise="gaussian"),
        )

    def test_the_bound_speaks_of_the_largest_shift(self):
        result = ag.audit(self.make(np.random.default_rng(0)), delta=1e-5)
        truth = gaussian.gdp_epsilon(1e-5, 1.5)
        assert 0.9 * truth < result.epsilon_lower < truth

    def test_ignoring_the_shifts_only_loosens_it(self):
        run = self.make(np.random.default_rng(0))
        blind = ag.CanaryScores(score=run.score, member=run.member)
        assert ag.audit(blind, delta=1e-5).epsilon_lower < ag.audit(run, delta=1e-5).epsilon_lower

    def test_files_and_json_keep_it(self, tmp_path):
        run = self.make(np.random.default_rng(0))
        run.save(tmp_path / "s.npz")
        again = ag.CanaryScores.load(tmp_path / "s.npz")
        result = ag.audit(again, claim=CLAIM)
        assert result == ag.audit(run, claim=CLAIM)
        assert ag.AuditResult.from_json(result.to_json()) == result

    def test_it_does_not_mix_with_subsampling(self):
        run = self.make(np.random.default_rng(0))
        mixed = ag.CanaryScores(
            score=run.score,
            member=run.member,
            relative_shift=run.relative_shift,
            metadata=scores(present=3, absent=3).metadata,
        )
        with pytest.raises(UnsupportedError, match="relative_shift"):
            ag.audit(mixed, delta=1e-5)


def test_failed_checks_carry_their_consequence():
    """Heavy tails make a Gaussian bound INVALID and say what to do."""
    generator = np.random.default_rng(0)
    run = ag.CanaryScores.from_groups(
        present=generator.standard_t(2, 2000) + 1,
        absent=generator.standard_t(2, 2000),
        noise="gaussian",
    )
    result = ag.audit(run, claim=CLAIM)
    assert result.verdict is ag.Verdict.INVALID
    failed = [item for item in result.findings if item.status is Status.FAIL]
    assert {item.consequence for item in failed} == {Consequence.INVALIDATES}
    assert all(item.remedy for item in failed)


class TestCorrections:
    """Facts that are often assumed otherwise, as the page of corrections has them."""

    def test_sum_scores_carry_less_than_the_central_limit_says(self):
        """Claim 4, truth 5: nearly all of 10,000 audits would reject by that shift, .13 do."""
        steps, rate = 100, 0.1
        draw = np.random.default_rng(0)
        run = ag.CanaryScores.from_groups(
            present=draw.normal(0, 1, 10_000),
            absent=draw.normal(0, 1, 10_000),
            steps=steps,
            sampling_rate=rate,
        )
        evidence = GaussianShift().gather(run, delta=1e-5, confidence=0.95)
        asked = {"epsilon": 4.0, "delta": 1e-5, "error": 0.005}
        assert GaussianShift().power(evidence, true_epsilon=5.0, **asked) == pytest.approx(
            0.13, abs=0.005
        )
        signal = accounting.dpsgd_signal_to_noise(
            epsilon=5.0, delta=1e-5, sampling_rate=rate, steps=steps
        )
        assert rate * math.sqrt(steps) * signal == pytest.approx(0.826, abs=1e-3)
        limit = rate * math.sqrt(steps) * math.sqrt(math.expm1(signal**2))
        assert limit == pytest.approx(0.989, abs=1e-3)
        shift = evidence.shift_of_epsilon(4.0, 1e-5)
        assert evidence.test().power(shift=shift, true_shift=limit, error=0.005) > 0.999

    def test_pooled_variances_are_not_those_of_a_noncentral_t_at_large_rates(self):
        """One step at q = .9, epsilon 15: 8 % instead of 5 %; one of 50 seeds misses 6.5 %."""
        rate, size, shift = 0.9, 1112, 2.509
        draw = np.random.default_rng(3)
        above = Counter()
        for _ in range(1500):
            planted = draw.random(size) < rate
            present = planted * (shift / rate) + draw.standard_normal(size)
            absent = draw.standard_normal(size)
            groups = [
                (size, float(x.mean()), float(((x - x.mean()) ** 2).sum()))
                for x in (present, absent)
            ]
            for pooled in (True, False):
                test = ShiftTest(
                    present=groups[0],
                    absent=groups[1],
                    kappa=sampling_variance(1, rate),
                    pooled=pooled,
                )
                # One shift is asked, not all below it: the p-value rises with the shift here.
                above[pooled] += float(test.p_values(np.array([shift]))[0]) < 0.05
        assert above[True] > 0.065 * 1500
        assert above[False] < stats.binom.isf(1e-4, 1500, 0.05)
