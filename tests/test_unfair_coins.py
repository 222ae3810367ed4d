"""Canaries whose coins were not fair: what is left is as if they had been."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, chi2

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError, ScoresError

ERROR, FAMILY = 0.05, 1e-4


def test_given_who_is_kept_coins_are_fair_by_enumeration():
    """All outcomes of three coins and of who is kept: every pattern of the kept is as likely."""
    chances = [Fraction(1, 10), Fraction(1, 2), Fraction(7, 8)]
    weight: dict[tuple[bool, ...], dict[tuple[bool, ...], Fraction]] = {}
    for member in itertools.product((False, True), repeat=3):
        for kept in itertools.product((False, True), repeat=3):
            total = Fraction(1)
            for p, here, stays in zip(chances, member, kept, strict=True):
                keep = min(Fraction(1), (1 - p) / p if here else p / (1 - p))
                total *= (p if here else 1 - p) * (keep if stays else 1 - keep)
            pattern = tuple(x for x, stays in zip(member, kept, strict=True) if stays)
            found = weight.setdefault(kept, {})
            found[pattern] = found.get(pattern, Fraction(0)) + total
    for kept, patterns in weight.items():
        assert len(set(patterns.values())) <= 1, kept
        assert len(patterns) in (0, 2 ** sum(kept)) or not any(patterns.values())


def test_the_code_keeps_as_the_enumeration_does():
    """Counts of present and absent by probability; chi-squared exceeds its limit once in 10,000."""
    rng = np.random.default_rng(0)
    chance = np.repeat([0.05, 0.3, 0.5, 0.9], 4000)
    member = rng.random(chance.size) < chance
    left = ag.CanaryScores(score=rng.normal(size=chance.size), member=member).with_fair_coins(
        chance
    )
    assert left.metadata.fair_coins
    statistic = 0.0
    for p in np.unique(chance):
        here = chance[left.ids] == p
        present = np.count_nonzero(left.member[here])
        each = 4000 * min(p, 1 - p)
        for count in (present, np.count_nonzero(here) - present):
            statistic += (count - each) ** 2 / (each * (1 - each / 4000))
    assert statistic < chi2.isf(FAMILY, 8)


def hard_and_easy(rng, leak=0.0, count=600):
    """Easy records are present more often and score higher, whether or not anything leaks."""
    easy = rng.normal(size=count)
    chance = 0.1 + 0.8 / (1.0 + np.exp(-2.0 * easy))
    member = rng.random(count) < chance
    return ag.CanaryScores(
        score=easy + rng.normal(size=count) + leak * member, member=member
    ), chance


AUDITORS = [ag.GaussianShift(), ag.ClopperPearson(), ag.OneRun()]


@pytest.mark.parametrize("auditor", AUDITORS, ids=lambda auditor: auditor.name)
def test_records_that_differ_are_no_leak(auditor):
    """Nothing leaks, so a bound above 0 is wrong: in one audit of twenty at most."""
    rng = np.random.default_rng(1)
    runs, wrong, naive = 60, 0, 0
    for _ in range(runs):
        scores, chance = hard_and_easy(rng)
        wrong += (
            ag.audit(
                scores.with_fair_coins(chance), delta=1e-5, auditor=auditor, diagnostics=False
            ).epsilon_lower
            > 0.0
        )
        said = scores.with_membership("declared")
        naive += ag.audit(said, delta=1e-5, auditor=auditor, diagnostics=False).epsilon_lower > 0.0
    assert wrong <= binom.isf(FAMILY, runs, ERROR)
    # Without it they are taken for a leak, nearly always.
    assert naive > 0.8 * runs


def test_common_canaries_are_not_guessed_by_how_common_they_are():
    """Randomised response of epsilon 1 about coins of .95; the bound is above 1 in 5 % at most."""
    rng = np.random.default_rng(2)
    keep = np.e / (1.0 + np.e)
    auditor = ag.OneRun(two_sided=False)
    runs, above, naive, bounds = 60, 0, 0, []
    for _ in range(runs):
        member = rng.random(6000) < 0.95
        said = np.where(rng.random(6000) < keep, member, ~member) + 0.01 * rng.random(6000)
        plain = ag.CanaryScores(
            score=said, member=member, metadata=ag.scores.ScoreMetadata(fair_coins=True)
        )
        fair = plain.with_fair_coins(0.95)
        found, wrong = (
            ag.audit(item, delta=0.0, auditor=auditor, diagnostics=False).epsilon_lower
            for item in (fair, plain)
        )
        bounds.append(found)
        above += found > 1.0
        naive += wrong > 1.0
    assert above <= binom.isf(FAMILY, runs, ERROR)
    assert naive > 0.9 * runs
    assert np.mean(bounds) > 0.4


def test_a_leak_is_still_seen():
    scores, chance = hard_and_easy(np.random.default_rng(3), leak=3.0, count=4000)
    claim = ag.PrivacyClaim(epsilon=0.5, delta=1e-5)
    result = ag.audit(scores.with_fair_coins(chance), claim=claim)
    assert result.verdict is ag.Verdict.VIOLATION


def test_the_same_scores_keep_the_same_canaries():
    scores, chance = hard_and_easy(np.random.default_rng(4))
    one, other = scores.with_fair_coins(chance), scores.with_fair_coins(chance)
    assert np.array_equal(one.ids, other.ids)
    assert set(one.ids) < set(range(600))


@pytest.mark.parametrize("chance", [0.0, 1.0, np.nan, [0.5, 0.5], [[0.5] * 600]])
def test_bad_probabilities_are_named(chance):
    scores, _ = hard_and_easy(np.random.default_rng(5))
    with pytest.raises(InvalidArgumentError, match="probability"):
        scores.with_fair_coins(chance)


def test_too_few_left_is_said():
    scores = ag.CanaryScores.from_groups(present=np.arange(30.0), absent=np.arange(30.0))
    with pytest.raises(ScoresError, match="fairer coins"):
        scores.with_fair_coins(1e-9)
