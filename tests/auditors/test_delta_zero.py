"""Pure differential privacy: methods that allow delta 0, and those that say why not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError

PURE = [ag.OneRun(), ag.AdaptiveOneRun(), ag.ClopperPearson(), ag.Bayesian()]
MODELS = [
    ag.GaussianShift(),
    ag.GaussianRectangle(),
    ag.GaussianEllipsoid(),
    ag.OneRunFDP(),
    ag.OrderStatistics(),
    ag.GaussianDP(),
    ag.MaxCosine(),
]


def responses(rng, epsilon=1.0, count=800):
    """Randomised response about fair coins, ties broken by nobody."""
    member = rng.random(count) < 0.5
    kept = rng.random(count) < 1.0 / (1.0 + math.exp(-epsilon))
    return ag.CanaryScores(
        score=np.where(kept, member, ~member).astype(float),
        member=member,
        metadata=ag.scores.ScoreMetadata(fair_coins=True),
    )


@pytest.mark.parametrize("auditor", PURE, ids=lambda auditor: auditor.name)
def test_the_bound_at_delta_zero_holds(auditor):
    """Above the truth in 5 % of audits at most; more than allowed once in 10,000."""
    rng = np.random.default_rng(0)
    bounds = [
        ag.audit(responses(rng), delta=0.0, auditor=auditor, diagnostics=False).epsilon_lower
        for _ in range(80)
    ]
    assert np.count_nonzero(np.array(bounds) > 1.0) <= binom.isf(1e-4, 80, 0.05)
    assert np.mean(bounds) > 0.5


@pytest.mark.parametrize("auditor", PURE, ids=lambda auditor: auditor.name)
def test_a_pure_claim_is_judged_and_survives_its_file(auditor):
    rng = np.random.default_rng(1)
    claim = ag.PrivacyClaim(epsilon=1.0, delta=0.0)
    broken = ag.audit(responses(rng, 3.0), claim=claim, auditor=auditor)
    assert broken.verdict is ag.Verdict.VIOLATION
    kept = ag.audit(responses(rng), claim=claim, auditor=auditor)
    # No Gaussian mechanism is pure, so that the power is unknown and nothing is cleared.
    assert kept.verdict is ag.Verdict.INCONCLUSIVE
    again = ag.AuditResult.from_json(kept.to_json())
    assert again.epsilon_at(delta=0.0) == kept.epsilon_lower
    assert "delta 0" in str(again)
    assert again.to_html()


@pytest.mark.parametrize("auditor", MODELS, ids=lambda auditor: auditor.name)
def test_a_method_that_needs_delta_names_those_that_do_not(auditor):
    scores = responses(np.random.default_rng(2))
    with pytest.raises(InvalidArgumentError, match=r"delta.*0\.0.*ClopperPearson"):
        ag.audit(scores, delta=0.0, auditor=auditor)


def test_compare_shows_who_can():
    table = ag.compare(responses(np.random.default_rng(3)), delta=0.0, auditors=[*PURE, *MODELS])
    assert [row.bound is not None for row in table.rows] == [True] * 4 + [False] * 7
