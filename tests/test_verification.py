"""A result holds against its transcript, or the part that does not is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import askgauss as ag
from askgauss.cli.app import app
from askgauss.evidence.verification import verify
from askgauss.exceptions import FileFormatError
from askgauss.recording.commitment import Commitment, commit
from askgauss.recording.transcript import Transcript
from askgauss.replay import join

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)


@pytest.fixture(scope="module")
def transcript():
    run = ag.simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=2.0, present=200, absent=200, seed=0
    )
    promise = commit(seed=run.facts.seed, member=run.member, claim=CLAIM)
    return run.with_facts(replace(run.facts, run="a" * 32, commitment=promise))


@pytest.fixture(scope="module")
def result(transcript):
    return ag.audit(transcript, claim=CLAIM)


def statuses(answer):
    return {part.name: part.status for part in answer.parts}


def test_a_result_holds_against_its_own_transcript(result, transcript):
    answer = verify(result, transcript)
    assert statuses(answer).pop("file") == "not checked"
    assert {status for name, status in statuses(answer).items() if name != "file"} == {"holds"}
    assert answer.holds
    assert "follows from the data" in answer.conclusion
    assert "fixed before the run" in answer.conclusion
    assert result.commitment == transcript.facts.commitment.digest
    assert f"committed   sha256 {result.commitment}" in str(result)


def test_files_keep_what_was_committed_to(result, transcript, tmp_path):
    transcript.save(tmp_path / "t.npz")
    result.to_json(tmp_path / "r.json")
    kept = Transcript.load(tmp_path / "t.npz")
    assert kept.facts.commitment == transcript.facts.commitment
    assert ag.AuditResult.load(tmp_path / "r.json").commitment == result.commitment
    # The result may be published; what opens the promise stays with the transcript.
    assert transcript.facts.commitment.nonce not in (tmp_path / "r.json").read_text()
    ran = CliRunner().invoke(app, ["verify", str(tmp_path / "r.json"), str(tmp_path / "t.npz")])
    assert ran.exit_code == 0, ran.output
    assert "OK commitment" in ran.output


def other_coins(run):
    facts = replace(
        run.facts, commitment=commit(seed=run.facts.seed, member=~run.member, claim=CLAIM)
    )
    return run.with_facts(facts)


def other_seed(run):
    facts = replace(run.facts, commitment=commit(seed=77, member=run.member, claim=CLAIM))
    return run.with_facts(facts)


def other_nonce(run):
    promise = replace(run.facts.commitment, nonce="b" * 32)
    return run.with_facts(replace(run.facts, commitment=promise))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_coins, "other canaries are present"),
        (other_seed, "the seed is another one"),
        (other_nonce, "not that of its nonce"),
    ],
)
def test_a_broken_promise_is_named(change, words, transcript):
    changed = change(transcript)
    answer = verify(ag.audit(changed, claim=CLAIM), changed)
    assert statuses(answer)["commitment"] == "fails"
    assert words in str(answer)
    assert "Do not rely on this result" in answer.conclusion


def test_another_claim_than_was_committed_to(transcript):
    other = ag.PrivacyClaim(epsilon=9.0, delta=1e-5)
    result = ag.audit(transcript, claim=other)
    found = next(item for item in result.findings if item.check == "committed claim")
    assert found.status.value == "warn"
    answer = verify(result, transcript)
    assert statuses(answer)["commitment"] == "fails"
    assert "the claim is not the one" in str(answer)


def test_frozen_layers_hide_the_membership_alone(transcript):
    """Their canaries are left out: seed and claim are held to what was committed all the same."""
    frozen = transcript.with_facts(replace(transcript.facts, frozen=(("weight", 3, 5),)))
    answer = verify(ag.audit(frozen, claim=CLAIM), frozen)
    assert statuses(answer)["commitment"] == "not checked"
    other = ag.PrivacyClaim(epsilon=9.0, delta=1e-5)
    assert statuses(verify(ag.audit(frozen, claim=other), frozen))["commitment"] == "fails"
    seeded = other_seed(frozen)
    assert statuses(verify(ag.audit(seeded, claim=CLAIM), seeded))["commitment"] == "fails"


def test_what_was_not_promised_is_said_not_to_be(transcript):
    bare = transcript.with_facts(replace(transcript.facts, commitment=None))
    answer = verify(ag.audit(bare, claim=CLAIM), bare)
    assert statuses(answer)["commitment"] == "not checked"
    assert answer.holds
    assert "the auditor's word" in answer.conclusion
    open_claim = commit(seed=bare.facts.seed, member=bare.member, claim=None)
    some = transcript.with_facts(replace(transcript.facts, commitment=open_claim))
    answer = verify(ag.audit(some, claim=CLAIM), some)
    assert statuses(answer)["commitment"] == "holds"
    assert "no claim was committed to" in str(answer)


def test_a_promise_that_nothing_opens_fails(result, transcript):
    bare = transcript.with_facts(replace(transcript.facts, commitment=None))
    assert statuses(verify(result, bare))["commitment"] == "fails"
    assert (
        statuses(verify(replace(result, commitment="c" * 64), transcript))["commitment"] == "fails"
    )


def test_a_transcript_of_another_run_or_a_changed_one_fails(result, transcript):
    other = ag.simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=2.0, present=200, absent=200, seed=1
    )
    answer = verify(result, other.with_facts(replace(other.facts, run="d" * 32)))
    assert statuses(answer)["run"] == "fails"
    assert statuses(answer)["bound"] == "fails"
    sums = replace(transcript.canaries, planted_total=transcript.canaries.planted_total * 1.01)
    answer = verify(result, replace(transcript, canaries=sums))
    assert not answer.holds
    raised = replace(result, epsilon_lower=result.epsilon_lower - 0.5)
    assert statuses(verify(raised, transcript))["bound"] == "fails"


def test_scores_and_other_versions_are_checked_as_far_as_they_go(result, transcript):
    scores = transcript.scores()
    answer = verify(ag.audit(scores, claim=CLAIM), scores)
    assert statuses(answer)["bound"] == "holds"
    assert statuses(answer)["commitment"] == "not checked"
    older = replace(result, version="0.0.9", findings=result.findings[:-1])
    answer = verify(older, transcript)
    assert statuses(answer)["version"] == "not checked"
    # Whoever writes a file also writes its version: what differs fails.
    assert statuses(answer)["checks"] == "fails"
    assert verify(replace(result, version="0.0.9"), transcript).holds


def test_a_damaged_file_is_refused(result, transcript, tmp_path):
    transcript.save(tmp_path / "t.npz")
    content = json.loads(result.to_json())
    content["epsilon_lower"] = 1.0
    (tmp_path / "r.json").write_text(json.dumps(content))
    ran = CliRunner().invoke(app, ["verify", str(tmp_path / "r.json"), str(tmp_path / "t.npz")])
    assert ran.exit_code == 2
    result.to_json(tmp_path / "r.json")
    ran = CliRunner().invoke(app, ["verify", str(tmp_path / "r.json"), str(tmp_path / "none.npz")])
    assert ran.exit_code == 2
    other = commit(seed=77, member=transcript.member, claim=CLAIM)
    facts = replace(transcript.facts, commitment=other)
    transcript.with_facts(facts).save(tmp_path / "t.npz")
    ran = CliRunner().invoke(app, ["verify", str(tmp_path / "r.json"), str(tmp_path / "t.npz")])
    assert ran.exit_code == 3
    assert "another digest" in ran.output


def test_digests_hide_and_bind():
    member = np.array([True, False, True, True])
    one, two = (commit(seed=1, member=member, claim=CLAIM) for _ in range(2))
    assert one.digest != two.digest
    again = commit(seed=1, member=member, claim=CLAIM, nonce=one.nonce)
    assert again == one
    assert one.fault(1, member) == ""
    assert one.claim == CLAIM
    with pytest.raises(FileFormatError, match="commitment"):
        Commitment(digest="", nonce="", statement="[]").claim  # noqa: B018


def _leaking(data, replay):
    replay.public("number of records", len(data))


def _silent(data, replay):
    replay.public("number of steps", 5)


@pytest.mark.parametrize("training", [_leaking, _silent])
def test_findings_of_a_replay_are_checked_against_its_report(
    training, result, transcript, tmp_path
):
    report = ag.replay(training, list(range(20)), leave_out=3, steps=1)
    joined = join(result, report)
    assert (joined.verdict is ag.Verdict.VIOLATION) == (training is _leaking)
    without = verify(joined, transcript)
    assert statuses(without)["replay"] == "fails"
    assert statuses(verify(joined, transcript, report))["replay"] == "holds"
    other = ag.replay(_silent if training is _leaking else _leaking, list(range(20)), leave_out=3)
    assert statuses(verify(joined, transcript, other))["replay"] == "fails"
    hidden = replace(joined, findings=result.findings)
    assert not verify(hidden, transcript, report).holds
    assert "replay" not in statuses(verify(result, transcript))
    names = [str(tmp_path / name) for name in ("result.json", "run.npz", "replay.json")]
    joined.to_json(names[0])
    transcript.save(names[1])
    report.to_json(names[2])
    told = CliRunner().invoke(app, ["verify", *names[:2], "--replay", names[2]])
    assert told.exit_code == 0, told.output
    assert "OK replay" in told.output
    told = CliRunner().invoke(app, ["verify", *names[:2]])
    assert told.exit_code == 3
    assert "give its report" in told.output
