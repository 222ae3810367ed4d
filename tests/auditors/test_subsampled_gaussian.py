from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss import accounting
from askgauss.auditors.subsampled_gaussian import StepEvidence, Stratum
from askgauss.exceptions import ScoresError, UnsupportedError
from askgauss.recording.facts import RunFacts
from askgauss.results import Status
from askgauss.sampling import Poisson
from askgauss.scores import GroupMoments
from askgauss.stats.limits import clopper_pearson_lower
from askgauss.stats.shift import SlopeTest

RATE = 4096 / 50000
NOISE = {1: 15.3718, 2: 8.2333, 4: 4.5116, 8: 2.5760}


def draw_evidence(generator, noise, *, present=2500, absent=2500, steps=2500, known_rate=True):
    """Sufficient statistics of a run, drawn from their exact law."""
    chances = present * steps
    planted = int(generator.binomial(chances, RATE))
    others = (present + absent) * steps - planted

    def moments(count, mean):
        return GroupMoments(
            count=count,
            mean=float(generator.normal(mean, noise / math.sqrt(count))),
            sum_of_squares=float(noise**2 * generator.chisquare(count - 1)),
        )

    counts = generator.binomial(steps, RATE, present) / math.sqrt(steps)
    weights = np.concatenate([counts, np.zeros(absent)])
    sums = weights + noise * generator.standard_normal(weights.size)
    return StepEvidence(
        strata=(Stratum(tensor="all", planted=moments(planted, 1.0), other=moments(others, 0.0)),),
        within=SlopeTest(count=3, slope=0.0, spread=0.0, residual=0.0),
        counts=SlopeTest.fit(weights, sums),
        background_known=True,
        steps=steps,
        sampling_rate=RATE if known_rate else None,
        plantings=planted,
        opportunities=chances,
        poisson=True,
        finite=True,
    )


def small_run(seed=0, noise=2.0, present=200, absent=200, steps=100, rate=0.2):
    return ag.simulate_dpsgd(
        steps=steps,
        sampling_rate=rate,
        noise_multiplier=noise,
        present=present,
        absent=absent,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("epsilon", "known", "unknown"),
    [(1, 0.945, 0.93), (2, 1.94, 1.92), (4, 3.93, 3.90), (8, 7.91, 7.87)],
)
def test_mean_bound_is_as_tight_as_promised(epsilon, known, unknown):
    """Forty audits drawn from the exact law of the evidence."""
    generator = np.random.default_rng(epsilon)
    for wanted, known_rate in ((known, True), (unknown, False)):
        bounds = [
            ag.SubsampledGaussian().epsilon_lower(
                draw_evidence(generator, NOISE[epsilon], known_rate=known_rate),
                delta=1e-5,
                confidence=0.95,
            )
            for _ in range(40)
        ]
        assert np.mean(bounds) >= wanted


@pytest.mark.parametrize(("present", "wanted"), [(8, 6.7), (1, 4.9)])
def test_a_handful_of_present_canaries_is_enough(present, wanted):
    generator = np.random.default_rng(present)
    bounds = [
        ag.SubsampledGaussian().epsilon_lower(
            draw_evidence(generator, NOISE[8], present=present, absent=2500),
            delta=1e-5,
            confidence=0.95,
        )
        for _ in range(60)
    ]
    assert np.mean(bounds) >= wanted


@pytest.mark.parametrize("counts_only", [False, True])
@pytest.mark.parametrize("known_rate", [False, True])
def test_it_is_above_the_truth_at_most_nominally(counts_only, known_rate):
    """Epsilon grows with the ratio and the rate, so it is enough to look at those two."""
    generator = np.random.default_rng(7)
    auditor = ag.SubsampledGaussian(counts_only=counts_only)
    truth = accounting.dpsgd_epsilon(
        noise_multiplier=2.576, sampling_rate=RATE, steps=50, delta=1e-5
    )
    above = 0
    for _ in range(300):
        evidence = draw_evidence(
            generator, 2.576, present=100, absent=100, steps=50, known_rate=known_rate
        )
        above += auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95) > truth
    assert above <= stats.binom.isf(1e-5, 300, 0.05)


