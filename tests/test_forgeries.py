"""Forgeries of results, transcripts and commitments; docs/threat-model.md lists the same.

Whoever forges has the sources and all files, and writes every digest anew. Each forgery has the
command that promises to notice it; that command has to refuse it, and to say why.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import askgauss as ag
from askgauss import policy
from askgauss.auditors import SubsampledGaussian
from askgauss.checks.scope import scope_of
from askgauss.cli.app import app
from askgauss.evidence import verification
from askgauss.evidence.provenance import Provenance, with_provenance
from askgauss.files import codec
from askgauss.recording.commitment import _digest, commit
from askgauss.recording.transcript import Transcript
from askgauss.replay import join
from askgauss.results import Status

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.0)
LOOSER = replace(CLAIM, epsilon=9.0)
PAGE = Path(__file__).parents[1] / "docs" / "threat-model.md"


def recorded(*, seed=0, canaries=200, unnoised=3, rate=0.2):
    """A run that breaks its claim: some steps had no noise."""
    run = ag.simulate_dpsgd(
        steps=60,
        sampling_rate=rate,
        noise_multiplier=2.0,
        present=canaries,
        absent=canaries,
        seed=seed,
    )
    promise = commit(seed=run.facts.seed, member=run.member, claim=CLAIM)
    facts = replace(run.facts, run="a" * 32, commitment=promise, unnoised_steps=unnoised)
    return run.with_facts(facts)


@dataclass(frozen=True)
class Files:
    """What a verifier is given: a result, a transcript, and what goes with them."""

    result: ag.AuditResult
    transcript: Transcript
    published: str
    folder: Path
    options: tuple[str, ...] = ()
    edit: Callable[[dict], None] | None = None

    def other(self, **changes):
        return replace(self, **changes)

    def findings(self, findings):
        """The result with other findings, and all that follows from them."""
        findings = tuple(findings)
        result = replace(
            self.result,
            findings=findings,
            scope=scope_of(findings, self.result.summary.run.passed),
        )
        return self.other(result=replace(result, **policy.decide_again(result).stated()))

    def facts(self, **changes):
        return self.other(
            transcript=self.transcript.with_facts(replace(self.transcript.facts, **changes))
        )

    def promise(self, text, nonce="b" * 32, **facts):
        """Both files with a commitment to this text."""
        kept = replace(
            self.transcript.facts.commitment,
            digest=_digest(nonce, text),
            nonce=nonce,
            statement=text,
        )
        changed = self.facts(commitment=kept, **facts)
        return changed.other(result=replace(self.result, commitment=kept.digest))

    def write(self):
        """The files as paths."""
        names = [str(self.folder / name) for name in ("result.json", "run.npz")]
        content = codec.parse(self.result.to_json())
        del content["digest"]
        if self.edit is not None:
            self.edit(content)
        kind, schema = content.pop("kind"), content.pop("schema")
        Path(names[0]).write_text(codec.dumps(kind, schema, content))
        self.transcript.save(names[1])
        return names


BAD = "steps without noise"
FORGERIES = {}


def forgery(name, *, command="verify", says):
    """One that the command must refuse, with these words."""

    def keep(make):
        assert name not in FORGERIES
        FORGERIES[name] = (command, says, make)
        return make

    return keep


def statement(files, **changes):
    content = json.loads(files.transcript.facts.commitment.statement)
    content |= changes
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


# --- results ------------------------------------------------------------------------------------


@forgery("a lower bound is written in", command="check-results", says="epsilon_lower")
def _(files):
    return files.other(edit=lambda content: content.update(epsilon_lower=0.5))


@forgery("CONSISTENT is written in", command="check-results", says="verdict")
def _(files):
    return files.other(
        edit=lambda content: content.update(verdict="CONSISTENT", reason=content["reason"])
    )


@forgery("the failed check is taken out", command="check-results", says="scope")
def _(files):
    def edit(content):
        content["findings"] = [item for item in content["findings"] if item["check"] != BAD]

    return files.other(edit=edit)


@forgery("a part that was not tested is called fine", command="check-results", says="scope")
def _(files):
    def edit(content):
        part = next(part for part in content["scope"] if part["status"] == "not tested")
        part.update(status="fine")

    return files.other(edit=edit)


@forgery("more canaries are written in", says="of 2,000 inserted")
def _(files):
    return files.other(edit=lambda content: content.update(present=2000))


@forgery("the failed check is taken out, and the rest made to fit", says="missing")
def _(files):
    return files.findings([item for item in files.result.findings if item.check != BAD])


@forgery("the failed check passes, and the rest is made to fit", says=BAD)
def _(files):
    return files.findings(
        replace(item, status=Status.PASS) if item.check == BAD else item
        for item in files.result.findings
    )


def stripped(files):
    return files.other(result=ag.audit(files.transcript, claim=CLAIM, diagnostics=False))


@forgery("the audit is made without its checks", says="its checks were not run")
def _(files):
    return stripped(files)


@forgery(
    "evidence is made of an audit without its checks",
    command="attest",
    says="Expected a result with its checks",
)
def _(files):
    return stripped(files)


@forgery("another method is taken", says="its method is one-run")
def _(files):
    return files.other(result=ag.audit(files.transcript, claim=CLAIM, auditor="one-run"))


@forgery("the method has other options", says="options")
def _(files):
    method = SubsampledGaussian(counts_only=True)
    return files.other(result=ag.audit(files.transcript, claim=CLAIM, auditor=method))


@forgery("the confidence is a lower one", says="its confidence is 0.6")
def _(files):
    return files.other(result=ag.audit(files.transcript, claim=CLAIM, confidence=0.6))


@forgery("the gate has another false-alarm rate", says="its gate error is 1e-12")
def _(files):
    return files.other(result=ag.audit(files.transcript, claim=CLAIM, gate_error=1e-12))


@forgery("an earlier version is named, and a check is missing", says="missing")
def _(files):
    kept = [item for item in files.result.findings if item.check != BAD]
    changed = files.findings(kept)
    return changed.other(result=replace(changed.result, version="0.0.1"))


@forgery("a measured number of a check is changed", says=".measured")
def _(files):
    return files.findings(
        item if item.measured is None else replace(item, measured=1.1 * item.measured + 1.0)
        for item in files.result.findings
    )


@forgery("the words of a check are changed", says=".summary")
def _(files):
    first, *others = files.result.findings
    return files.findings([replace(first, summary="everything was tested."), *others])


@forgery("a check is invented", says="added")
def _(files):
    known = files.result.findings[0]
    return files.findings([*files.result.findings, replace(known, check="privacy proven")])


@forgery("an accountant's check is invented", says="accounted epsilon")
def _(files):
    known = next(item for item in files.result.findings if item.status is Status.PASS)
    return files.findings([*files.result.findings, replace(known, check="accounted epsilon")])


@forgery("a monitor's all-clear is invented", says="findings.monitor")
def _(files):
    known = next(item for item in files.result.findings if item.status is Status.PASS)
    return files.findings([*files.result.findings, replace(known, check="monitor")])


def _leaking(data, replay):
    replay.public("number of records", len(data))


def _silent(data, replay):
    replay.public("number of steps", 5)


@forgery("a replay without a leak is invented", says="give its report")
def _(files):
    report = ag.replay(_silent, list(range(20)), leave_out=3, steps=1)
    return files.other(result=join(files.result, report))


@forgery("the leak that a replay found is left out", command="verify --replay", says="replay")
def _(files):
    report = ag.replay(_leaking, list(range(20)), leave_out=3, steps=1)
    report.to_json(files.folder / "replay.json")
    return files.other(options=("--replay", str(files.folder / "replay.json")))


@forgery("facts of the run are changed", says="metadata.run.noise_multiplier")
def _(files):
    return files.other(edit=lambda content: content["metadata"]["run"].update(noise_multiplier=3.0))


@forgery("a figure is changed", says="metadata.figures")
def _(files):
    def edit(content):
        content["metadata"]["figures"]["scores"]["present"]["mean"] = 0.0

    return files.other(edit=edit)


@forgery("a result of few inclusions is called public", says="must not be published")
def _(files):
    few = recorded(rate=0.001)
    result = replace(ag.audit(few, claim=CLAIM), private=False)
    return files.other(result=result, transcript=few)


@forgery("another run is named", says="the result is of run bbbbbbbbbbbb")
def _(files):
    return files.other(result=replace(files.result, run="b" * 32))


@forgery("no run is named", says="the result is of run unknown")
def _(files):
    return files.other(result=replace(files.result, run=None))


@forgery("another audited file is named", says="the result was made from the file")
def _(files):
    source = Provenance(file="run.npz", sha256="cd" * 32)
    return files.other(result=with_provenance(files.result, source))


@forgery("the result of another run is given this run's name", says="the data give")
def _(files):
    other = ag.audit(recorded(seed=1, unnoised=0), claim=CLAIM)
    digest = files.result.commitment
    return files.other(result=replace(other, run=files.result.run, commitment=digest))


@forgery("a field is invented", command="check-results", says="'certified'")
def _(files):
    return files.other(edit=lambda content: content.update(certified=True))


@forgery("a result of few canaries is called public", command="check-results", says="private")
def _(files):
    few = recorded(canaries=20)
    return files.other(result=replace(ag.audit(few, claim=CLAIM), private=False))


@forgery("the failed check is listed last", says="the order of findings")
def _(files):
    return files.findings(reversed(files.result.findings))


@forgery("the machine is called certified", says="metadata.environment")
def _(files):
    return files.other(
        edit=lambda content: content["metadata"]["environment"].update(certified="by a regulator")
    )


# --- claims -------------------------------------------------------------------------------------


def claiming(files, claim, **changes):
    given = {"claim": claim} if claim is not None else {"delta": 1e-5}
    return files.other(result=replace(ag.audit(files.transcript, **given), **changes))


@forgery("a looser claim is audited", says="the claim is not the one")
def _(files):
    return claiming(files, LOOSER)


@forgery("a looser claim is audited, and the digest dropped", says="does not carry it")
def _(files):
    return claiming(files, LOOSER, commitment=None)


@forgery("the claimed noise is left out", says="the claim is not the one")
def _(files):
    return claiming(files, replace(CLAIM, noise_multiplier=None))


@forgery("the claim is left out", says="the claim is not the one")
def _(files):
    return claiming(files, None)


# --- transcripts --------------------------------------------------------------------------------


@forgery("a byte of the transcript is changed", says="not what the header says")
def _(files):
    def write():
        names = Files.write(files)
        path = Path(names[1])
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        return names

    return write


@forgery("what was released at canaries is scaled", says="Expected planted totals")
def _(files):
    sums = files.transcript.canaries
    sums = replace(sums, planted_total=0.5 * sums.planted_total)
    return files.other(transcript=replace(files.transcript, canaries=sums))


@forgery("steps without noise are taken out of the transcript", says="checks: the result states")
def _(files):
    return files.facts(unnoised_steps=0)


@forgery("the recorded noise is another one", says="facts: ")
def _(files):
    return files.facts(noise_multiplier=2.5)


@forgery("the transcript of another run is given this run's name", says="other canaries")
def _(files):
    other = recorded(seed=1)
    promise, seed = files.transcript.facts.commitment, files.transcript.facts.seed
    swapped = other.with_facts(replace(other.facts, commitment=promise, seed=seed))
    return files.other(transcript=swapped)


@forgery("another run is recorded and audited in its place", says="other canaries are present")
def _(files):
    other = recorded(seed=1, unnoised=0)
    facts = replace(
        other.facts,
        commitment=files.transcript.facts.commitment,
        seed=files.transcript.facts.seed,
    )
    other = other.with_facts(facts)
    return files.other(transcript=other, result=ag.audit(other, claim=CLAIM))


@forgery("scores are given in place of the transcript", says="nothing that opens it")
def _(files):
    scores = files.transcript.scores()
    result = replace(ag.audit(scores, claim=CLAIM), commitment=files.result.commitment)
    return files.other(transcript=scores, result=result)


@forgery(
    "a packed transcript is kept with the code",
    command="check-results --refuse-private",
    says="askgauss-transcript",
)
def _(files):
    def write():
        path = files.folder / "run.npz.gz"
        path.write_bytes(gzip.compress(Path(Files.write(files)[1]).read_bytes()))
        return [str(path)]

    return write


@forgery(
    "a private result is kept with the code in a list",
    command="check-results --refuse-private",
    says="askgauss-result",
)
def _(files):
    def write():
        path = files.folder / "results.json"
        path.write_text(f"[{ag.audit(recorded(canaries=20), claim=CLAIM).to_json()}]")
        return [str(path)]

    return write


# --- commitments --------------------------------------------------------------------------------


@forgery("the commitment is taken out of the transcript", says="nothing that opens it")
def _(files):
    return files.facts(commitment=None)


@forgery(
    "the commitment is taken out of both files",
    command="verify --commitment",
    says="does not carry the digest that was published",
)
def _(files):
    changed = files.facts(commitment=None)
    return changed.other(
        result=replace(files.result, commitment=None), options=("--commitment", files.published)
    )


@forgery(
    "a looser claim is committed to after the run",
    command="verify --commitment",
    says="does not carry the digest that was published",
)
def _(files):
    facts = files.transcript.facts
    promise = commit(seed=facts.seed, member=files.transcript.member, claim=LOOSER)
    changed = files.facts(commitment=promise)
    return claiming(changed, LOOSER).other(options=("--commitment", files.published))


@forgery("the digest is that of another statement", says="not that of its nonce and statement")
def _(files):
    kept = files.transcript.facts.commitment
    promise = replace(kept, statement=statement(files, claim=codec.to_plain(LOOSER)))
    return claiming(files.facts(commitment=promise), LOOSER)


@forgery("the nonce is another one", says="not that of its nonce and statement")
def _(files):
    return files.facts(commitment=replace(files.transcript.facts.commitment, nonce="b" * 32))


@forgery("the nonce is empty", says="its nonce is not 32")
def _(files):
    return files.promise(statement(files), nonce="")


@forgery("nothing is committed to", says="its statement cannot be read")
def _(files):
    return claiming(files, LOOSER).promise("{}")


@forgery("an empty claim is committed to", says="cannot be read: Cannot read statement.claim")
def _(files):
    return claiming(files, LOOSER).promise(statement(files, claim={}))


@forgery(
    "a claim without epsilon is committed to",
    says="missing 1 required keyword-only argument: 'epsilon'",
)
def _(files):
    claim = codec.to_plain(LOOSER)
    del claim["epsilon"]
    return claiming(files, LOOSER).promise(statement(files, claim=claim))


@forgery("a claim without a number is committed to", says="epsilon")
def _(files):
    claim = {**codec.to_plain(LOOSER), "epsilon": None}
    return claiming(files, LOOSER).promise(statement(files, claim=claim))


@forgery("two claims are committed to", says="the key 'claim' is there twice")
def _(files):
    text = statement(files, claim=codec.to_plain(LOOSER))
    both = text[:-1] + f',"claim":{json.dumps(codec.to_plain(CLAIM))}' + "}"
    return files.promise(both)


@forgery("the statement is spelled otherwise", says="spelling")
def _(files):
    return files.promise(statement(files).replace(",", ", "))


@forgery("no seed is committed to", says="statement.seed")
def _(files):
    return files.promise(statement(files, seed=None), seed=None)


@forgery("another seed is committed to", says="the seed is another one")
def _(files):
    return files.promise(statement(files, seed=77))


@forgery("other canaries are committed to", says="other canaries are present")
def _(files):
    facts = files.transcript.facts
    promise = commit(seed=facts.seed, member=~files.transcript.member, claim=CLAIM)
    return files.promise(promise.statement)


@forgery("membership is left out", says="missing 1 required keyword-only argument: 'coins'")
def _(files):
    content = json.loads(statement(files))
    del content["coins"]
    return files.promise(json.dumps(content, sort_keys=True, separators=(",", ":")))


# --- what a result would be checked by is left out ----------------------------------------------


@forgery(
    "everything is called tested, and the facts of the run left out",
    command="check-results",
    says="one without the other",
)
def _(files):
    def edit(content):
        content["metadata"] = {}
        for part in content["scope"]:
            part["status"] = "fine"

    return files.other(edit=edit)


@forgery(
    "a result of few canaries is called public, and the facts of the run left out",
    command="attest",
    says="one without the other",
)
def _(files):
    few = recorded(canaries=20)
    return files.other(
        result=ag.audit(few, claim=CLAIM),
        edit=lambda content: content.update(metadata={}, private=False),
    )


@forgery("the words about the accountant are changed", says="accounted epsilon.summary")
def _(files):
    run = accounted(files.transcript)
    result = ag.audit(run.with_facts(replace(run.facts, accounted_epsilon=7.9)), claim=CLAIM)
    changed = files.other(transcript=run, result=result)
    return changed.findings(
        replace(item, summary=f"{item.summary} A regulator has approved of it.")
        if item.check == "accounted epsilon"
        else item
        for item in result.findings
    )


def accounted(run):
    """A run whose accountant counted its steps; what that says itself is not kept."""
    return run.with_facts(replace(run.facts, accounted=((2.0, 0.2, 60),), accounted_steps=60))


# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def genuine():
    run = recorded()
    return run, ag.audit(run, claim=CLAIM)


@pytest.fixture
def files(genuine, tmp_path):
    run, result = genuine
    return Files(
        result=result, transcript=run, published=run.facts.commitment.digest, folder=tmp_path
    )


def invoke(command, names, options=()):
    name, *given = command.split()
    paths = names if name == "verify" else names[:1]
    if name == "attest":
        given = ["-o", str(Path(names[0]).parent / "pack"), "--subject", names[1]]
    given = [item for item in given if item not in ("--replay", "--commitment")]
    return CliRunner().invoke(app, [name, *given, *paths, *options])


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_noticed_by_the_command_that_promises_it(name, files):
    command, says, make = FORGERIES[name]
    forged = make(files)
    names = forged() if callable(forged) else forged.write()
    found = invoke(command, names, () if callable(forged) else forged.options)
    assert found.exit_code in (2, 3), found.output
    assert says in found.output.replace("\n", " "), found.output
    assert "bug" not in found.output


def test_what_is_genuine_is_not_refused(files):
    names = files.write()
    for command in ("check-results", "attest", "verify"):
        found = invoke(command, names)
        assert found.exit_code == 0, found.output
    found = invoke("verify --commitment", names, ("--commitment", files.published))
    assert found.exit_code == 0, found.output
    assert np.count_nonzero(["OK" in line for line in found.output.splitlines()]) >= 9


def test_what_a_monitor_saw_is_taken_on_trust(files):
    """The transcript does not hold it: it is said, and words of praise are nobody's."""
    warning = replace(
        files.result.findings[0], check="monitor", status=Status.WARN, summary="Good."
    )
    names = files.findings([*files.result.findings, warning]).write()
    found = invoke("verify", names)
    assert found.exit_code == 0
    assert "not checked monitor" in " ".join(found.output.split())


