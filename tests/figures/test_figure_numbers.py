from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

import askgauss as ag
from askgauss import accounting
from askgauss.figures.leak_figures import (
    EpsilonAxis,
    EpsilonByCanaries,
    EpsilonBySteps,
    TradeOffCurves,
)
from askgauss.figures.run_figures import GramMatrix, NoiseByStep, NoiseByTensor, NoiseShape
from askgauss.figures.score_figures import (
    Convergence,
    GaussianDistance,
    ScoreDensity,
    ScoreHistogram,
)
from askgauss.figures.style import NothingToDrawError
from askgauss.figures.summary import summarise
from askgauss.results import OtherBound
from askgauss.scores import ScoreMetadata
from askgauss.simulation import FAULTS, simulate_dpftrl, simulate_dpsgd, simulate_scores
from askgauss.stats import normality
from askgauss.stats.gaussian import gdp_mu
from askgauss.stats.tradeoff import TradeOff

DELTA = 1e-5
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=DELTA)
FREE = OtherBound(auditor=ag.OneRun(), evidence=None, epsilon_lower=1.25)


def ideal_scores(count, *, steps=2500, rate=0.0819, noise=2.6):
    """Scores at the quantiles of their laws: no chance in them."""
    quantiles = ndtri((np.arange(count) + 0.5) / count)
    spread = math.sqrt(noise**2 + rate * (1 - rate))
    return ag.CanaryScores.from_groups(
        present=math.sqrt(steps) * rate + spread * quantiles,
        absent=noise * quantiles,
        steps=steps,
        sampling_rate=rate,
        noise_multiplier=noise,
        clip_norm=1.0,
    )


def audited(data, **options):
    return ag.audit(data, **({"claim": CLAIM} | options))


def transcript(**changes):
    run = {"steps": 100, "sampling_rate": 0.2, "noise_multiplier": 1.5, "present": 100}
    return simulate_dpsgd(**(run | {"absent": 100, "seed": 0} | changes))


# --- the leak ------------------------------------------------------------------------------------


def test_more_canaries_show_what_more_canaries_show():
    curve = EpsilonByCanaries.from_result(audited(ideal_scores(1000)))
    assert curve.here == 2000
    here = np.flatnonzero(curve.sizes == curve.here)
    assert curve.lower[here] == pytest.approx(curve.bound)
    assert (np.diff(curve.lower) > 0).all()
    for count in (250, 4000):
        place = np.flatnonzero(curve.sizes == 2 * count)
        bound = audited(ideal_scores(count)).epsilon_lower
        assert curve.lower[place] == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("auditor", [ag.GaussianShift(), ag.GaussianRectangle()])
def test_more_steps_show_what_more_steps_show(auditor):
    curve = EpsilonBySteps.from_result(audited(ideal_scores(1000, steps=1000), auditor=auditor))
    here = np.flatnonzero(curve.sizes == 1000)
    assert curve.lower[here] == pytest.approx(curve.bound)
    for steps in (250, 4000):
        place = np.flatnonzero(curve.sizes == steps)
        longer = audited(ideal_scores(1000, steps=steps), auditor=auditor)
        assert curve.lower[place] == pytest.approx(longer.epsilon_lower, rel=0.01)


@pytest.mark.parametrize("counts_only", [False, True])
def test_a_transcript_of_other_sizes(counts_only):
    """Against real runs of those sizes, whose bounds vary by about 3 %."""
    auditor = ag.SubsampledGaussian(counts_only=counts_only)
    result = audited(transcript(), auditor=auditor)
    by_steps, by_canaries = (
        EpsilonBySteps.from_result(result),
        EpsilonByCanaries.from_result(result),
    )
    for curve in (by_steps, by_canaries):
        here = np.flatnonzero(curve.sizes == curve.here)
        assert curve.lower[here] == pytest.approx(result.epsilon_lower, rel=1e-6)
    longer = audited(transcript(steps=400), auditor=auditor).epsilon_lower
    assert by_steps.lower[by_steps.sizes == 400] == pytest.approx(longer, rel=0.15)
    more = audited(transcript(present=400, absent=400), auditor=auditor).epsilon_lower
    assert by_canaries.lower[by_canaries.sizes == 800] == pytest.approx(more, rel=0.15)


