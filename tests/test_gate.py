"""What opens a gate: only a verdict that was earned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.gate import decide
from askgauss.results import Consequence, Finding, Status, Verdict
from tests.report import samples

CODES = {
    Verdict.CONSISTENT: 0,
    Verdict.VIOLATION: 1,
    Verdict.INCONCLUSIVE: 3,
    Verdict.INVALID: 3,
}


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_its_code(verdict, lenient):
    result = replace(samples.consistent(), verdict=verdict)
    decision = decide(result, lenient=lenient)
    passes = verdict is Verdict.CONSISTENT or (lenient and verdict is Verdict.INCONCLUSIVE)
    assert decision.passes == passes
    assert decision.exit_code == (0 if passes else CODES[verdict])


@pytest.mark.parametrize("lenient", [False, True])
def test_nothing_passes_without_a_claim(lenient):
    decision = decide(samples.no_claim(), lenient=lenient)
    assert decision.exit_code == 3
    assert "no claim" in decision.why


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("verdict", [None, Verdict.CONSISTENT, Verdict.INCONCLUSIVE])
def test_nothing_passes_with_a_failed_check_or_an_infinite_bound(verdict, lenient):
    failed = Finding(
        check="mine", status=Status.FAIL, summary="bad.", consequence=Consequence.INFORMS
    )
    sound = replace(samples.consistent(), verdict=verdict)
    for wrong in (replace(sound, findings=(failed,)), replace(sound, epsilon_lower=np.inf)):
        assert decide(wrong, lenient=lenient).exit_code == 3


def test_an_estimate_opens_no_gate():
    scores = ag.CanaryScores.from_groups(
        present=np.linspace(0.1, 0.3, 40), absent=np.linspace(-0.1, 0.1, 40)
    )
    result = ag.audit(
        scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5), auditor=ag.MaxCosine(dimension=100)
    )
    assert result.verdict is None
    assert decide(result).exit_code == 3
