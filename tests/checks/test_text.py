from __future__ import annotations

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
    return describe(diagnose(run), exercised=("noise", *run.facts.exercised))


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


def test_what_was_not_tested_follows_from_what_canaries_went_through():
    run = simulate_dpsgd(**RUN)
    untested = text(run).partition("Not tested:\n")[2]
    assert {line.split(":")[0].strip() for line in untested.splitlines() if line[2] != " "} == {
        "sampler",
        "per-sample gradient",
        "clipping",
    }
    whole = simulate_dpsgd(**RUN | {"absent": 200}, canaries="data path")
    assert "clipping" not in text(whole).partition("Not tested:\n")[2]


def test_scores_alone_say_less_than_a_transcript():
    told = " ".join(describe(diagnose(simulate_dpsgd(**RUN).scores())).split())
    assert "audit the transcript, not the scores alone." in told


@pytest.mark.parametrize("fault", [None, "no-noise", "nan-in-a-step", "per-layer-clipping"])
def test_lines_are_short_and_nothing_is_left_out(fault):
    run = simulate_dpsgd(**RUN, fault=fault)
    findings = diagnose(run, claim=ag.PrivacyClaim(epsilon=5.0, delta=1e-5))
    told = describe(findings, exercised=run.facts.exercised)
    assert max(len(line) for line in told.splitlines()) <= 100
    for item in findings:
        assert item.status.value == "pass" or item.check in told


def test_a_consequence_of_a_consequence_is_not_lost():
    names = ("repeated noise", "shared noise", "duplicate scores")
    told = describe(Finding(check=name, status=Status.FAIL, summary="found.") for name in names)
    assert "may explain: shared noise, duplicate scores" in told