def test_a_projection_never_passes_the_estimate_it_was_scaled_from():
    """What a small tensor shows by chance must not become certain with more canaries."""
    for seed in range(4):
        canaries = ag.DiracCanaries(present=160, absent=400, tensors=[100] * 16, seed=seed)
        recorder = ag.Recorder(canaries, sampling_rate=0.1, clip_norm=1.0, noise_multiplier=1.0)
        rng = np.random.default_rng([7, seed])
        for _ in range(40):
            noisy = rng.normal(size=canaries.size)
            noisy[recorder.sample()] += 1.0
            recorder.observe(noisy, background=0.0)
        result = audited(recorder.transcript())
        for curve in (EpsilonByCanaries.from_result(result), EpsilonBySteps.from_result(result)):
            assert (curve.lower <= curve.point).all()
        by_canaries = EpsilonByCanaries.from_result(result)
        assert by_canaries.lower.max() <= result.epsilon_point


def test_methods_without_a_law_say_so():
    scores = simulate_scores(
        steps=500, sampling_rate=0.5, noise_multiplier=5.0, present=400, absent=400, seed=0
    )
    result = audited(scores, auditor=ag.OneRun())
    for kind in (EpsilonByCanaries, EpsilonBySteps):
        with pytest.raises(NothingToDrawError, match="one-run"):
            kind.from_result(result)


def test_correlated_noise_is_not_taken_for_many_steps():
    run = simulate_dpftrl(
        steps=16, noise_multiplier=3.0, present=60, absent=60, seed=0, release="nodes"
    )
    for data in (run, run.scores()):
        result = audited(data)
        for kind in (EpsilonBySteps, Convergence):
            with pytest.raises(NothingToDrawError):
                kind.from_result(result)
        assert ScoreHistogram.from_result(result).present_law is None


TRUTHS = [(500, 0.08, 1.2), (2500, 0.0819, 2.6), (100, 1.0, 20.0), (30, 0.5, 0.9)]


@pytest.mark.parametrize(("steps", "rate", "noise"), TRUTHS)
@pytest.mark.parametrize("auditor", [ag.GaussianShift(), ag.SubsampledGaussian()])
def test_what_an_attacker_can_do_at_least_is_not_more_than_he_can(steps, rate, noise, auditor):
    """The truth is the mechanism's; bounds exceed it in at most 5 % of runs, not in this one."""
    run = simulate_dpsgd(
        steps=steps, sampling_rate=rate, noise_multiplier=noise, present=500, absent=500, seed=1
    )
    result = ag.audit(run, delta=DELTA, auditor=auditor)
    exact = accounting.dpsgd_epsilon(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=DELTA
    )
    assert result.epsilon_lower < exact  # else there is nothing to compare
    curves = TradeOffCurves.from_result(result)
    truth = accounting.dpsgd_tradeoff(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    meaning = curves.meaning
    assert 0.5 * truth.advantage() < meaning.advantage[1] <= truth.advantage()
    assert 0.0 < meaning.true_positives[1] <= 1.0 - truth.beta_at(0.01)
    # The drawn curve may be off by what a picture does not show.
    assert (curves.measured >= truth.beta_at(curves.alpha) - 0.004).all()


def test_rates_are_as_high_as_the_bounds_allow():
    """Where the bound is a Gaussian shift, its rates are known in closed form."""
    scores = ag.CanaryScores.from_groups(
        present=1.5 + ndtri((np.arange(2000) + 0.5) / 2000),
        absent=ndtri((np.arange(2000) + 0.5) / 2000),
        steps=10,
        sampling_rate=1.0,
    )
    result = ag.audit(scores, delta=DELTA)
    mu = ag.gaussian.gdp_mu(result.epsilon_lower, DELTA)
    exact = TradeOff.gaussian(mu)
    meaning = TradeOffCurves.from_result(result).meaning
    assert 0.99 * exact.advantage() < meaning.advantage[1] <= exact.advantage()
    power = 1.0 - exact.beta_at(0.01)
    assert 0.95 * power < meaning.true_positives[1] <= power
    assert meaning.belief[1] == pytest.approx(1.0 / (1.0 + math.exp(-result.epsilon_lower)))


def test_claimed_rates_come_from_the_mechanism_where_it_is_described():
    scores = ideal_scores(500)
    plain = TradeOffCurves.from_result(audited(scores)).meaning
    # Measured by a Gaussian method, the claim is read as a Gaussian mechanism as well.
    mu = gdp_mu(8.0, DELTA)
    assert plain.advantage[0] == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-4)
    assert plain.from_gaussian
    assert not plain.from_mechanism
    counted = TradeOffCurves.from_result(audited(scores, auditor=ag.OneRun())).meaning
    assert counted.advantage[0] == pytest.approx(
        ((math.exp(8) - 1) + 2 * DELTA) / (math.exp(8) + 1), rel=1e-6
    )
    described = dataclasses.replace(CLAIM, noise_multiplier=2.6, sampling_rate=0.0819, steps=2500)
    meaning = TradeOffCurves.from_result(audited(scores, claim=described)).meaning
    assert meaning.from_mechanism
    assert meaning.advantage[1] < meaning.advantage[0] < 0.7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": ag.Verdict.INVALID}, "assumption"),
        ({"epsilon_lower": math.inf}, "No finite"),
        ({"epsilon_lower": 0.0}, "The bound is 0"),
    ],
)
def test_no_curve_without_a_bound_to_stand_on(change, words):
    curves = TradeOffCurves.from_result(dataclasses.replace(audited(ideal_scores(200)), **change))
    assert curves.measured is None
    assert words in curves.missing
    assert curves.meaning.advantage[1] is curves.meaning.true_positives[1] is None