@pytest.mark.parametrize(("own", "status"), [(7.9, Status.PASS), (8.24567, Status.WARN)])
def test_what_the_accountant_says_is_taken_on_trust(own, status, files):
    """It is asked when the result is made, and all that follows from its answer is compared."""
    run = accounted(files.transcript)
    result = ag.audit(run.with_facts(replace(run.facts, accounted_epsilon=own)), claim=CLAIM)
    (finding,) = (item for item in result.findings if item.check == "accounted epsilon")
    assert finding.status is status
    found = invoke("verify", files.other(transcript=run, result=result).write())
    assert found.exit_code == 0, found.output
    assert "not checked accountant" in " ".join(found.output.split())


def test_membership_that_scores_do_not_record_is_taken_on_trust(files):
    generator = np.random.default_rng(0)
    scores = ag.CanaryScores.from_groups(
        present=generator.normal(1.0, 1.0, 200), absent=generator.normal(size=200)
    )
    result = ag.audit(scores.with_membership("randomised"), claim=CLAIM)
    found = invoke("verify", files.other(transcript=scores, result=result).write())
    assert found.exit_code == 0, found.output
    assert "not checked membership: that it was randomised is the word" in " ".join(
        found.output.split()
    )
    recorded_by_the_scores = scores.with_membership("randomised")
    found = invoke("verify", files.other(transcript=recorded_by_the_scores, result=result).write())
    assert found.exit_code == 0, found.output
    assert "membership:" not in found.output


