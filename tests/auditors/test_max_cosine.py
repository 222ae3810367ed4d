from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

import askgauss as ag
from askgauss.auditors.max_cosine import _cosine_tails, cosine_epsilon
from askgauss.exceptions import InvalidArgumentError, NotDefinedError, ScoresError


def cosines(present, absent, dimension, noise, seed):
    """Cosines of canary directions with the sum of the present ones and noise."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((present + absent, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    released = directions[:present].sum(axis=0) + noise * generator.standard_normal(dimension)
    score = directions @ released / np.linalg.norm(released)
    return ag.CanaryScores.from_groups(present=score[:present], absent=score[present:])


class TestNull:
    @pytest.mark.parametrize("dimension", [2, 3, 10, 500])
    def test_tails_are_integrals_of_the_density(self, dimension):
        log_scale = math.lgamma(dimension / 2) - math.lgamma((dimension - 1) / 2)
        scale = math.exp(log_scale) / math.sqrt(math.pi)
        for threshold in (-0.9, -0.05, 0.0, 0.1, 0.3):
            expected, _ = integrate.quad(
                lambda angle: scale * math.sin(angle) ** (dimension - 2),
                0,
                math.acos(threshold),
                epsabs=1e-14,
            )
            upper, lower = _cosine_tails(np.array([threshold]), dimension)
            assert upper[0] == pytest.approx(expected, rel=1e-8, abs=1e-12)
            assert lower[0] == pytest.approx(1 - expected, rel=1e-8, abs=1e-12)

    def test_random_directions_follow_it(self):
        generator = np.random.default_rng(0)
        vectors = generator.standard_normal((4000, 7))
        sample = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
        p_value = stats.kstest(sample, lambda t: _cosine_tails(np.asarray(t), 7)[1]).pvalue
        assert p_value > 1e-3


class TestEstimate:
    def test_published_examples(self):
        """At delta .01, one standard deviation apart, in 200 and in 2000 dimensions."""
        sigma = 200**-0.5
        assert cosine_epsilon(sigma, sigma, dimension=200, delta=1e-2) == pytest.approx(
            2.375326, abs=1e-5
        )
        sigma = 2000**-0.5
        assert ag.gaussian.epsilon(1e-2, 0.0, sigma, sigma, sigma) == pytest.approx(
            2.317789, abs=1e-6
        )

    @pytest.mark.parametrize(
        ("dimension", "mean", "deviation"),
        [(2, 0.1, 0.2), (3, 0.3, 0.2), (20, 0.18, 0.2), (300, 0.1, 0.05), (300, -0.1, 0.07)],
    )
    def test_no_threshold_shows_more(self, dimension, mean, deviation):
        """A fine grid of thresholds, both ways round and both orders."""
        delta = 1e-3
        found = cosine_epsilon(mean, deviation, dimension=dimension, delta=delta)
        grid = np.linspace(-1, 1, 200_001)[1:-1]
        upper, lower = _cosine_tails(grid, dimension)
        above, below = stats.norm.sf(grid, mean, deviation), stats.norm.cdf(grid, mean, deviation)
        best = 0.0
        for power, cost in ((above, upper), (below, lower), (upper, above), (lower, below)):
            useful = (power > delta) & (cost > 0)
            best = max(best, float(np.log((power[useful] - delta) / cost[useful]).max()))
        assert found == pytest.approx(best, abs=1e-4)

    def test_a_cosine_that_cannot_be_is_unbounded(self):
        assert cosine_epsilon(0.99, 0.1, dimension=5, delta=1e-3) == math.inf

    @pytest.mark.parametrize(("dimension", "present"), [(900, 90), (4000, 400)])
    def test_it_finds_the_noise(self, dimension, present):
        """Roughly, with few canaries among many dimensions: free variances push it upwards."""
        estimates = []
        for seed in range(5):
            scores = cosines(present, present, dimension, noise=1.0, seed=seed)
            result = ag.audit(
                scores, delta=1e-5, auditor=ag.MaxCosine(dimension=dimension), diagnostics=False
            )
            estimates.append(result.epsilon_point)
        truth = ag.gaussian.gdp_epsilon(1e-5, 1.0)
        assert np.mean(estimates) == pytest.approx(truth, rel=0.25)

    def test_maxima_are_fitted_on_both_sides(self):
        generator = np.random.default_rng(0)
        scores = ag.CanaryScores.from_groups(
            present=generator.normal(4, 1, 500), absent=generator.normal(3, 1, 500)
        )
        result = ag.audit(scores, delta=1e-5, auditor=ag.MaxCosine())
        present, absent = scores.moments()
        expected = ag.gaussian.epsilon(
            1e-5, absent.mean, absent.standard_deviation, present.mean, present.standard_deviation
        )
        assert result.epsilon_point == pytest.approx(expected)


def test_it_never_gives_a_verdict():
    scores = cosines(100, 100, 2000, noise=0.1, seed=0)
    claim = ag.PrivacyClaim(epsilon=0.1, delta=1e-5)
    result = ag.audit(scores, claim=claim, auditor=ag.MaxCosine(dimension=2000))
    assert result.verdict is None
    assert result.epsilon_lower == 0.0
    assert result.assumption is ag.Assumption.ESTIMATE
    assert "an estimate is not a bound" in str(result)
    with pytest.raises(NotDefinedError):
        result.p_value(epsilon=1.0)
    assert ag.AuditResult.from_json(result.to_json()) == result


def test_what_it_refuses():
    with pytest.raises(InvalidArgumentError, match="dimension"):
        ag.MaxCosine(dimension=1)
    large = ag.CanaryScores.from_groups(present=[1.5, 0.2, 0.3], absent=[0.0, 0.1, 0.2])
    with pytest.raises(ScoresError, match=r"cosines.*1\.5"):
        ag.audit(large, delta=1e-5, auditor=ag.MaxCosine(dimension=10))
    flat = ag.CanaryScores.from_groups(present=[0.5, 0.5, 0.5], absent=[0.0, 0.1, 0.2])
    with pytest.raises(ScoresError, match="vary"):
        ag.audit(flat, delta=1e-5, auditor=ag.MaxCosine())