def test_no_curve_where_the_method_does_not_vouch_for_it():
    scores = ideal_scores(200)
    known = {"noise": "gaussian", "membership": "randomised"}
    for facts, words in (
        (known, "sampling rate"),
        ({"membership": "randomised"}, "at one delta"),
    ):
        bare = dataclasses.replace(scores, metadata=ScoreMetadata(**facts))
        curves = TradeOffCurves.from_result(audited(bare))
        assert words in curves.missing
        assert curves.meaning.advantage[1] is None
        assert curves.observed is not None


def test_observed_points_are_thresholds_on_the_scores():
    scores = ideal_scores(500)
    result = audited(scores)
    table = ScoreHistogram.from_result(result)
    false_positives, false_negatives = TradeOffCurves.from_result(result).observed
    edges = np.linspace(table.edges[0], table.edges[-1], 65)[1:-1]
    # What is published are cells that eight scores share, at the ends up to twice as many.
    for cut, alpha, beta in zip(edges, false_positives, false_negatives, strict=True):
        assert alpha == pytest.approx(np.mean(scores.absent >= cut), abs=16 / 500)
        assert beta == pytest.approx(np.mean(scores.present < cut), abs=16 / 500)


def test_the_axis_lists_the_deciding_bound_first():
    result = dataclasses.replace(audited(ideal_scores(200)), distribution_free=FREE)
    axis = EpsilonAxis.from_result(result)
    assert [bound.name for bound in axis.bounds] == ["gaussian-shift", "without assumptions"]
    assert axis.bounds[0].lower == result.epsilon_lower
    assert not axis.bounds[0].usable
    assert axis.bounds[1].lower == 1.25
    assert axis.claimed == 8.0


# --- the scores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 1000, 5000])
def test_densities_integrate_to_one(count):
    curves = ScoreHistogram.from_result(audited(ideal_scores(count)))
    widths = np.diff(curves.edges)
    for density in (curves.present, curves.absent):
        assert (density * widths).sum() == pytest.approx(1.0, abs=1e-3)
    step = curves.x[1] - curves.x[0]
    for curve in (curves.present_fit, curves.absent_fit, curves.present_law, curves.absent_law):
        assert curve.sum() * step == pytest.approx(1.0, abs=0.02)


def test_the_law_is_that_of_the_claim():
    result = audited(ideal_scores(500), claim=dataclasses.replace(CLAIM, noise_multiplier=5.2))
    curves = ScoreHistogram.from_result(result)
    assert curves.absent_fit.max() == pytest.approx(2 * curves.absent_law.max(), rel=0.02)


def test_the_band_is_the_one_of_as_many_values():
    result = audited(ideal_scores(2000))
    curves = GaussianDistance.from_result(result)
    _, difference, band = normality.pit_ecdf(ideal_scores(2000).absent)
    np.testing.assert_allclose(curves.absent_band, band, rtol=1e-12)
    np.testing.assert_allclose(curves.absent, difference, atol=1e-4)
    assert (np.abs(curves.absent) < curves.absent_band).all()


def test_heavy_tails_leave_the_band():
    generator = np.random.default_rng(0)
    scores = ag.CanaryScores.from_groups(
        present=generator.standard_t(3, 1500) + 1.6, absent=generator.standard_t(3, 1500)
    )
    curves = GaussianDistance.from_result(audited(scores))
    assert (np.abs(curves.absent) > curves.absent_band).any()


def test_density_by_index_keeps_every_canary():
    shown = ScoreDensity.from_result(audited(ideal_scores(500)))
    assert shown.count.sum() == pytest.approx(1000, rel=1e-4)
    assert shown.x.max() == 1000


