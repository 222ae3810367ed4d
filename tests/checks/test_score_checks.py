"""Checks of scores: valid whatever is known of the law, and each sees what it is for."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.checks.score_shape import score_checks
from askgauss.results import Consequence, Status
from askgauss.simulation import simulate_dpftrl, simulate_scores


def checks(scores, planted=None):
    return {item.check: item for item in score_checks(scores, planted)}


def gaussian(seed=0, present=300, absent=300, shift=1.0, **facts):
    generator = np.random.default_rng(seed)
    return ag.CanaryScores.from_groups(
        present=generator.normal(shift, 1, present), absent=generator.normal(0, 1, absent), **facts
    )


LAWS = [
    # Few sampled steps: present scores are far from Gaussian. Then a law that is nearly one.
    {"steps": 10, "sampling_rate": 0.1, "noise_multiplier": 0.5, "present": 300, "absent": 200},
    {"steps": 50, "sampling_rate": 0.08, "noise_multiplier": 1.0, "present": 400, "absent": 400},
    {"steps": 2500, "sampling_rate": 0.08, "noise_multiplier": 2.6, "present": 60, "absent": 300},
    {"steps": 3, "sampling_rate": 1.0, "noise_multiplier": 0.8, "present": 30, "absent": 250},
    # Hardly any inclusions: what is fitted of the shift is mostly noise.
    {"steps": 1, "sampling_rate": 0.02, "noise_multiplier": 0.67, "present": 2500, "absent": 2500},
    {"steps": 5, "sampling_rate": 0.9, "noise_multiplier": 1.0, "present": 300, "absent": 300},
]


@pytest.mark.calibration
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"T={law['steps']} q={law['sampling_rate']}")
def test_p_values_are_at_most_nominal(law):
    """For each check and level, fails with probability 1e-6 were the p-value uniform."""
    found = defaultdict(list)
    for seed in range(130):
        for name, item in checks(simulate_scores(**law, seed=seed)).items():
            if item.p_value is not None:
                found[name].append(item.p_value)
    assert len(found) >= 3
    for name, values in found.items():
        for level in (0.05, 0.01, 0.001):
            allowed = stats.binom.isf(1e-6, len(values), level)
            assert np.count_nonzero(np.array(values) <= level) <= allowed, (name, level)


def test_sampling_at_an_unknown_rate_is_no_fault():
    """Ten steps at a tenth: skewed and wide present scores, from a run with nothing wrong."""
    known = simulate_scores(
        steps=10, sampling_rate=0.1, noise_multiplier=0.2, present=4000, absent=4000, seed=0
    )
    unknown = ag.CanaryScores.from_groups(present=known.present, absent=known.absent)
    found = checks(unknown)
    assert found["normality of present scores"].p_value < 1e-6
    assert found["equal variance"].p_value < 1e-6
    for item in found.values():
        assert (
            item.consequence is not Consequence.INVALIDATES
            or item.p_value is None
            or (item.p_value > 1e-4)
        )
    assert not [item for item in diagnose(unknown) if item.status is Status.FAIL]


def test_the_exact_law_is_not_taken_for_another_shape():
    law = {"steps": 10, "sampling_rate": 0.1, "noise_multiplier": 0.5}
    scores = simulate_scores(**law, present=40_000, absent=4000, seed=1)
    assert checks(scores)["normality of present scores"].p_value > 1e-3
    # The same scores under the name of a law that is nearly Gaussian.
    other = ag.CanaryScores.from_groups(
        present=scores.present, absent=scores.absent, steps=2500, sampling_rate=0.5
    )
    assert checks(other)["normality of present scores"].p_value < 1e-8


def test_a_rate_that_is_not_the_stated_one_is_seen_in_the_law():
    """Canaries that are in every step, said to be in one of fifty: the bound would be too high."""
    generator = np.random.default_rng(0)
    scores = ag.CanaryScores.from_groups(
        present=generator.normal(0.4, 1, 2500),
        absent=generator.normal(0, 1, 2500),
        steps=1,
        sampling_rate=0.02,
    )
    item = checks(scores)["normality of present scores"]
    assert item.p_value < 1e-6
    assert item.consequence is Consequence.INVALIDATES


def test_very_few_sampled_steps_are_left_to_the_transcript():
    scores = simulate_scores(
        steps=1, sampling_rate=0.5, noise_multiplier=0.4, present=300, absent=300, seed=0
    )
    found = checks(scores)
    assert found["equal variance"].status is Status.NOT_RUN
    assert "transcript" in found["equal variance"].summary
    assert found["normality of present scores"].p_value > 0.5
    never = simulate_scores(
        steps=1, sampling_rate=0.01, noise_multiplier=0.4, present=300, absent=300, seed=0
    )
    assert checks(never)["normality of present scores"].status is Status.NOT_RUN
    run = ag.simulate_dpsgd(
        steps=1, sampling_rate=0.5, noise_multiplier=0.4, present=300, absent=300, seed=0
    )
    found = checks(run.scores(), run.canaries.planted)
    for name in ("normality of present scores", "equal variance"):
        assert found[name].p_value > 1e-3


def test_trees_with_shifts_of_their_own_are_not_flagged():
    run = simulate_dpftrl(
        steps=32, noise_multiplier=0.3, present=300, absent=300, seed=0, release="prefixes"
    )
    scores = run.scores()
    assert scores.relative_shift is not None
    for name, item in checks(scores).items():
        assert item.status is Status.PASS, name
        assert item.p_value is None or item.p_value > 1e-3
    # Without the shifts the same scores are several populations.
    pooled = ag.CanaryScores.from_groups(present=scores.present, absent=scores.absent)
    assert checks(pooled)["equal variance"].p_value < 1e-6


@pytest.mark.parametrize(
    ("present", "absent", "name"),
    [
        (
            lambda g: g.normal(1, 1, 500),
            lambda g: g.standard_t(3, 500),
            "normality of absent scores",
        ),
        (
            lambda g: g.standard_t(2, 500),
            lambda g: g.normal(0, 1, 500),
            "normality of present scores",
        ),
        (lambda g: g.normal(1, 1.4, 500), lambda g: g.normal(0, 1, 500), "equal variance"),
    ],
    ids=["heavy absent", "heavy present", "wide present"],
)
def test_what_is_not_gaussian_is_seen(present, absent, name):
    generator = np.random.default_rng(3)
    scores = ag.CanaryScores.from_groups(
        present=present(generator),
        absent=absent(generator),
        sampling_rate=1.0,
        noise="gaussian",
    )
    item = checks(scores)[name]
    assert item.p_value < 1e-4
    assert item.consequence is Consequence.INVALIDATES
    assert ag.audit(scores, claim=ag.PrivacyClaim(epsilon=20.0, delta=1e-5)).verdict in (
        ag.Verdict.INVALID,
        ag.Verdict.VIOLATION,
    )


def test_drift_along_the_index_is_seen():
    member = np.arange(600) % 2 == 0
    score = np.random.default_rng(1).standard_normal(600) + member
    level = ag.CanaryScores(score=score, member=member)
    assert checks(level)["identical distribution"].p_value > 1e-3
    drifting = ag.CanaryScores(score=score + np.linspace(-1, 1, 600), member=member)
    assert checks(drifting)["identical distribution"].p_value < 1e-9


class TestDuplicates:
    def test_canaries_counted_twice(self):
        scores = gaussian()
        twice = ag.CanaryScores.from_groups(
            present=np.repeat(scores.present, 2), absent=scores.absent
        )
        assert checks(twice)["duplicate scores"].status is Status.FAIL
        assert checks(scores)["duplicate scores"].status is Status.PASS

    def test_single_precision_repeats_by_chance(self):
        """Seven thousand of a million repeat; a claim that one in a thousand may would not do."""
        generator = np.random.default_rng(0)
        values = generator.standard_normal((2, 4_000_000), dtype=np.float32).astype(np.float64)
        scores = ag.CanaryScores.from_groups(present=values[0] + 0.0, absent=values[1])
        item = checks(scores)["duplicate scores"]
        assert item.measured > 100_000
        assert item.p_value > 1e-3

    @pytest.mark.parametrize(
        "rounded",
        [
            lambda values: values.round(2),
            lambda values: values.round(4),
            lambda values: np.rint(20 * values),
            lambda values: np.rint(100 * values) / np.sqrt(7),
            lambda values: values.astype(np.float16).astype(np.float64),
        ],
        ids=["2 decimals", "4 decimals", "integers", "multiples", "half precision"],
    )
    def test_numbers_on_a_grid_repeat_and_are_not_duplicates(self, rounded):
        for seed in range(20):
            scores = gaussian(seed, present=600, absent=600)
            found = checks(
                ag.CanaryScores.from_groups(
                    present=rounded(scores.present), absent=rounded(scores.absent), noise="gaussian"
                )
            )
            item = found["duplicate scores"]
            assert item.p_value is None or item.p_value > 1e-4
            assert item.status is Status.PASS
            assert found["normality of absent scores"].p_value > 1e-5

    @pytest.mark.parametrize("decimals", [3, 4, 6])
    def test_rounded_canaries_counted_twice(self, decimals):
        scores = gaussian(present=600)
        twice = ag.CanaryScores.from_groups(
            present=np.repeat(scores.present.round(decimals), 2),
            absent=scores.absent.round(decimals),
            noise="gaussian",
        )
        (item,) = [item for item in diagnose(twice) if item.check == "duplicate scores"]
        assert item.status is Status.FAIL

    def test_some_without_noise_are_one_value(self):
        """One in a hundred is enough: beside continuous noise nothing is equal by chance."""
        scores = gaussian(present=600, absent=600)
        bare = np.where(np.arange(600) % 100 == 0, 0.0, scores.absent)
        item = checks(
            ag.CanaryScores.from_groups(present=scores.present, absent=bare, noise="gaussian")
        )["duplicate scores"]
        assert item.status is Status.FAIL
        assert "6 scores share their value with others" in item.summary

    def test_clamped_results_need_no_law(self):
        """Clamping is allowed; only a law of continuous noise is doubtful then."""
        generator = np.random.default_rng(0)
        score = np.clip(generator.laplace(size=800) + np.repeat([1.0, 0.0], 400), -1.0, 2.0)
        scores = ag.CanaryScores.from_groups(present=score[:400], absent=score[400:])
        assert checks(scores)["duplicate scores"].undermines is ag.Assumption.GAUSSIAN_SCORES
        result = ag.audit(scores, claim=ag.PrivacyClaim(epsilon=1.0, delta=1e-5))
        assert result.verdict is ag.Verdict.INCONCLUSIVE

    def test_a_handful_of_values_says_nothing(self):
        coins = np.random.default_rng(0).integers(0, 2, 200).astype(float)
        scores = ag.CanaryScores.from_groups(present=coins[:100], absent=coins[100:])
        assert checks(scores)["duplicate scores"].status is Status.NOT_RUN


def test_too_few_scores_are_said_to_be_too_few():
    found = checks(gaussian(present=4, absent=4))
    for name in ("normality of absent scores", "equal variance", "identical distribution"):
        assert found[name].status is Status.NOT_RUN
