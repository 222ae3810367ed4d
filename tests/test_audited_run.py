"""One way to ask any audited run for its result, with a state or without."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import askgauss as ag
from askgauss.auditing import AuditedRun
from askgauss.exceptions import InvalidArgumentError

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)


def recorded(steps):
    return ag.simulate_dpsgd(
        steps=steps, sampling_rate=0.2, noise_multiplier=1.5, present=40, absent=400, seed=0
    )


class Run(AuditedRun[()]):
    def transcript(self):
        return recorded(60)

    def _own_claim(self):
        return CLAIM


class Carried(AuditedRun[int]):
    """What was read is in a state: here, how many steps it has seen."""

    def transcript(self, state):
        return recorded(state)


def test_the_result_is_that_of_the_transcript():
    assert Run().result(claim=CLAIM) == ag.audit(recorded(60), claim=CLAIM)
    assert Run().result(delta=1e-5, auditor="one-run") == ag.audit(
        recorded(60), delta=1e-5, auditor="one-run"
    )


def test_without_claim_and_delta_it_is_the_runs_own():
    assert Run().result().claim == CLAIM
    assert Run().result(delta=1e-5).claim is None
    with pytest.raises(InvalidArgumentError, match="claim and delta"):
        Carried().result(60)


def test_a_state_goes_on_to_the_transcript():
    assert Carried().result(30, claim=CLAIM) == ag.audit(recorded(30), claim=CLAIM)


def test_nobody_says_again_what_a_result_takes():
    homes = []
    for path in Path(ag.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "result":
                named = {argument.arg for argument in node.args.kwonlyargs}
                homes += [path.name] if "gate_error" in named else []
    assert homes == ["auditing.py"]
