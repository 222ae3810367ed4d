from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.canaries import DiracCanaries, Stream, random_stream
from askgauss.exceptions import InvalidArgumentError
from askgauss.simulation import simulate_dpsgd, simulate_scores

# Few steps and little noise: the law is four humps, far from any Gaussian. Then many steps.
SETTINGS = [
    {"steps": 3, "sampling_rate": 0.4, "noise_multiplier": 0.05},
    {"steps": 40, "sampling_rate": 0.1, "noise_multiplier": 1.0},
    {"steps": 7, "sampling_rate": 1.0, "noise_multiplier": 2.0},
]


def by_transcript(**options):
    return simulate_dpsgd(**options).scores()


@pytest.mark.parametrize("simulate", [by_transcript, simulate_scores])
@pytest.mark.parametrize("setting", SETTINGS)
def test_scores_follow_the_exact_law(simulate, setting):
    """Kolmogorov-Smirnov at p < 1e-6 for each group, moments at 5 standard errors.

    A correct implementation fails one of these 6 cases with probability 3e-5 in all.
    """
    scores = simulate(**setting, present=6000, absent=6000, seed=17)
    law = ag.ScoreLaw(**setting)
    noise = setting["noise_multiplier"]
    assert stats.kstest(scores.present, law.cdf).pvalue > 1e-6
    assert stats.kstest(scores.absent, stats.norm(scale=noise).cdf).pvalue > 1e-6
    present, absent = scores.moments()
    for moments, mean, variance, kurtosis in (
        (present, law.mean, law.variance, law.excess_kurtosis),
        (absent, 0.0, law.absent_variance, 0.0),
    ):
        assert abs(moments.mean - mean) < 5 * np.sqrt(variance / 6000)
        spread = variance * np.sqrt((kurtosis + 2) / 6000)
        assert abs(moments.variance - variance) < 5 * spread


def test_the_law_test_can_tell_the_gaussian_from_the_exact_law():
    scores = simulate_scores(**SETTINGS[0], present=6000, absent=2, seed=17)
    law = ag.ScoreLaw(**SETTINGS[0])
    assert stats.kstest(scores.present, law.gaussian_cdf).pvalue < 1e-20