def test_small_p_values_are_compared():
    assert not verification._alike(1e-30, 1e-10, "findings.x.p_value")
    assert verification._alike(1e-30, 1e-10, "findings.x.measured")
    assert verification._alike(1.0e-30, 1.1e-30, "findings.x.p_value")


def test_whoever_verifies_sets_the_standard(files):
    """Another method or rate is accepted where the verifier asks for it."""
    asked = ("--auditor", "one-run", "--gate-error", "0.01")
    result = ag.audit(files.transcript, claim=CLAIM, auditor="one-run", gate_error=0.01)
    names = files.other(result=result).write()
    assert invoke("verify", names, asked).exit_code == 0
    assert invoke("verify", names).exit_code == 3


def test_every_field_of_a_result_is_looked_at(files):
    compared = [name for names in verification._COMPARED.values() for name in names]
    looked_at = [*compared, *verification._OPTIONS, *verification._APART]
    follows = ["assumption", "carries_bound", "next_step", "outside"]
    assert sorted([*looked_at, *follows]) == sorted(files.result.to_dict())


def test_the_page_lists_every_forgery():
    assert len(FORGERIES) >= 40
    listed = re.findall(r"^\| \d+ \| (.*?) \| `askgauss (.*?)` \|$", PAGE.read_text(), re.MULTILINE)
    assert listed == [(name, command) for name, (command, *_) in FORGERIES.items()]
