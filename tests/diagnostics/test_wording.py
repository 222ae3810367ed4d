"""No text contradicts its status: every finding is rendered in every status it can have."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.report import samples

import askgauss as ag
from askgauss import report
from askgauss.diagnostics.linear import linear_checks
from askgauss.diagnostics.outcomes import SUSPICIOUS, apply_gate, judged
from askgauss.diagnostics.scores import score_checks
from askgauss.diagnostics.transcript import transcript_checks
from askgauss.results import Consequence, Status, Verdict
from askgauss.simulation import FAULTS, TREE_FAULTS, simulate_dpftrl, simulate_dpsgd

# What only a check that did not pass may say.
ACCUSING = re.compile(
    r"implies epsilon|beyond chance|look for|looks like|more than the noise explains|in common\.|"
    r"another distribution|no such extremes|times the claim, as of|without any noise|"
    r"rarely gives|less noise than|more noise than|must |is it |are released without"
)
# What only a check that passed, or was too small to matter, may say.
EXCUSING = re.compile(
    r"by chance|as it may|as they may|too little to matter|as Gaussian noise may|"
    r"as those of Gaussian|every (step|node) was released with noise|was finite|"
    r"lies on no short|orthogonal by construction"
)
CLAIM = ag.PrivacyClaim(
    epsilon=2.0, delta=1e-5, noise_multiplier=1.6, sampling_rate=0.2, steps=40, clip_norm=1.0
)


def runs():
    """Sound and broken runs of every kind, small ones."""
    size = {"steps": 40, "sampling_rate": 0.2, "noise_multiplier": 1.6, "present": 40}
    for canaries in ("own coin", "data path", "spread"):
        try:
            yield simulate_dpsgd(**size, absent=60, seed=1, canaries=canaries)
        except ag.InvalidArgumentError:
            continue
    for fault in FAULTS.values():
        rate = size["sampling_rate"]
        if fault.expected_batch is not None:
            rate = min(1.0, fault.expected_batch / size["present"])
        yield simulate_dpsgd(**size | {"sampling_rate": rate}, absent=60, seed=2, fault=fault)


def trees():
    size = {"steps": 32, "noise_multiplier": 3.0, "present": 40, "absent": 80}
    yield simulate_dpftrl(**size, seed=1)
    for fault in TREE_FAULTS.values():
        restart = 8 if fault.restarts else None
        yield simulate_dpftrl(**size, seed=2, restart_every=restart, fault=fault)


def score_sets():
    draw = np.random.default_rng(0)
    for shape in (draw.standard_normal, lambda count: draw.standard_t(2, count)):
        for told in ({}, {"steps": 30, "sampling_rate": 0.3}, {"noise": "gaussian"}):
            yield ag.CanaryScores.from_groups(
                present=shape(300) + 1.0, absent=np.round(shape(400), 2), **told
            )


@functools.cache
def undecided():
    """Every finding as a check makes it, before the gate decides."""
    found = []
    for run in runs():
        for claim in (None, CLAIM):
            found += transcript_checks(run, claim)
        if run.finite and run.auditable:
            found += score_checks(run.scores(), run.canaries.planted)
    for run in trees():
        for claim in (None, ag.PrivacyClaim(epsilon=1.0, delta=1e-5, noise_multiplier=4.0)):
            found += linear_checks(run, claim)
    for scores in score_sets():
        found += score_checks(scores)
    return found


def decided(finding, p_value, error):
    return apply_gate([replace(finding, p_value=p_value)], error)[0]


def every_status():
    """Each finding that a p-value decides, passed, noted and failed; facts as they are."""
    for finding in undecided():
        if finding.p_value is None:
            yield finding
            continue
        fails = finding.consequence in (Consequence.BREACH, Consequence.INVALIDATES)
        if finding.p_value > 0.0:  # a certainty can only fail
            yield decided(finding, 0.5, 0.0005)
            yield decided(finding, 0.5 * SUSPICIOUS, 1e-9)
        failed = decided(finding, 1e-12, 0.0005)
        assert failed.status is (Status.FAIL if fails else Status.WARN)
        yield failed


def test_there_are_findings_of_every_status():
    checks = {item.check for item in undecided()}
    assert len(checks) > 30
    assert {item.status for item in every_status()} == set(Status)


@pytest.mark.parametrize("status", [Status.PASS, Status.INFO, Status.WARN, Status.FAIL])
def test_no_text_contradicts_its_status(status):
    wrong = set()
    for finding in every_status():
        if finding.status is not status:
            continue
        said = f"{finding.summary} {finding.remedy}"
        if status in (Status.PASS, Status.INFO) and ACCUSING.search(said):
            wrong.add(str(finding))
        if status in (Status.WARN, Status.FAIL) and EXCUSING.search(said):
            wrong.add(str(finding))
        if status is Status.PASS:
            assert finding.remedy == ""
        if status is Status.INFO:
            assert "One sound run in" in finding.remedy
    assert not wrong


def test_a_difference_too_small_to_matter_is_called_so():
    tiny = judged(
        "a",
        1e-9,
        "it is 1.001.",
        if_fine=", as chance has it.",
        tolerable=True,
        consequence=Consequence.BREACH,
    )
    (finding,) = apply_gate([tiny], 0.0005)
    assert finding.status is Status.PASS
    assert finding.summary == "it is 1.001, which is too little to matter."


RESULTS = (
    samples.violation,
    samples.consistent,
    samples.inconclusive,
    samples.invalid,
    samples.no_claim,
    samples.no_noise,
    samples.counting,
)


@pytest.mark.parametrize("sample", RESULTS, ids=lambda sample: sample.__name__)
def test_every_output_agrees_with_its_verdict_and_carries_the_scope(sample):
    result = sample()
    noted = replace(result, metadata={**result.metadata, "run": {"notes": ["taken on trust."]}})
    outputs = {
        "text": str(noted),
        "markdown": report.markdown(noted),
        "junit": report.junit(noted),
        "html": report.render(noted),
        "card": noted._repr_html_(),
        "json": noted.to_json(),
    }
    for name, shown in outputs.items():
        assert "taken on trust" in shown, name
        for part in result.scope:
            assert part.name in shown, (name, part)
        if result.verdict is Verdict.INVALID:
            assert "lies somewhere on the bar" not in shown, name
    assert "NO VERDICT" in str(result) or result.verdict is not None
    if result.verdict is Verdict.INVALID:
        assert "no usable bound" in str(result)


@pytest.mark.parametrize(
    ("share", "words"), [(0.999, "99% of"), (2.76, "276% of"), (24643.84, "times the")]
)
def test_a_bound_far_above_its_claim_is_a_number_of_times(share, words):
    from askgauss._result_text import of_the_claim

    assert words in of_the_claim(8.0 * share, 8.0)