def test_a_simulated_run_is_its_streams_added_up():
    """The whole matrix of steps and canaries, from the same named streams."""
    steps, rate, noise, seed = 50, 0.3, 1.7, 23
    transcript = simulate_dpsgd(
        steps=steps, sampling_rate=rate, noise_multiplier=noise, present=30, absent=20, seed=seed
    )
    canaries = DiracCanaries(present=30, absent=20, dimension=82, seed=seed)
    vectors = noise * random_stream(seed, Stream.NOISE).standard_normal((steps, 82))
    coins = random_stream(seed, Stream.PLANTING).random((steps, 30)) < rate
    planted = np.zeros((steps, 50), dtype=bool)
    planted[:, canaries.member] = coins
    values = vectors[:, canaries.coordinates] + planted
    np.testing.assert_array_equal(transcript.member, canaries.member)
    np.testing.assert_array_equal(transcript.canaries.planted, planted.sum(axis=0))
    np.testing.assert_allclose(transcript.canaries.total, values.sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(transcript.canaries.square, (values**2).sum(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(transcript.watch_values, vectors[:, canaries.watch])
    np.testing.assert_array_equal(transcript.kept_values, values)
    assert transcript.facts.background == "known"
    assert transcript.facts.sampling == "own coin"
    assert transcript.facts.sampling_rate == rate
    assert transcript.facts.noise_multiplier == noise


def test_what_a_step_shows_is_the_noise_and_the_planting():
    """Means and variances of single observations at 5 standard errors: fails with 3e-6.

    Planted ones have mean 1, the others 0, and all of them the variance of the noise; the products
    of neighbouring steps have mean 0 and variance sigma^4.
    """
    noise, steps = 1.5, 200
    transcript = simulate_dpsgd(
        steps=steps, sampling_rate=0.2, noise_multiplier=noise, present=300, absent=300, seed=3
    )
    sums, everything = transcript.canaries, 600 * steps
    planted = int(sums.planted.sum())
    others = everything - planted
    assert abs(planted - 300 * steps * 0.2) < 5 * np.sqrt(300 * steps * 0.16)
    for count, mean, total, square in (
        (planted, 1.0, sums.planted_total.sum(), sums.planted_square.sum()),
        (others, 0.0, transcript.steps.total.sum(), transcript.steps.square.sum()),
    ):
        assert abs(total / count - mean) < 5 * noise / np.sqrt(count)
        variance = square / count - 2 * mean * total / count + mean**2
        assert abs(variance - noise**2) < 5 * noise**2 * np.sqrt(2 / count)
    assert abs(sums.lag.sum()) < 5 * noise**2 * np.sqrt(everything)


def test_planting_counts_are_binomial():
    """Chi-squared over the counts 0 to 5 and above; fails with probability 1e-6."""
    transcript = simulate_dpsgd(
        steps=25, sampling_rate=0.12, noise_multiplier=1.0, present=4000, absent=2, seed=5
    )
    counts = transcript.canaries.planted
    assert not counts[~transcript.member].any()
    observed = np.bincount(np.minimum(counts[transcript.member], 6), minlength=7)
    expected = stats.binom.pmf(np.arange(7), 25, 0.12)
    expected[-1] = stats.binom.sf(5, 25, 0.12)
    assert stats.chisquare(observed, 4000 * expected).pvalue > 1e-6


def test_a_seed_is_a_run():
    setting = SETTINGS[1] | {"present": 20, "absent": 20}
    for simulate in (by_transcript, simulate_scores):
        one, same, other = (simulate(**setting, seed=seed).score for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert (one != other).all()


def test_scores_can_be_drawn_from_a_generator_one_audit_after_the_other():
    generator = np.random.default_rng(0)
    setting = SETTINGS[1] | {"present": 20, "absent": 20, "seed": generator}
    assert (simulate_scores(**setting).score != simulate_scores(**setting).score).all()


@pytest.mark.parametrize("simulate", [by_transcript, simulate_scores])
def test_without_noise_the_scores_are_counts(simulate):
    setting = {"steps": 9, "sampling_rate": 0.5, "noise_multiplier": 0.0}
    scores = simulate(**setting, present=50, absent=50, seed=0)
    assert not scores.absent.any()
    counts = scores.present * 3
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-12)
    assert 0 <= counts.min() < counts.max() <= 9


@pytest.mark.parametrize("simulate", [by_transcript, simulate_scores])
def test_the_metadata_say_what_was_simulated(simulate):
    metadata = simulate(**SETTINGS[1], present=5, absent=6, seed=0).metadata
    assert (metadata.steps, metadata.sampling_rate) == (40, 0.1)
    assert (metadata.noise_multiplier, metadata.clip_norm) == (1.0, 1.0)
    assert metadata.background == "known"


@pytest.mark.parametrize("simulate", [simulate_dpsgd, simulate_scores])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"steps .*got 0"),
        ({"steps": 2.5}, r"steps .*got 2\.5"),
        ({"sampling_rate": 0.0}, r"sampling_rate in \(0, 1\], got 0\.0"),
        ({"sampling_rate": 1.01}, r"sampling_rate in \(0, 1\], got 1\.01"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier >= 0 and finite, got -1\.0"),
        ({"noise_multiplier": np.nan}, r"noise_multiplier >= 0 and finite, got nan"),
        ({"present": 0}, r"present .*got 0"),
        ({"absent": 1}, r"absent .*got 1"),
    ],
)
def test_bad_arguments_are_named(simulate, change, message):
    good = SETTINGS[1] | {"present": 5, "absent": 5, "seed": 0}
    with pytest.raises(InvalidArgumentError, match=message):
        simulate(**good | change)
