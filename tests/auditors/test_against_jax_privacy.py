"""The same counts, the same answers as jax-privacy 2.0.0, and where it differs."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.scores import ScoreMetadata
from askgauss.stats import guess_counts
from askgauss.stats.error_rates import ConfusionMatrix
from tests.auditors.matrices import gaussian_dp_epsilon

auditing = pytest.importorskip("jax_privacy.auditing")

SETS = [
    (seed, canaries, shift, delta)
    for seed, (canaries, shift, delta) in enumerate(
        [(100, 3.0, 1e-3), (200, 0.5, 1e-3), (200, 3.0, 1e-5), (1000, 1.0, 1e-5), (1000, 2.0, 1e-7)]
    )
]


def draw(seed, canaries, shift):
    generator = np.random.default_rng(seed)
    member = generator.random(canaries) < 0.5
    score = generator.standard_normal(canaries) + shift * member
    coins = ScoreMetadata(fair_coins=True)
    scores = ag.CanaryScores(score=score, member=member, metadata=coins)
    peer = auditing.CanaryScoreAuditor(score[member], score[~member])
    thresholds = np.quantile(score, [0.02, 0.3, 0.6, 0.85, 0.97]).tolist()
    return scores, peer, thresholds


@pytest.mark.parametrize(("seed", "canaries", "shift", "delta"), SETS)
@pytest.mark.parametrize(
    ("kind", "method", "two_ways"),
    [
        (ag.OneRun, "epsilon_one_run", None),
        (ag.OneRunFDP, "epsilon_one_run_fdp", None),
        (ag.ClopperPearson, "epsilon_clopper_pearson", False),
    ],
)
def test_explicit_thresholds(kind, method, two_ways, seed, canaries, shift, delta):
    scores, peer, thresholds = draw(seed, canaries, shift)
    answered = 0
    for threshold in thresholds:
        options = {} if two_ways is None else {"one_sided": two_ways}
        theirs = getattr(peer, method)(
            0.05, delta, **options, threshold_strategy=auditing.Explicit(threshold)
        )
        auditor = kind(selection=ag.Fixed(threshold=threshold))
        result = ag.audit(scores, delta=delta, auditor=auditor, diagnostics=False)
        ours = result.epsilon_lower
        if kind in (ag.OneRun, ag.OneRunFDP):
            # They take the number of guesses beyond a threshold for one that was fixed.
            bound = {
                ag.OneRun: guess_counts.epsilon_from_counts,
                ag.OneRunFDP: guess_counts.gaussian_from_counts,
            }[kind]
            ours = bound(result.evidence.trial, delta=delta, confidence=0.95)
        assert ours == pytest.approx(theirs, abs=1e-3)
        answered += theirs > 0.0
    assert answered >= 1


def gaussian_dp_over_hull(peer, canaries_present, canaries_absent, delta):
    """Their choice of thresholds and their correction, our bound at each."""
    present, absent = np.asarray(canaries_present), np.asarray(canaries_absent)
    count = len(peer._thresholds)
    bounds = []
    for threshold in peer._thresholds:
        missed, cleared = int((present < threshold).sum()), int((absent < threshold).sum())
        bounds.append(
            gaussian_dp_epsilon(
                ConfusionMatrix(
                    true_positive=present.size - missed,
                    true_negative=cleared,
                    false_positive=absent.size - cleared,
                    false_negative=missed,
                ),
                delta=delta,
                confidence=1.0 - 0.05 / count,
            )
        )
    return max(bounds)


@pytest.mark.parametrize(("seed", "canaries", "shift", "delta"), SETS[2:])
def test_gaussian_dp_where_there_is_a_leak(seed, canaries, shift, delta):
    scores, peer, _ = draw(seed, canaries, shift)
    theirs = peer.epsilon_from_gdp(0.05, delta)
    ours = gaussian_dp_over_hull(peer, scores.present, scores.absent, delta)
    assert ours > 0.0
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_gaussian_dp_where_there_is_none():
    """Version 2.0.0 takes the size of a negative mu for a leak and reports epsilon on nothing."""
    reported = []
    for seed in range(10):
        scores, peer, _ = draw(seed, 200, 0.0)
        theirs = peer.epsilon_from_gdp(0.05, 1e-5)
        ours = gaussian_dp_over_hull(peer, scores.present, scores.absent, 1e-5)
        assert ours == 0.0
        assert ag.audit(scores, delta=1e-5, auditor=ag.GaussianDP()).epsilon_lower == 0.0
        reported.append(theirs)
    assert min(reported) > 0.5
