"""The evidence pack, held against the schemas of those who read it, and provenance."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

import askgauss as ag
from askgauss.evidence.attestation import FILES, evidence_pack
from askgauss.evidence.provenance import Provenance, file_digest, provenance, with_provenance
from askgauss.exceptions import InvalidArgumentError
from tests.report import samples

WEIGHTS = {"model weights.safetensors": "ab" * 32}
SAMPLES = {
    "consistent": (samples.consistent, "PASSED"),
    "violation": (samples.violation, "FAILED"),
    "inconclusive": (samples.inconclusive, "FAILED"),
    "invalid": (samples.invalid, "FAILED"),
    "no_claim": (samples.no_claim, "FAILED"),
    "no_noise": (samples.no_noise, "FAILED"),
    "hostile": (samples.hostile, "FAILED"),
}


def pack(name, **options):
    result = with_provenance(
        SAMPLES[name][0](),
        Provenance(file="run 1.npz", sha256="cd" * 32, audited="2026-01-02T03:04:05Z"),
    )
    return result, evidence_pack(result, **options)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_statement_is_one_of_in_toto(name):
    json_format = pytest.importorskip("google.protobuf.json_format")
    pytest.importorskip("in_toto_attestation")
    from in_toto_attestation.predicates.test_result.v0.test_result_pb2 import TestResult
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

    _, made = pack(name, subjects=WEIGHTS)
    message = json_format.Parse(made["statement.json"], StatementMessage())
    Statement.copy_from_pb(message).validate()
    content = json.loads(made["statement.json"])
    assert content["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    predicate = json_format.ParseDict(content["predicate"], TestResult())
    assert predicate.result == SAMPLES[name][1]
    digest = hashlib.sha256(made["result.json"].encode()).hexdigest()
    assert predicate.configuration[0].digest["sha256"] == digest
    assert content["subject"] == [
        {"name": "model weights.safetensors", "digest": {"sha256": "ab" * 32}}
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bill_is_one_of_cyclonedx(name):
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    _, made = pack(name, subjects={**WEIGHTS, "tokenizer.json": "00" * 32})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made["bom.json"]) is None
    component = json.loads(made["bom.json"])["metadata"]["component"]
    assert component["type"] == "machine-learning-model"
    metrics = component["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert metrics[0]["type"].startswith("epsilon lower bound")


@pytest.mark.parametrize("name", SAMPLES)
def test_sarif_has_every_check_with_its_level(name):
    result, made = pack(name, subjects=WEIGHTS)
    content = json.loads(made["findings.sarif"])
    run = content["runs"][0]
    assert content["version"] == "2.1.0"
    assert len(run["results"]) == 1 + len(result.findings)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len({*rules})
    for found, finding in zip(run["results"][1:], result.findings, strict=True):
        assert rules[found["ruleIndex"]] == found["ruleId"]
        assert (found["level"] == "error") == (finding.status.value == "fail")
        # By the standard only a failure has a level.
        assert (found["kind"] == "fail") == (found["level"] != "none")
        assert found["message"]["text"]
    assert "tested" in run["properties"]["scope"] or not result.scope


def test_the_card_says_what_was_not_tested():
    _, made = pack("consistent", subjects=WEIGHTS)
    assert "not tested" in made["model-card.md"]
    assert "CONSISTENT" in made["model-card.md"]
    assert set(made) == set(FILES)


def test_an_audit_without_checks_is_refused():
    with pytest.raises(InvalidArgumentError, match="checks"):
        evidence_pack(samples.bare(), subjects=WEIGHTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"auditor": "one-run"}, "its method is one-run"),
        ({"confidence": 0.6}, "its confidence is 0.6 instead of 0.95"),
        ({"gate_error": 0.1}, "its gate error is 0.1 instead of 0.001"),
        ({"auditor": ag.SubsampledGaussian(counts_only=True)}, "has other options"),
    ],
)
def test_every_document_says_that_the_audit_is_not_the_default_one(options, words):
    run = ag.simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=2.0, present=200, absent=200, seed=0
    )
    claim = ag.PrivacyClaim(epsilon=30.0, delta=1e-5)
    usual = evidence_pack(ag.audit(run, claim=claim), subjects=WEIGHTS)
    made = evidence_pack(ag.audit(run, claim=claim, **options), subjects=WEIGHTS, lenient=True)
    assert json.loads(made["statement.json"])["predicate"]["result"] == "WARNED"
    for name in set(FILES) - {"result.json"}:
        assert "not tested by the default audit" in made[name], name
        assert words in made[name].replace("&#45;", "-"), name
        assert "not tested by the default audit" not in usual[name], name


def test_a_result_of_another_version_is_at_most_warned():
    """Nobody compares what it says was tested with its checks, so that an editor names one."""
    _, usual = pack("consistent")
    result = samples.consistent()
    fine = tuple(replace(part, status="fine") for part in result.scope)
    made = evidence_pack(replace(result, version="0.0.1", scope=fine), subjects=WEIGHTS)
    for documents, outcome in ((usual, "PASSED"), (made, "WARNED")):
        statement = json.loads(documents["statement.json"])
        assert statement["predicate"]["result"] == outcome
    for name in set(FILES) - {"result.json"}:
        assert "made with askgauss 0.0.1" in made[name].replace("&#46;", "."), name


def test_lenient_is_warned():
    _, made = pack("inconclusive", lenient=True)
    content = json.loads(made["statement.json"])
    assert content["predicate"]["result"] == "WARNED"
    assert content["predicate"]["warnedTests"][0] == "privacy claim"
    assert content["subject"][0]["name"] == "run 1.npz"


def test_a_statement_about_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="weights"):
        evidence_pack(replace(samples.consistent(), provenance=None))
    with pytest.raises(InvalidArgumentError, match="SHA-256"):
        evidence_pack(samples.consistent(), subjects={"a": "xyz"})


def test_provenance_goes_through_json_and_names_no_host(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "run.npz"
    path.write_bytes(b"abc")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("GITHUB_SHA", "f" * 40)
    typed = ["askgauss", "audit", "/home/ada/p-42/run 1.npz", "--html=C:\\ada\\x.html"]
    found = provenance(file=path, command=[*typed, "--auditor", "a:B", "--epsilon", "8"])
    assert found.sha256 == hashlib.sha256(b"abc").hexdigest() == file_digest(path)
    assert found.audited == "2023-11-14T22:13:20Z"
    assert found.commit == "f" * 40
    told = "askgauss audit 'run 1.npz' --html=x.html --auditor a:B --epsilon 8"
    assert found.command == told
    assert "folder" not in str(found)
    result = with_provenance(samples.consistent(), found)
    again = ag.AuditResult.from_json(result.to_json())
    assert again.provenance == found
    for shown in (str(again), again.to_markdown(), again.to_junit(), again.to_html()):
        assert found.sha256 in shown.replace("\n              ", "")


def test_the_commit_is_read_from_gits_own_files(tmp_path, monkeypatch):
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT"):
        monkeypatch.delenv(name, raising=False)
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    assert provenance().commit == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    assert provenance().commit == "a" * 40
    (git / "refs" / "heads" / "main").write_text("b" * 40 + "\n")
    assert provenance().commit == "b" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert provenance().commit == "c" * 40


def test_names_from_a_forged_result_are_one_line_in_every_document():
    evil = "run\n::error::\u202egreen\x1b[31m.npz"
    result = replace(samples.consistent(), version=f"1\n{evil}")
    result = with_provenance(
        result, Provenance(file=evil, sha256="cd" * 32, audited=f"2026\n{evil}")
    )
    for subjects in (None, {evil: "ab" * 32, f"more {evil}": "ab" * 32}):
        documents = evidence_pack(result, subjects=subjects)
        for name in ("statement.json", "bom.json", "findings.sarif"):
            for text in texts(json.loads(documents[name])):
                assert not {"\n", "\u202e", "\x1b"} & set(text), (name, text)


def texts(content):
    """Every text in a document."""
    if isinstance(content, (dict, list)):
        for item in content.values() if isinstance(content, dict) else content:
            yield from texts(item)
    elif isinstance(content, str):
        yield content