def test_evidence_equals_brute_force():
    """The moments against those of every single observation, planted and not."""
    present, absent, steps = 100, 60, 25
    canaries = ag.DiracCanaries(present=present, absent=absent, tensors=(90, 90), seed=3)
    recorder = ag.Recorder(canaries, sampling_rate=0.3)
    generator = np.random.default_rng(0)
    values, flags = [], []
    for _ in range(steps):
        planted = recorder.sample()
        row = generator.normal(0, 1.5, canaries.size)
        row[planted] += 1.0
        recorder.observe(row, background=np.zeros(canaries.size))
        values.append(row)
        flags.append(np.isin(np.arange(canaries.size), planted))
    values, flags = np.array(values), np.array(flags)
    evidence = ag.SubsampledGaussian().gather(recorder.transcript(), delta=1e-5, confidence=0.95)
    assert len(evidence.strata) == 3
    for stratum, columns in zip(
        evidence.strata,
        (np.ones(canaries.size, bool), canaries.tensor == 0, canaries.tensor == 1),
        strict=True,
    ):
        for moments, chosen in ((stratum.planted, flags), (stratum.other, ~flags)):
            expected = values[chosen & columns[None, :]]
            assert moments.count == expected.size
            assert moments.mean == pytest.approx(expected.mean(), rel=1e-10)
            assert moments.variance == pytest.approx(expected.var(ddof=1), rel=1e-9)
    slope, intercept = np.polyfit(flags.sum(axis=0), values.sum(axis=0), 1)
    # What no bound rests on is not kept, since it could be published.
    assert evidence.counts is None
    assert evidence.within is None
    by_counts = ag.SubsampledGaussian(counts_only=True)
    kept = by_counts.gather(recorder.transcript(), delta=1e-5, confidence=0.95)
    assert kept.counts.slope == pytest.approx(slope, rel=1e-9)
    assert intercept == pytest.approx(0.0, abs=5.0)


def run_with_levels(generator, *, level, present, absent=100, steps=200, rate=0.2):
    """A run whose background is unknown and gives every canary a level of its own."""
    seed = int(generator.integers(2**31))
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=500, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=rate)
    levels = level * generator.standard_normal(canaries.size)
    for _ in range(steps):
        row = levels + generator.standard_normal(canaries.size)
        row[recorder.sample()] += 1.0
        recorder.observe(row)
    return recorder.transcript()


def test_other_records_left_in_do_not_make_the_bound_too_high():
    """Eight present canaries with levels: pooling their steps would be above twice as often.

    A right implementation fails with probability below 1e-5.
    """
    generator = np.random.default_rng(11)
    auditor = ag.SubsampledGaussian()
    above = pooled_above = 0
    for _ in range(200):
        run = run_with_levels(generator, level=0.5, present=8)
        evidence = auditor.gather(run, delta=1e-5, confidence=0.95)
        above += auditor._signal_lower(evidence, 0.05) > 1.0
        pooled_above += evidence.strata[0].lower(0.05) > 1.0
    assert above <= stats.binom.isf(1e-5, 200, 0.05)
    assert pooled_above > 2 * 0.05 * 200  # twice nominal, with these seeds


def test_the_fit_within_canaries_is_least_squares_with_dummies():
    run = run_with_levels(np.random.default_rng(0), level=1.0, present=6, absent=5, steps=12)
    evidence = ag.SubsampledGaussian().gather(run, delta=1e-5, confidence=0.95)
    size, steps = run.member.size, run.number_of_steps
    assert run.kept.size == size
    flags = run.kept_planted.T.ravel().astype(float)
    values = run.kept_values.T.ravel()
    design = np.column_stack([flags, np.repeat(np.eye(size), steps, axis=0)])
    fit, residual, *_ = np.linalg.lstsq(design, values, rcond=None)
    assert evidence.within.slope == pytest.approx(fit[0], rel=1e-8)
    assert evidence.within.residual == pytest.approx(residual[0], rel=1e-8)
    assert evidence.within.degrees_of_freedom == size * steps - size - 1


