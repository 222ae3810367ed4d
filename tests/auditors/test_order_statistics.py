from __future__ import annotations

import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily, SubsampledFamily
from askgauss.auditors.guessing import accuracies
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats.gaussian import gdp_mu

FAIR = ScoreMetadata(fair_coins=True)


def one_step(canaries, shift, rate, seed):
    generator = np.random.default_rng(seed)
    member = generator.random(canaries) < 0.5
    planted = member & (generator.random(canaries) < rate)
    score = generator.standard_normal(canaries) + shift * planted
    return CanaryScores(score=score, member=member, metadata=FAIR)


def test_what_it_says_it_assumes():
    """Independence always; the mechanism's curve too, unless the family is free of one."""
    assert ag.OrderStatistics(family=EpsilonDeltaFamily()).assumption is (
        ag.Assumption.INDEPENDENT_CANARIES
    )
    assert ag.OrderStatistics().assumption is ag.Assumption.INDEPENDENT_FAMILY


@pytest.mark.parametrize("rate", [None, 0.3])
def test_p_value_and_bound_agree_under_sampling(rate):
    scores = one_step(2000, 3.0, 1.0 if rate is None else rate, seed=0)
    auditor = ag.OrderStatistics(
        sampling_rate=rate, two_sided=rate is None, selection=ag.Fixed(fraction=0.1)
    )
    result = ag.audit(scores, delta=1e-5, auditor=auditor, diagnostics=False)
    assert result.epsilon_lower > 1.0
    assert result.p_value(epsilon=result.epsilon_lower) == pytest.approx(0.05, rel=1e-4)


def test_a_delta_beyond_the_sampling_rate_excuses_everything():
    scores = one_step(2000, 3.0, 0.3, seed=0)
    result = ag.audit(
        scores, delta=0.4, auditor=ag.OrderStatistics(sampling_rate=0.3), diagnostics=False
    )
    assert result.epsilon_lower == 0.0
    assert result.p_value(epsilon=0.5) == 1.0


def test_known_sampling_gives_the_tail_that_sampling_has():
    """Read as never sampled, the same guesses would stand for a smaller epsilon."""
    scores = one_step(20_000, 4.0, 0.2, seed=1)
    options = {"two_sided": False, "selection": ag.Fixed(fraction=0.05)}
    known = ag.audit(
        scores,
        delta=1e-5,
        auditor=ag.OrderStatistics(sampling_rate=0.2, **options),
        diagnostics=False,
    )
    truth = np.log1p(0.2 * np.expm1(ag.gaussian.gdp_epsilon(1e-5 / 0.2, 4.0)))
    assert 0.7 * truth < known.epsilon_lower <= truth


def test_guesses_that_no_noise_explains_are_not_a_bound():
    """Every canary is in the score, and the auditor is told only a tenth are."""
    scores = one_step(500, 5.0, 1.0, seed=0)
    result = ag.audit(
        scores,
        claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5),
        auditor=ag.OrderStatistics(sampling_rate=0.1),
        diagnostics=False,
    )
    assert result.epsilon_lower == np.inf
    assert result.verdict is ag.Verdict.INVALID
    assert "sampled at rate 0.1" in result.reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"selection": ag.Fixed(threshold=1.0)}, UnsupportedError, "not of those beyond a thresh"),
        ({"family": SubsampledFamily()}, UnsupportedError, "whole sampled run"),
        ({"sampling_rate": 0.0}, InvalidArgumentError, "sampling_rate"),
        (
            {"family": EpsilonDeltaFamily(), "sampling_rate": 0.5},
            InvalidArgumentError,
            "no sampling_rate with EpsilonDeltaFamily",
        ),
    ],
)
def test_what_it_refuses(options, error, message):
    with pytest.raises(error, match=message):
        ag.OrderStatistics(**options)


@pytest.mark.parametrize("two_sided", [True, False])
def test_expected_accuracies_are_those_of_draws(two_sided):
    generator = np.random.default_rng(4)
    member = generator.random(400_000) < 0.5
    order = np.argsort(generator.standard_normal(member.size) + 1.5 * member)
    ordered, fraction = member[order], np.array([0.01, 0.2, 0.6])
    expected = accuracies(1.5, fraction, two_sided)
    for share, value in zip(fraction, expected, strict=True):
        high = round(share * member.size * (0.5 if two_sided else 1.0))
        right = [ordered[-high:], ~ordered[:high]] if two_sided else [ordered[-high:]]
        found = np.concatenate(right)
        assert found.mean() == pytest.approx(value, abs=5 * math.sqrt(0.25 / found.size))


def test_the_number_of_guesses_hardly_depends_on_luck():
    """Audits of one size choose alike: at 1,200 a side their power was between .09 and .96."""
    auditor, shift = ag.OrderStatistics(), gdp_mu(8.0, 1e-5)
    guesses = []
    for seed in range(12):
        draw = np.random.default_rng(seed)
        scores = ag.CanaryScores.from_groups(
            present=draw.normal(shift, 1.0, 1200), absent=draw.normal(size=1200)
        )
        trial = auditor.gather(scores, delta=1e-5, confidence=0.95).trial
        guesses.append(trial.guesses / trial.canaries)
    assert max(guesses) < 1.6 * min(guesses)
