"""Checks of transcripts: valid on clean runs, and each sees what it is for, with its numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.calibration.gate import UNBROKEN

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.checks.context import Context
from askgauss.checks.gate import NOISE_CHECKS, worded
from askgauss.checks.registry import made
from askgauss.checks.signal import SIGNAL_CHECKS
from askgauss.results import Consequence, Status
from askgauss.sampling import MinSeparation
from askgauss.simulation import simulate_dpsgd

RUN = {
    "steps": 60,
    "sampling_rate": 0.2,
    "noise_multiplier": 1.0,
    "present": 60,
    "absent": 100,
    "seed": 3,
}


def checks(run, claim=None):
    context = Context(run, claim)
    return {item.check: item for item in made((*NOISE_CHECKS, *SIGNAL_CHECKS), context)}


def failing(item):
    return worded(item, Status.FAIL).summary


def check(name, claim=None, **options):
    return checks(simulate_dpsgd(**RUN | options), claim)[name]


def claimed(epsilon, **facts):
    return ag.PrivacyClaim(epsilon=epsilon, delta=1e-5, **facts)


@pytest.fixture(scope="module")
def p_values():
    shapes = (
        {"canaries": "data path"},
        {"canaries": "data path", "steps": 25, "sampling_rate": 0.4, "absent": 40},
        {"canaries": "spread", "present": 30, "absent": 40, "steps": 40},
        {"fault": UNBROKEN, "present": 30, "absent": 60, "steps": 30},
    )
    found = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("noise", "signal"):
            patch.setattr(f"askgauss.checks.{module}.TOLERANCE", -1.0)
        for seed in range(150):
            for shape in shapes:
                run = simulate_dpsgd(**RUN | shape | {"seed": seed})
                for name, item in checks(run).items():
                    if item.p_value is not None:
                        found[name].append(item.p_value)
    return found


class TestCalibration:
    """P[p <= x] <= x on clean runs, for every check at once.

    Tolerances are of no use here, since they only raise p-values: they are taken out. Each count
    fails with probability 1e-6 were the p-value exactly uniform.
    """

    def test_every_check_is_at_most_nominal(self, p_values):
        assert len(p_values) == 24
        for name, values in p_values.items():
            for level in (0.05, 0.01, 0.001):
                allowed = stats.binom.isf(1e-6, len(values), level)
                assert np.count_nonzero(np.array(values) <= level) <= allowed, (name, level)

    def test_those_with_an_exact_law_are_uniform(self, p_values):
        """Kolmogorov-Smirnov at 1e-6 each."""
        exact = "noise scale", "noise by step", "noise drift", "contribution", "carry-over"
        for name in (*exact, "serial correlation"):
            assert stats.kstest(p_values[name], "uniform").pvalue > 1e-6, name

    def test_the_count_would_notice_a_p_value_half_as_large(self, p_values):
        values = np.array(p_values["noise scale"]) / 3.0
        assert np.count_nonzero(values <= 0.05) > stats.binom.isf(1e-6, values.size, 0.05)


class TestNoiseScale:
    def test_measures_the_multiplier(self):
        item = check("noise scale", fault="half-noise")
        assert item.interval[0] < 0.5 < item.interval[1]
        assert item.claimed == 1.0
        assert item.p_value < 1e-100
        assert "1/4 of the claim" in failing(item)

    def test_breach_only_where_the_claim_is_exceeded(self):
        honest = ag.accounting.dpsgd_epsilon(
            noise_multiplier=1.0, sampling_rate=0.2, steps=60, delta=1e-5
        )
        for epsilon, consequence in (
            (honest, Consequence.BREACH),
            (4.0 * honest, Consequence.LOOSENS),
        ):
            item = check("noise scale", claimed(epsilon), fault="noise-75")
            assert item.consequence is consequence
            assert ("implies epsilon" in failing(item)) == (consequence is Consequence.BREACH)

    def test_a_breach_is_composed_with_the_most_noise_there_may_have_been(self):
        """The upper end of the interval: at confidence 0.99, in 40 runs, 35 at least hold."""
        levels = [
            Context(simulate_dpsgd(**RUN | {"steps": 10, "seed": seed}), None).noise_level
            for seed in range(40)
        ]
        assert sum(level > 1.0 for level in levels) >= 35
        assert max(levels) < 1.2

    def test_without_a_claim_too_little_noise_is_breach_enough(self):
        assert check("noise scale", fault="noise-75").consequence is Consequence.BREACH

    def test_a_schedule_is_compared_step_by_step(self):
        run = simulate_dpsgd(**RUN, fault="fading-noise")
        schedule = 1.1 - 0.2 * np.arange(60) / 60
        followed = replace(
            run,
            steps=replace(run.steps, noise_multiplier=schedule),
            facts=replace(run.facts, noise_multiplier=None),
        )
        found = checks(followed)
        for name in ("noise scale", "noise drift", "noise by step"):
            assert found[name].p_value > 1e-3
        assert checks(run)["noise drift"].p_value < 1e-9

    def test_without_a_claimed_multiplier_the_claim_says_how_much_is_needed(self):
        run = simulate_dpsgd(**RUN)
        unsaid = replace(
            run,
            steps=replace(run.steps, noise_multiplier=np.full(60, np.nan)),
            facts=replace(run.facts, noise_multiplier=None),
        )
        honest = ag.accounting.dpsgd_epsilon(
            noise_multiplier=1.0, sampling_rate=0.2, steps=60, delta=1e-5
        )
        enough = checks(unsaid, claimed(1.3 * honest))["noise scale"]
        assert enough.p_value > 0.5
        assert enough.claimed < 1.0
        short = checks(unsaid, claimed(0.5 * honest))["noise scale"]
        assert short.p_value < 1e-9
        assert short.consequence is Consequence.BREACH
        assert checks(unsaid)["noise scale"].status is Status.NOT_RUN

    @pytest.mark.parametrize("residue", [0.0, 1e-6])
    def test_rounding_errors_are_no_noise(self, residue):
        generator = np.random.default_rng(0)
        canaries = ag.DiracCanaries(present=20, absent=40, dimension=100, seed=0)
        recorder = ag.Recorder(canaries, sampling_rate=0.5, noise_multiplier=1.0)
        for _ in range(30):
            vector = residue * generator.standard_normal(100)
            canaries.plant(vector, recorder.sample(), clip_norm=1.0)
            recorder.observe(
                canaries.project(vector), background=np.zeros(60), watch=vector[canaries.watch]
            )
        found = checks(recorder.transcript())
        assert found["noise scale"].status is Status.FAIL
        assert found["steps without noise"].measured == 30
        for name in ("noise shape", "repeated noise", "noise by step", "serial correlation"):
            assert found[name].p_value is None


def test_a_few_values_near_zero_are_still_noise():
    """Two values are both within .001 of zero in one step of a million, and runs have thousands."""
    run = simulate_dpsgd(
        steps=20, sampling_rate=1.0, noise_multiplier=1.0, present=10, absent=2, seed=0
    )

    def released(value):
        square = run.steps.square.copy()
        square[3] = value
        return checks(replace(run, steps=replace(run.steps, square=square)))["steps without noise"]

    assert released(1e-7).status is Status.PASS
    assert released(0.0).measured == 1.0


def test_noise_by_tensor_names_the_tensor():
    silent = check("noise by tensor", fault="un-noised-tensor")
    assert silent.status is Status.FAIL
    assert silent.summary.startswith("tensor 2 is released without noise")
    half = check("noise by tensor", fault="half-noise-in-one-tensor")
    assert half.summary.startswith("tensor 2 has 0.5")
    assert half.interval[0] < 0.5 < half.interval[1]


def test_noise_drift_measures_the_change():
    item = check("noise drift", fault="fading-noise", absent=400)
    assert item.interval[0] < 0.9 / 1.1 - 1.0 < item.interval[1]


def test_repeated_noise_names_the_steps():
    item = check("repeated noise", fault="reseeded-on-resume")
    assert item.measured == pytest.approx(1.0, abs=1e-5)
    first, second = map(int, re.search(r"\((\d+) and (\d+)\)", item.summary).groups())
    assert second - first == 30


@pytest.mark.parametrize("share", [0.3, -0.3])
def test_serial_correlation_has_two_sides(share):
    """Part of a step's noise is added to the next one's, or subtracted from it."""
    canaries = ag.DiracCanaries(present=20, absent=100, dimension=200, seed=0)
    recorder, generator = ag.Recorder(canaries, sampling_rate=0.2), np.random.default_rng(0)
    before = generator.standard_normal(canaries.size)
    for _ in range(100):
        fresh = generator.standard_normal(canaries.size)
        row = fresh + share * before
        row[recorder.sample()] += 1.0
        recorder.observe(row, background=0.0)
        before = fresh
    item = checks(recorder.transcript())["serial correlation"]
    assert item.measured == pytest.approx(share / (1.0 + share**2), abs=0.03)
    assert item.p_value < 1e-9


def test_shared_noise_names_the_tensors():
    item = check("shared noise", fault="one-key-for-equal-tensors")
    assert item.measured == pytest.approx(1.0, abs=1e-5)
    assert ", in tensor 0 and tensor 1," in item.summary


@pytest.mark.parametrize(("fault", "kurtosis"), [("uniform-noise", -1.2), ("laplace-noise", 3.0)])
def test_noise_shape_measures_the_kurtosis(fault, kurtosis):
    item = check("noise shape", fault=fault, absent=250, steps=100)
    assert item.measured == pytest.approx(kurtosis, rel=0.25)
    assert item.p_value < 1e-12


@pytest.mark.parametrize("scale", [1.0, 1.7])
def test_precision_is_seen_before_and_after_scaling(scale):
    run = simulate_dpsgd(**RUN, fault="bf16-noise")
    scaled = replace(
        run,
        kept_values=scale * run.kept_values,
        watch_values=scale * run.watch_values,
        facts=replace(run.facts, noise_multiplier=scale),
    )
    item = checks(scaled)["noise precision"]
    assert item.status is Status.FAIL
    assert "bfloat16" in item.summary
    assert check("noise precision").status is Status.PASS


class TestSignal:
    @pytest.mark.parametrize(
        ("fault", "mean"), [("duplicated-example", 2.0), ("per-microbatch-clipping", 0.55)]
    )
    def test_contribution_is_measured(self, fault, mean):
        item = check("contribution", fault=fault)
        assert item.measured == pytest.approx(mean, rel=0.15)
        assert item.p_value < 1e-9
        more = item.measured > 1.0
        assert item.consequence is (Consequence.BREACH if more else Consequence.LOOSENS)

    def test_examples_are_held_to_their_own_gradients(self):
        run = simulate_dpsgd(**RUN, fault="per-microbatch-clipping")
        told = run.with_facts(replace(run.facts, contribution=0.55))
        item = checks(told)["contribution"]
        assert item.claimed == 0.55
        assert item.p_value > 1e-4
        result = ag.audit(told, claim=claimed(50.0))
        assert result.verdict is ag.Verdict.INCONCLUSIVE
        assert "was not seen" in result.reason

    def test_contribution_among_lasting_backgrounds(self):
        """Offsets of ten times the noise, lasting the whole run, and the mean stays measured."""
        run = with_background(10.0, seed=1)
        item = checks(run)["contribution"]
        assert item.interval[0] < 1.0 < item.interval[1]
        assert item.interval[1] - item.interval[0] < 0.4
        assert checks(run)["carry-over"].status is Status.NOT_RUN

    def test_carry_over_measures_what_is_left(self):
        item = check("carry-over", fault="accumulating-grad-sample", steps=200)
        assert item.measured == pytest.approx(0.2, rel=0.3)
        assert item.p_value < 1e-9

    def test_sampling_rate(self):
        item = check("sampling rate", fault="sampling-rate-doubled")
        assert item.interval[0] < 0.4 < item.interval[1]
        assert item.claimed == 0.2
        assert check("sampling rate").status is Status.NOT_RUN

    def test_a_higher_rate_is_a_breach_only_where_the_claim_is_exceeded(self):
        honest = ag.accounting.dpsgd_epsilon(
            noise_multiplier=1.0, sampling_rate=0.2, steps=60, delta=1e-5
        )
        for epsilon, consequence in (
            (honest, Consequence.BREACH),
            (4.0 * honest, Consequence.LOOSENS),
        ):
            item = check("sampling rate", claimed(epsilon), fault="sampling-rate-doubled")
            assert item.consequence is consequence

    def test_a_declared_rate_is_held_against_the_accountants(self):
        run = simulate_dpsgd(**RUN)
        other = run.with_facts(replace(run.facts, accounted_sampling_rate=0.15))
        item = checks(other)["sampling rate"]
        assert (item.status, item.measured, item.claimed) == (Status.FAIL, 0.2, 0.15)
        more = run.with_facts(replace(run.facts, accounted_sampling_rate=0.25))
        assert checks(more)["sampling rate"].status is Status.WARN

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("shuffle-for-poisson", "shuffled or fixed"),
            ("one-coin-for-four-records", "records or steps drawn together"),
        ],
    )
    def test_sampling_scheme_is_named(self, fault, words):
        item = check("sampling scheme", fault=fault)
        assert words in failing(item)
        assert item.p_value < 1e-6

    def test_sampling_scheme_is_the_dispersion_of_counts(self):
        """The less likely of two chi-squares: counts by canary and counts by step."""
        run = simulate_dpsgd(**RUN, canaries="data path")
        by_canary, by_step = run.canaries.planted[run.member], run.steps.planted.sum(axis=1)
        rate, tests = by_canary.sum() / (60 * 60), []
        for counts in (by_canary, by_step):
            ratio = counts.var(ddof=1) / (60 * rate * (1.0 - rate))
            law = stats.chi2(counts.size - 1)
            sides = law.cdf(ratio * (counts.size - 1)), law.sf(ratio * (counts.size - 1))
            tests.append((2.0 * min(sides), ratio))
        p_value, ratio = min(tests)
        item = checks(run)["sampling scheme"]
        assert item.measured == pytest.approx(ratio, rel=1e-9)
        assert item.p_value == pytest.approx(min(1.0, 2.0 * p_value), rel=1e-9)

    def test_pairs(self):
        item = check("sampling of pairs", fault="same-batches-every-epoch")
        assert item.measured == 12.0
        assert item.claimed == pytest.approx(12 * 12 / 60)
        assert item.p_value < 1e-3

    def test_step_count(self):
        run = simulate_dpsgd(**RUN, fault="more-steps-than-accounted")
        honest = ag.accounting.dpsgd_epsilon(
            noise_multiplier=1.0, sampling_rate=0.2, steps=60, delta=1e-5
        )
        assert checks(run, claimed(honest))["step count"].status is Status.FAIL
        # The same extra steps within a claim that has room for them.
        assert checks(run, claimed(2 * honest))["step count"].status is Status.WARN
        assert check("step count").status is Status.PASS

    def test_a_claim_of_the_steps_that_were_seen_does_not_hide_others(self):
        run = simulate_dpsgd(**RUN)
        seen = run.number_of_steps
        for counted, status in ((seen, Status.PASS), (seen + 1, Status.WARN)):
            told = run.with_facts(replace(run.facts, accounted_steps=counted))
            item = checks(told, claimed(1000.0, steps=seen))["step count"]
            assert item.status is status
        assert f"{seen} steps were recorded of {seen + 1}" in item.summary
        assert f"{seen} are claimed" in item.summary
        # Of a step that nobody saw no fault shows.
        assert item.visible == 1.0

    def test_canaries_that_are_copies(self):
        run = simulate_dpsgd(**RUN)
        alike = replace(run, gram=np.full((8, 8), 0.8) + 0.2 * np.eye(8))
        item = checks(alike)["canary overlap"]
        assert item.status is Status.FAIL
        assert item.measured == pytest.approx(0.8)
        assert checks(run)["canary overlap"].status is Status.PASS


def with_background(height, seed):
    """A run whose background is not subtracted, and lasts."""
    generator = np.random.default_rng(seed)
    canaries = ag.DiracCanaries(present=80, absent=80, dimension=200, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=0.3, noise_multiplier=1.0)
    lasting = height * generator.standard_normal(200)
    for _ in range(80):
        vector = lasting + generator.standard_normal(200)
        canaries.plant(vector, recorder.sample(), clip_norm=1.0)
        recorder.observe(canaries.project(vector), watch=vector[canaries.watch])
    return recorder.transcript()


def test_an_unknown_background_is_not_taken_for_noise():
    """Over seeds a correct run fails with at most .0005, whatever lies under it."""
    for height in (0.0, 0.3, 10.0):
        findings = diagnose(with_background(height, seed=7), claim=claimed(50.0))
        serious = [item for item in findings if item.status is Status.FAIL]
        assert serious == []


def test_every_check_is_listed_even_in_the_smallest_run():
    run = simulate_dpsgd(
        steps=1, sampling_rate=0.5, noise_multiplier=1.0, present=2, absent=2, seed=0
    )
    small, large = diagnose(run), diagnose(simulate_dpsgd(**RUN))
    assert [item.check for item in small] == [item.check for item in large]
    for item in small:
        assert item.status in (Status.PASS, Status.NOT_RUN)
        if item.status is Status.NOT_RUN:
            assert item.summary.startswith("not run: needs ")


def test_a_rehearsal_with_nobody_present_is_checked_for_noise():
    canaries = ag.DiracCanaries(present=0, absent=100, dimension=200, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.5, noise_multiplier=1.0)
    generator = np.random.default_rng(0)
    for _ in range(20):
        recorder.sample()
        recorder.observe(0.5 * generator.standard_normal(100), background=np.zeros(100))
    failed = {item.check for item in diagnose(recorder.transcript()) if item.status is Status.FAIL}
    assert failed == {"noise scale"}


def test_an_absurd_number_of_steps_is_named_without_composing_them_one_by_one():
    run = ag.simulate_dpsgd(
        steps=20, sampling_rate=0.2, noise_multiplier=1.0, present=40, absent=60, seed=0
    )
    absurd = run.with_facts(replace(run.facts, skipped_steps=10**7))
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, steps=20)
    result = ag.audit(absurd, claim=claim)
    assert result.verdict is ag.Verdict.VIOLATION
    counted = next(item for item in result.findings if item.check == "step count")
    assert counted.status is Status.FAIL
    with pytest.raises(ag.exceptions.InvalidArgumentError, match="skipped"):
        ag.audit(run.with_facts(replace(run.facts, skipped_steps=10**14)), claim=claim)


def diagnosed(run):
    return {item.check: item for item in diagnose(run)}


def test_plantings_of_our_own_coin_that_its_rate_does_not_give_invalidate():
    run = simulate_dpsgd(
        steps=300, sampling_rate=0.08, noise_multiplier=1.0, present=200, absent=200, seed=0
    )
    assert diagnosed(run)["sampling rate"].status is Status.NOT_RUN
    # Likely enough to be read from a file, and far too unlikely for a coin of this rate.
    stated = replace(run.facts, sampling_rate=0.0725, accounted_sampling_rate=0.0725)
    edited = run.with_facts(stated)
    found = diagnosed(edited)["sampling rate"]
    assert found.status is Status.FAIL
    assert found.consequence is Consequence.INVALIDATES
    assert "included at rate 0.079" in found.summary
    claim = ag.PrivacyClaim(epsilon=12.0, delta=1e-5)
    assert ag.audit(run, claim=claim).verdict is not ag.Verdict.INVALID
    assert ag.audit(edited, claim=claim).verdict is ag.Verdict.INVALID


def test_canaries_that_the_declared_scheme_cannot_have_drawn_are_a_finding():
    run = simulate_dpsgd(
        steps=40, sampling_rate=0.5, noise_multiplier=1.0, present=30, absent=30, seed=0
    )
    facts = replace(
        run.facts,
        scheme=MinSeparation(separation=20, rate=0.5),
        sampling="user's sampler",
        poisson=False,
    )
    found = diagnosed(run.with_facts(facts))["sampling scheme"]
    assert found.status is Status.FAIL
    assert "allows (0 to 2)" in found.summary