def test_verdicts_of_whole_runs():
    rate, steps = 0.2, 100
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=8.0, delta=1e-5, sampling_rate=rate, steps=steps
    )
    claim = ag.PrivacyClaim(
        epsilon=8.0, delta=1e-5, noise_multiplier=noise, sampling_rate=rate, steps=steps
    )
    kept = ag.audit(small_run(noise=noise), claim=claim)
    assert kept.verdict is ag.Verdict.CONSISTENT
    assert 7.2 < kept.epsilon_lower < 8.0
    broken = ag.audit(small_run(noise=0.75 * noise), claim=claim)
    assert broken.verdict is ag.Verdict.VIOLATION
    assert any(item.check == "noise scale" for item in broken.findings)
    assert ag.AuditResult.from_json(kept.to_json()) == kept


def test_p_value_and_bound_agree():
    for auditor in (ag.SubsampledGaussian(), ag.SubsampledGaussian(counts_only=True)):
        result = ag.audit(small_run(), delta=1e-5, auditor=auditor)
        lower = result.epsilon_lower
        assert result.p_value(epsilon=0.999 * lower) < 0.05
        assert result.p_value(epsilon=1.001 * lower) > 0.05


def test_every_tensor_has_its_share_of_a_fifth_of_the_error():
    """Four tensors, one of them quiet: its bound and its p-value are read at a twentieth."""
    generator = np.random.default_rng(3)
    evidence = draw_evidence(generator, 8.0, present=200, absent=200, steps=50)
    (pooled,) = evidence.strata
    quiet = draw_evidence(generator, 2.0, present=50, absent=50, steps=50).strata
    loud = draw_evidence(generator, 9.0, present=50, absent=50, steps=50).strata
    evidence = replace(evidence, strata=(pooled, *quiet, *loud, *loud, *loud))
    auditor, error = ag.SubsampledGaussian(), 0.05
    bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=1.0 - error)
    signal = quiet[0].lower(0.2 * error / 4)
    assert signal > pooled.lower(error)
    assert bound == pytest.approx(evidence.epsilon(signal, Poisson(rate=RATE), 1e-5), rel=1e-6)
    assert auditor.p_value(evidence, epsilon=bound, delta=1e-5) == pytest.approx(error, rel=1e-3)


def test_a_measured_rate_is_composed_at_its_lower_limit():
    """A fifth of the error is the rate's, the rest the signal's."""
    evidence = draw_evidence(
        np.random.default_rng(4), 2.0, present=50, absent=50, steps=50, known_rate=False
    )
    bound = ag.SubsampledGaussian().epsilon_lower(evidence, delta=1e-5, confidence=0.95)
    rate = clopper_pearson_lower(evidence.plantings, evidence.opportunities, 0.2 * 0.05)
    assert rate < evidence.plantings / evidence.opportunities
    signal = evidence.strata[0].lower(0.8 * 0.05)
    assert bound == pytest.approx(evidence.epsilon(signal, Poisson(rate=rate), 1e-5), rel=1e-9)


def test_a_quiet_tensor_speaks_for_the_run():
    """Half the noise in one of two tensors: the pooled fit hides it, the tensor's own does not."""
    canaries = ag.DiracCanaries(present=400, absent=400, tensors=(1000, 1000), seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.2)
    generator = np.random.default_rng(0)
    scale = np.where(canaries.tensor == 0, 1.0, 2.0)
    for _ in range(100):
        row = scale * generator.standard_normal(canaries.size)
        row[recorder.sample()] += 1.0
        recorder.observe(row, background=np.zeros(canaries.size))
    result = ag.audit(recorder.transcript(), delta=1e-5, diagnostics=False)
    exact = accounting.dpsgd_epsilon(noise_multiplier=1.0, sampling_rate=0.2, steps=100, delta=1e-5)
    assert 0.85 * exact < result.epsilon_lower < exact
    assert result.epsilon_point < 0.7 * exact


