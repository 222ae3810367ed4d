from __future__ import annotations

from dataclasses import replace

import pytest

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.report.words import describe
from askgauss.results import Finding, Status
from askgauss.simulation import simulate_dpsgd

RUN = {
    "steps": 60,
    "sampling_rate": 0.2,
    "noise_multiplier": 1.0,
    "present": 60,
    "absent": 100,
    "seed": 3,
}


def text(run):
    return describe(diagnose(run), data=run)


def test_a_cause_is_told_once_with_what_follows_from_it():
    told = text(simulate_dpsgd(**RUN, fault="same-noise-every-step"))
    lines, words = told.splitlines(), " ".join(told.split())
    assert lines[0] == "Failed:"
    assert lines[1].startswith("  repeated noise: ")
    assert words.count("may explain: ") == 1
    assert "serial correlation" in words.split("may explain: ")[1].split(" Noise that is used")[0]
    assert not any(line.startswith("  serial correlation:") for line in lines)


def test_a_failure_says_what_was_measured_and_what_to_do():
    told = text(simulate_dpsgd(**RUN, fault="sampling-rate-doubled"))
    assert "measured 0.39" in told or "measured 0.4" in told
    assert "expected 0.2" in told
    assert "Give the accountant the rate" in told


def test_nothing_wrong():
    told = text(simulate_dpsgd(**RUN | {"absent": 200}, canaries="data path"))
    assert "Failed" not in told
    assert "Warnings" not in told
    assert "checks passed; not run: 3." in told
    assert "noise by tensor needs more than one tensor." in told


def test_advice_looks_at_what_was_done():
    run = simulate_dpsgd(**RUN)
    assert "did not go through the sampler or the per-sample gradient" in text(run)
    clipped = run.with_facts(replace(run.facts, exercised=("clipping", "noise")))
    assert "or the clipping" not in text(clipped)
    assert "did not go through" not in text(simulate_dpsgd(**RUN, canaries="data path"))
    hidden = run.with_facts(replace(run.facts, background="unknown"))
    assert "pass background= to the recorder" in " ".join(text(hidden).split())
    small = simulate_dpsgd(**RUN | {"absent": 8})
    assert "60 present and 8 absent canaries" in text(small)
    short = simulate_dpsgd(**RUN | {"steps": 4, "absent": 400})
    assert "The audit saw 4 steps" in text(short)


def test_scores_alone_say_less_than_a_transcript():
    scores = simulate_dpsgd(**RUN).scores()
    assert "These are scores only." in text(scores)
    assert "These are scores only." not in describe(diagnose(scores))


@pytest.mark.parametrize("fault", [None, "no-noise", "nan-in-a-step", "per-layer-clipping"])
def test_lines_are_short_and_nothing_is_left_out(fault):
    run = simulate_dpsgd(**RUN, fault=fault)
    findings = diagnose(run, claim=ag.PrivacyClaim(epsilon=5.0, delta=1e-5))
    told = describe(findings, data=run)
    assert max(len(line) for line in told.splitlines()) <= 100
    for item in findings:
        assert item.status.value == "pass" or item.check in told


def test_a_consequence_of_a_consequence_is_not_lost():
    names = ("repeated noise", "shared noise", "duplicate scores")
    told = describe(Finding(check=name, status=Status.FAIL, summary="found.") for name in names)
    assert "may explain: shared noise, duplicate scores" in told
