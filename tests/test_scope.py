"""A verdict is a function of what was tested."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss.checks.registry import PARTS
from askgauss.checks.scope import (
    AFTER_CLIPPING,
    BEFORE_CLIPPING,
    INPUT_SPACE,
    OUTSIDE,
    THROUGH_AGGREGATOR,
    scope_of,
)
from askgauss.evidence.attestation import evidence_pack
from askgauss.evidence.verification import verify
from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.policy import untested
from askgauss.results import AuditResult, Finding, Status, Verdict

CLAIM = ag.PrivacyClaim(
    epsilon=6.7, delta=1e-5, noise_multiplier=1.0, sampling_rate=0.05, steps=400
)


def finding(check: str, status: Status, sees: str = "") -> Finding:
    return Finding(check=check, status=status, summary="", sees=sees)


def run(fault: str | None = None, canaries: str = "own coin") -> ag.Transcript:
    return ag.simulate_dpsgd(
        steps=400,
        sampling_rate=0.05,
        noise_multiplier=1.0,
        present=200,
        absent=300,
        seed=0,
        fault=fault,
        canaries=canaries,
    )


def statuses(result: AuditResult) -> dict[str, str]:
    return {part.name: part.status for part in result.scope}


def test_a_part_is_fine_only_if_a_deciding_check_ran():
    ran = (finding("steps without noise", Status.PASS), finding("noise scale", Status.NOT_RUN))
    scope = {part.name: part for part in scope_of(ran, ("noise",))}
    assert scope["noise scale"].status == "not tested"
    assert scope["noise scale"].how_to_test
    ran = (finding("noise scale", Status.PASS, sees="noise 1% below the claim"),)
    scope = {part.name: part for part in scope_of(ran, ("noise",))}
    assert scope["noise scale"].status == "fine"
    assert scope["noise scale"].smallest == "noise 1% below the claim"


def test_a_check_without_power_tests_nothing():
    """A fault of a third of the claim has to show for its part to count as tested."""
    blind = replace(finding("noise scale", Status.PASS, "noise 60% below the claim"), visible=0.6)
    (part, *_) = scope_of((blind,), ("noise",))
    assert part.status == "not tested"
    assert part.met
    assert "noise 60% below the claim" in part.how_to_test
    (part, *_) = scope_of((replace(blind, visible=0.2),), ("noise",))
    assert part.status == "fine"


def test_green_needs_a_sampler_tested_with_power():
    """Loud canaries show the claim sharply and the rate of so few draws hardly at all."""
    draw = np.random.default_rng(0)
    canaries = ag.DiracCanaries(present=12, absent=3000, dimension=4000, seed=1)
    recorder = ag.Recorder(canaries, noise_multiplier=0.5, poisson=True)
    present = np.flatnonzero(canaries.member)
    for _ in range(40):
        planted = present[draw.random(present.size) < 0.1]
        released = 0.5 * draw.standard_normal(canaries.size)
        released[planted] += 1.0
        recorder.observe(released, background=0.0, planted=planted)
    transcript = recorder.transcript()
    facts = replace(transcript.facts, exercised=("sampler", "sum", "noise"))
    claim = ag.PrivacyClaim(
        epsilon=60.0, delta=1e-5, noise_multiplier=0.5, sampling_rate=0.1, steps=40
    )
    result = ag.audit(replace(transcript, facts=facts), claim=claim)
    part = next(part for part in result.scope if part.name == "sampler")
    assert part.status == "not tested"
    assert part in untested(result.scope)
    assert result.verdict is not Verdict.CONSISTENT


def test_a_part_canaries_did_not_meet_is_not_tested_whatever_ran():
    scope = scope_of((finding("contribution", Status.PASS),), ("noise",))
    part = next(part for part in scope if part.name == "clipping")
    assert part.status == "not tested"
    assert not part.met


def test_any_failed_check_of_a_part_breaks_it():
    ran = (finding("noise scale", Status.PASS), finding("noise by tensor", Status.FAIL))
    part = next(part for part in scope_of(ran, ("noise",)) if part.name == "noise scale")
    assert part.status == "broken"


def test_green_needs_every_part_that_canaries_met():
    scope = scope_of((finding("noise scale", Status.PASS),), ("noise", "clipping"))
    assert {part.name for part in untested(scope)} == {"noise freshness", "clipping"}


def test_a_run_through_the_sum_says_that_clipping_and_sampler_were_not_tested():
    result = ag.audit(run(), claim=CLAIM)
    assert result.verdict is Verdict.CONSISTENT
    found = statuses(result)
    assert found["noise scale"] == found["noise freshness"] == "fine"
    assert found["clipping"] == found["sampler"] == "not tested"
    said = str(result)
    assert "not tested  sampler" in said
    assert 'inject="sample"' in said
    assert "data_loader=" in result.next_step


def test_a_run_through_the_loader_tests_them():
    found = statuses(ag.audit(run(canaries="data path"), claim=CLAIM))
    assert found["clipping"] == found["sampler"] == "fine"


@pytest.mark.parametrize(
    ("fault", "canaries", "part"),
    [
        ("half-noise", "own coin", "noise scale"),
        ("same-noise-every-step", "own coin", "noise freshness"),
        ("clipping-off", "data path", "clipping"),
        ("sampling-rate-doubled", "data path", "sampler"),
        ("more-steps-than-accounted", "own coin", "steps"),
    ],
)
def test_a_fault_breaks_its_part(fault, canaries, part):
    assert statuses(ag.audit(run(fault, canaries), claim=CLAIM))[part] == "broken"


def test_noise_nobody_could_check_is_not_green():
    rng = np.random.default_rng(0)
    canaries = ag.DiracCanaries(present=200, absent=300, dimension=5000, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.05, noise_multiplier=1.0)
    for _ in range(400):
        planted = recorder.sample()
        released = rng.normal(size=canaries.size)
        released[planted] += 1.0
        recorder.observe(released)
    result = ag.audit(recorder.transcript(), claim=CLAIM)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "noise freshness" in result.reason
    assert "background" in result.reason


def test_scores_alone_speak_of_no_part():
    result = ag.audit(run().scores(), claim=CLAIM)
    assert set(statuses(result).values()) == {"not tested"}
    assert "audit the transcript" in " ".join(str(result).split())


def test_every_output_carries_the_scope():
    result = ag.audit(run(), claim=CLAIM)
    documents = (result.to_markdown(), result.to_junit(), result.to_html(), result._repr_html_())
    for document in (str(result), *documents):
        assert "not tested" in document
        assert "clipper" in document
    assert AuditResult.from_json(result.to_json()).scope == result.scope


def test_every_output_lists_what_canaries_did_not_meet_and_what_no_audit_sees():
    """The default canaries meet no per-sample gradient: each output says so, and what would."""
    result = ag.audit(run(), claim=CLAIM)
    assert result.verdict is Verdict.CONSISTENT
    assert statuses(result)["per-sample gradient"] == "not tested"
    pack = evidence_pack(result, subjects={"model.safetensors": "0" * 64})
    outputs = {
        "text": str(result),
        "markdown": result.to_markdown(),
        "junit": result.to_junit(),
        "html": result.to_html(),
        "card": result._repr_html_(),
        "json": result.to_json(),
        **pack,
    }
    for name, shown in outputs.items():
        words = " ".join(html.unescape(shown).replace("&#95;", "_").split())
        for said in ("per-sample gradient", "replay()", "mixes records", *OUTSIDE):
            assert said in words, (name, said)


def test_canaries_do_not_test_the_per_sample_gradient():
    """Under mixup a canary adds one clip norm in all, over two rows: its mean shows nothing."""
    ran = (finding("contribution", Status.PASS),)
    part = {part.name: part for part in scope_of(ran, INPUT_SPACE)}["per-sample gradient"]
    assert part.status == "not tested"
    assert not part.met


def test_a_replay_tests_the_per_sample_gradient():
    result = ag.audit(run(), claim=CLAIM)
    told = Finding(check="replay", status=Status.PASS, summary="nothing differs.")
    scope = scope_of((*result.findings, told), result.summary.run.passed)
    assert {part.name: part.status for part in scope}["per-sample gradient"] == "fine"


def test_a_result_without_checks_says_that_nothing_was_tested():
    result = replace(ag.audit(run(), claim=CLAIM), scope=())
    assert "not tested  every part: no checks were made" in str(result)


WIDE = ag.PrivacyClaim(epsilon=12.0, delta=1e-5)
RUN = ag.simulate_dpsgd(
    steps=300, sampling_rate=0.08, noise_multiplier=1.0, present=200, absent=200, seed=0
)


def forged(result, **changes):
    content = json.loads(result.to_json()) | changes
    kind, schema = content.pop("kind"), content.pop("schema")
    content.pop("digest")
    return codec.dumps(kind, schema, content)


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_parts_that_no_finding_tested_cannot_be_called_fine(version):
    result = ag.audit(RUN, claim=WIDE)
    parts = json.loads(result.to_json())["scope"]
    assert any(part["status"] == "not tested" for part in parts)
    fine = [part | {"status": "fine", "how_to_test": ""} for part in parts]
    assert not believed(result, scope=fine, version=version or result.version)


@pytest.mark.parametrize("changes", [{"scope": []}, {"scope": [], "metadata": {}}])
def test_a_scope_cannot_be_left_out(changes):
    assert not believed(ag.audit(RUN, claim=WIDE), **changes)
    alone = ag.audit(RUN, claim=WIDE, diagnostics=False)
    assert ag.AuditResult.from_json(alone.to_json()).scope == ()


@pytest.mark.parametrize("changes", [{"present": 201}, {"absent": 199}, {"present": 100}])
def test_numbers_of_canaries_are_those_of_the_evidence(changes):
    result = ag.audit(RUN, claim=WIDE)
    assert believed(result)
    assert not believed(result, **changes)


def believed(result, **changes):
    """Whether the file of a result is read and its verification holds, after these changes."""
    try:
        return verify(ag.AuditResult.from_json(forged(result, **changes)), RUN).holds
    except FileFormatError:
        return False


def test_the_page_on_limits_names_every_part_and_what_is_outside():
    page = Path(__file__).parents[1].joinpath("docs", "limits.md").read_text(encoding="utf-8")
    words = " ".join(page.lower().split())
    for name in (*(part.name for part in PARTS), *OUTSIDE):
        assert name.lower() in words, name


def test_every_path_of_canaries_meets_parts_that_are_listed():
    passed = {part.passed for part in PARTS}
    for path in (AFTER_CLIPPING, BEFORE_CLIPPING, INPUT_SPACE, THROUGH_AGGREGATOR):
        assert set(path) <= passed


def test_rounds_have_weights_and_records_have_gradients():
    paths = (INPUT_SPACE, THROUGH_AGGREGATOR)
    by_path = {path: {part.name for part in scope_of((), path)} for path in paths}
    assert "weighting" in by_path[THROUGH_AGGREGATOR] - by_path[INPUT_SPACE]
    assert "per-sample gradient" in by_path[INPUT_SPACE] - by_path[THROUGH_AGGREGATOR]
