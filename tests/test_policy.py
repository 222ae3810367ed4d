"""Thresholds, the order of verdicts, what makes an audit weak and what opens a gate."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss import policy
from askgauss.report.words import advice
from askgauss.results import Consequence, Finding, Part, Status, Verdict
from tests.report import samples

CLAIM = ag.PrivacyClaim(epsilon=3.0, delta=1e-5)


def contribution(measured, expected=1.0, status=Status.WARN):
    return Finding(
        check="contribution", status=status, summary="it is small.", measured=measured,
        claimed=expected, remedy="Take larger canaries.",
    )  # fmt: skip


@pytest.fixture(scope="module")
def result():
    run = ag.simulate_dpsgd(
        steps=50, sampling_rate=0.2, noise_multiplier=2.0, present=60, absent=300, seed=0
    )
    return ag.audit(run, claim=CLAIM)


def test_the_thresholds_stand_in_one_module():
    source = Path(policy.__file__).parent
    literal = re.compile(
        r"_ALTERNATIVE\s*=|ENOUGH(_POWER)?\s*=|1\.25 \* (claim\.)?epsilon|_too_weak"
    )
    found = {
        path.name
        for path in source.rglob("*.py")
        if path != Path(policy.__file__) and literal.search(path.read_text())
    }
    assert not found


@pytest.mark.parametrize("facts", [*itertools.product((False, True), repeat=4)])
def test_the_order_of_verdicts(facts):
    breached, invalid, contradicted, strong = facts
    expected = (
        Verdict.VIOLATION if breached
        else Verdict.INVALID if invalid
        else Verdict.VIOLATION if contradicted
        else Verdict.CONSISTENT if strong
        else Verdict.INCONCLUSIVE
    )  # fmt: skip
    found = policy.verdict_on(
        breached=breached, invalid=invalid, contradicted=contradicted, strong=strong
    )
    assert found is expected


@pytest.mark.parametrize("measured", [0.6, 0.985, 0.995])
def test_reason_and_advice_agree_on_what_is_weak(result, measured):
    """With 0.995 clip norms the audit said "too weak", and advice "use the default method"."""
    findings = tuple(item for item in result.findings if item.check != "contribution")
    weak = replace(
        result, findings=(*findings, contribution(measured)), power=None,
        verdict=Verdict.INCONCLUSIVE,
    )  # fmt: skip
    found = policy.weakness(weak.findings, weak.scope, weak.power)
    assert found is not None
    assert found.kind is policy.WeaknessKind.CONTRIBUTION
    assert "Take larger canaries." in advice(weak).action
    assert "default method" not in advice(weak).action


def test_the_first_weakness_that_applies_is_named():
    unseen = Part(name="sampler", status="not tested", how_to_test="send canaries through it")
    steps = Finding(
        check="step count", status=Status.WARN, summary="fewer.", measured=10.0, claimed=20.0
    )
    kinds = policy.WeaknessKind
    assert policy.weakness((), (), 0.9) is None
    assert policy.weakness((), (unseen,), 0.9).kind is kinds.PARTS
    assert policy.weakness((), (replace(unseen, met=False),), 0.9) is None
    assert policy.weakness((), (unseen,), 0.5).kind is kinds.POWER
    assert policy.weakness((), (), None).kind is kinds.POWER
    assert policy.weakness((steps,), (), 0.5).kind is kinds.STEPS
    assert policy.weakness((steps, contribution(0.9)), (), 0.9).kind is kinds.CONTRIBUTION
    assert policy.weakness((contribution(1.0, status=Status.PASS),), (), 0.9) is None


def test_checks_that_test_something_take_half_of_the_gate_error():
    silent = contribution(1.0, status=Status.PASS)
    assert policy.share_of_test((silent,), 0.001) == 0.001
    assert policy.share_of_test((silent, replace(silent, p_value=0.5)), 0.001) == 0.0005


def test_failures_have_their_consequence():
    failed = replace(contribution(2.0), status=Status.FAIL, consequence=Consequence.BREACH)
    assert policy.failures((contribution(2.0), failed), Consequence.BREACH) == [failed]
    assert policy.failures((failed,), Consequence.INVALIDATES) == []


# --- the gate ------------------------------------------------------------------------------------

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
    opened = policy.gate(result, lenient=lenient)
    passes = verdict is Verdict.CONSISTENT or (lenient and verdict is Verdict.INCONCLUSIVE)
    assert opened.passes == passes
    assert opened.exit_code == (0 if passes else CODES[verdict])


@pytest.mark.parametrize("lenient", [False, True])
def test_nothing_passes_without_a_claim(lenient):
    opened = policy.gate(samples.no_claim(), lenient=lenient)
    assert opened.exit_code == 3
    assert "no claim" in opened.why


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("verdict", [None, Verdict.CONSISTENT, Verdict.INCONCLUSIVE])
def test_nothing_passes_with_a_failed_check_or_an_infinite_bound(verdict, lenient):
    failed = Finding(
        check="mine", status=Status.FAIL, summary="bad.", consequence=Consequence.INFORMS
    )
    sound = replace(samples.consistent(), verdict=verdict)
    for wrong in (replace(sound, findings=(failed,)), replace(sound, epsilon_lower=np.inf)):
        assert policy.gate(wrong, lenient=lenient).exit_code == 3


def test_an_estimate_opens_no_gate():
    scores = ag.CanaryScores.from_groups(
        present=np.linspace(0.1, 0.3, 40), absent=np.linspace(-0.1, 0.1, 40)
    )
    result = ag.audit(
        scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5), auditor=ag.MaxCosine(dimension=100)
    )
    assert result.verdict is None
    assert policy.gate(result).exit_code == 3