def test_convergence_is_that_of_the_law():
    shown = Convergence.from_result(audited(ideal_scores(200)))
    assert shown.here == shown.steps[-1] == 2500
    law = ag.ScoreLaw(steps=2500, sampling_rate=0.0819, noise_multiplier=2.6, clip_norm=1.0)
    assert shown.exact[-1] == pytest.approx(law.kolmogorov_distance())
    assert (np.diff(shown.exact) < 0).all()


def test_nothing_of_the_scores_without_diagnostics():
    result = audited(ideal_scores(200), diagnostics=False)
    for kind in (ScoreHistogram, GaussianDistance, ScoreDensity):
        with pytest.raises(NothingToDrawError, match="no summary"):
            kind.from_result(result)


def test_few_scores_have_no_band():
    with pytest.raises(NothingToDrawError, match="needs 50 canaries"):
        GaussianDistance.from_result(audited(ideal_scores(20)))


# --- the noise -----------------------------------------------------------------------------------


def test_noise_stands_next_to_what_was_claimed():
    described = dataclasses.replace(CLAIM, noise_multiplier=9.0)
    result = audited(transcript(), claim=described)
    assert set(NoiseByStep.from_result(result).claimed) == {9.0}
    assert NoiseByTensor.from_result(result).claimed == 9.0
    own = audited(transcript())
    assert set(NoiseByStep.from_result(own).claimed) == {1.5}
    assert NoiseByTensor.from_result(own).claimed == 1.5


def test_the_gram_matrix_is_whole_and_within_chance():
    """Of 2016 cosines the largest exceeds what is given as chance in about one run in ten."""
    shown = GramMatrix.from_result(audited(transcript(steps=300)))
    assert shown.cosines.shape == (64, 64)
    np.testing.assert_array_equal(shown.cosines, shown.cosines.T)
    np.testing.assert_array_equal(np.diag(shown.cosines), 1.0)
    assert shown.largest < 1.5 * shown.chance
    assert shown.chance == pytest.approx(math.sqrt(2 * math.log(2 * 2016) / 300))


def test_the_shape_of_the_noise_is_counted_beside_a_gaussian():
    sound = NoiseShape.from_result(audited(transcript()))
    assert sound.share.sum() == pytest.approx(1.0)
    assert sound.gaussian.sum() == pytest.approx(1.0)
    assert sound.gaussian == pytest.approx(
        np.diff(stats.norm.cdf([-np.inf, *sound.edges[1:-1], np.inf]))
    )
    # A bin of share p strays by more than 5 of its deviations in fewer than one run of 30,000.
    strays = np.abs(sound.share - sound.gaussian) / np.sqrt(sound.gaussian / sound.values)
    assert strays[sound.gaussian * sound.values > 50].max() < 5.0
    heavy = NoiseShape.from_result(audited(transcript(fault=FAULTS["laplace-noise"])))
    middle = np.abs(heavy.edges[:-1] + 0.125) < 0.25
    tail = np.abs(heavy.edges[:-1] + 0.125) > 3.5
    for part in (middle, tail):  # a Laplace law has more in the middle and further out
        assert heavy.share[part].sum() > 1.3 * heavy.gaussian[part].sum()


def test_the_shape_is_that_of_each_tensor_by_its_own_scale():
    run = transcript(canaries="spread")
    scale = np.array([1.0, 40.0, 1.0, 40.0])[run.watch_tensor]
    uneven = dataclasses.replace(run, watch_values=run.watch_values * scale)
    # Of tensors 1 to 3 everything is watched: their scales change nothing.
    assert np.array_equal(summarise(uneven).shape.counts, summarise(run).shape.counts)
    unknown = dataclasses.replace(run.facts, background="unknown")
    assert summarise(run.with_facts(unknown)).shape is None


def test_scores_do_not_tell_of_steps():
    result = audited(
        ag.CanaryScores.from_groups(
            present=ideal_scores(100).present, absent=ideal_scores(100).absent
        )
    )
    for kind in (NoiseByStep, NoiseByTensor, NoiseShape, GramMatrix):
        with pytest.raises(NothingToDrawError, match="transcript"):
            kind.from_result(result)
    for kind in (Convergence, EpsilonBySteps):
        with pytest.raises(NothingToDrawError):
            kind.from_result(result)


def test_metadata_of_scores_reaches_the_summary():
    scores = ideal_scores(100)
    assert scores.metadata == ScoreMetadata(
        steps=2500, sampling_rate=0.0819, noise_multiplier=2.6, clip_norm=1.0
    )
    assert audited(scores).summary.run.steps == 2500