def test_no_noise_is_unbounded():
    result = ag.audit(small_run(noise=0.0), claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    assert result.epsilon_lower == math.inf
    assert result.verdict is ag.Verdict.VIOLATION


def test_nan_is_a_verdict_and_nothing_is_dropped():
    canaries = ag.DiracCanaries(present=20, absent=20, dimension=60, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.5)
    for step in range(10):
        planted = recorder.sample()
        row = np.random.default_rng(step).normal(0, 1, 40)
        row[planted] += 1.0
        row[3] = np.nan if step == 5 else row[3]
        recorder.observe(row, background=np.zeros(40))
    result = ag.audit(recorder.transcript(), claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    assert result.verdict is ag.Verdict.INVALID
    assert "nan, infinite or larger than 1e140" in str(result)
    assert result.epsilon_lower == 0.0
    ag.AuditResult.from_json(result.to_json())


def test_batches_that_are_not_poisson_are_invalid():
    run = small_run()
    fixed = run.with_facts(RunFacts(sampling="user's sampler", poisson=False, sampling_rate=0.2))
    result = ag.audit(fixed, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    assert result.verdict is ag.Verdict.INVALID


def planted_by_the_loop(generator, steps=100, **options):
    """A loop whose own sampler, a coin for every record and step, chooses the canaries."""
    canaries = ag.DiracCanaries(present=200, absent=200, dimension=500, seed=0)
    recorder = ag.Recorder(canaries, noise_multiplier=2.0, **options)
    present = np.flatnonzero(canaries.member)
    for _ in range(steps):
        planted = present[generator.random(present.size) < 0.2]
        clean = 0.1 * generator.standard_normal(canaries.size)
        released = clean + 2.0 * generator.standard_normal(canaries.size)
        released[planted] += 1.0
        recorder.observe(released, background=clean, planted=planted)
    return recorder.transcript()


def test_poisson_sampling_may_be_declared_and_the_result_says_so():
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    silent = ag.audit(planted_by_the_loop(np.random.default_rng(0)), claim=claim)
    assert silent.verdict is ag.Verdict.INVALID
    assert any("poisson=True" in item.remedy for item in silent.findings)
    run = planted_by_the_loop(np.random.default_rng(0), poisson=True)
    assert (run.facts.poisson, run.facts.poisson_declared) == (True, True)
    said = ag.audit(run, claim=claim)
    assert said.verdict is not ag.Verdict.INVALID
    finding = next(item for item in said.findings if item.check == "sampling")
    assert finding.status is Status.INFO
    assert "declared, not seen" in finding.summary
    assert "declared, not seen" in str(said)
    # The rate is still bounded from the counts, and the bound is the same.
    assert said.epsilon_lower == silent.epsilon_lower
    assert ag.AuditResult.from_json(said.to_json()).findings == said.findings
    # The recorder's own coin needs nobody's word.
    assert not small_run().facts.poisson_declared


@pytest.mark.parametrize("auditor", [ag.GaussianShift(), ag.OneRun()])
def test_a_known_background_needs_poisson_sampling_whatever_the_auditor(auditor):
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    for declared in (False, True):
        run = planted_by_the_loop(np.random.default_rng(0), poisson=declared)
        result = ag.audit(run, claim=claim, auditor=auditor)
        named = {item.check for item in result.findings if item.status is Status.FAIL}
        assert ("known background" in named) is not declared


def test_power_counts_the_steps_that_were_not_observed():
    """A leak is in all steps: seen in a part of them, there is less of it to see."""
    run = small_run(steps=200)
    auditor = ag.SubsampledGaussian()

    def power(skipped):
        facts = replace(run.facts, skipped_steps=skipped)
        evidence = auditor.gather(run.with_facts(facts), delta=1e-5, confidence=0.95)
        return auditor.power(evidence, epsilon=8.0, true_epsilon=16.0, delta=1e-5, error=0.05)

    whole, most, few = power(0), power(50), power(1800)
    assert whole > 0.9
    assert few < 0.05 < most < whole + 1e-12


def test_it_needs_a_transcript_with_plantings():
    with pytest.raises(UnsupportedError, match="transcript"):
        ag.audit(small_run().scores(), delta=1e-5, auditor=ag.SubsampledGaussian())
    with pytest.raises(ScoresError, match=r"2 .*got 0"):
        ag.audit(small_run(rate=1e-9, present=3), delta=1e-5)


class TestSchedule:
    """Noise declared step by step: 5 for ten steps, then 1."""

    noise = np.repeat([5.0, 1.0], [10, 30])

    def run(self, seed, *, factor=1.0, background=False, tensors=(90,)):
        canaries = ag.DiracCanaries(present=30, absent=40, tensors=tensors, seed=seed)
        recorder = ag.Recorder(canaries, sampling_rate=0.2)
        rng, values, flags = np.random.default_rng([seed, 1]), [], []
        for noise in self.noise:
            planted = recorder.sample()
            released = factor * noise * rng.standard_normal(70)
            released[planted] += 1.0
            recorder.observe(
                released, background=None if background else 0.0, noise_multiplier=noise
            )
            values.append(released)
            flags.append(np.isin(np.arange(70), planted))
        return recorder.transcript(), np.array(values), np.array(flags)

    def gathered(self, seed, **options):
        transcript, *arrays = self.run(seed, **options)
        method = ag.SubsampledGaussian()
        return method, method.gather(transcript, delta=1e-5, confidence=0.95), *arrays

    def test_is_least_squares_in_units_of_the_declared_noise(self):
        _, evidence, values, flags = self.gathered(0)
        unit = (self.noise / 5.0)[:, None]
        weight, scaled = (flags / unit).ravel(), (values / unit).ravel()
        design = np.column_stack([weight, np.ones(weight.size)])
        solution, residual, *_ = np.linalg.lstsq(design, scaled, rcond=None)
        (fitted,) = evidence.weighted
        assert fitted.slope == pytest.approx(solution[0], rel=1e-9)
        assert fitted.residual == pytest.approx(float(residual[0]), rel=1e-9)
        assert fitted.spread == pytest.approx(weight.size * weight.var(), rel=1e-9)
        assert dict(evidence.schedule) == {1.0: 10, 5.0: 30}
        assert evidence.schedule_scale == pytest.approx(math.sqrt((10 * 25 + 30) / 40) / 5.0)

    @pytest.mark.parametrize("options", [{}, {"background": True}, {"tensors": (45, 45)}])
    def test_p_values_are_at_most_nominal(self, options):
        """What stood before pooled the steps: with this schedule it rejected by the variance."""
        claim = accounting.schedule_epsilon_lower(
            signal_to_noise=1.0 / self.noise, sampling_rate=0.2, delta=1e-5
        )
        p_values = []
        for seed in range(150):
            method, evidence, *_ = self.gathered(seed, **options)
            p_values.append(method.p_value(evidence, epsilon=claim, delta=1e-5))
        for level in (0.3, 0.1, 0.02):
            assert np.mean(np.array(p_values) <= level) < level + 3.5 * math.sqrt(level / 150)

    def test_bound_and_p_value_agree(self):
        method, evidence, *_ = self.gathered(3, factor=0.7)
        bound = method.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
        for change, rejected in ((0.999, True), (1.001, False)):
            p_value = method.p_value(evidence, epsilon=change * bound, delta=1e-5)
            assert (p_value < 0.05) is rejected

    def test_noise_below_the_schedule_is_a_violation_and_the_schedule_is_not(self):
        history = [(float(noise), 0.2, 1) for noise in self.noise]
        claim = ag.PrivacyClaim(epsilon=accounting.history_epsilon(history, 1e-5), delta=1e-5)
        right, wrong = (ag.audit(self.run(1, factor=f)[0], claim=claim) for f in (1.0, 0.8))
        assert right.verdict is not ag.Verdict.VIOLATION
        assert [item.check for item in right.findings if item.status.value == "fail"] == []
        assert wrong.verdict is ag.Verdict.VIOLATION
        again = ag.AuditResult.from_json(right.to_json())
        assert again.evidence == right.evidence
