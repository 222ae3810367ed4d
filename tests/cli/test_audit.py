"""The commands that read what a run left behind: verdicts, exit codes, documents."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

import askgauss as ag
from askgauss import report

CLAIM = ("--epsilon", "8", "--delta", "1e-5")


@pytest.mark.parametrize(
    ("name", "code", "verdict"),
    [("correct", 0, "CONSISTENT"), ("leaky", 1, "VIOLATION"), ("scores", 3, "INCONCLUSIVE")],
)
def test_the_exit_code_is_the_verdict(run, request, name, code, verdict):
    result = run("audit", request.getfixturevalue(name), *CLAIM)
    assert result.exit_code == code
    assert result.stdout.startswith(f"{verdict}: ")
    assert result.stderr == ""


def test_an_epsilon_beyond_every_audit_is_refused_at_once(run, scores):
    result = run("audit", scores, "--epsilon", "1e300", "--delta", "1e-5")
    assert result.exit_code == 2
    assert "epsilon in (0, 1e+09], got 1e+300" in result.stderr


def test_an_invalid_audit_is_3(run, tmp_path):
    # Every score twice: an audit of them would count the same evidence twice.
    path = tmp_path / "twice.npz"
    values = [0.1 * index for index in range(300)] * 2
    ag.CanaryScores.from_groups(
        present=[value + 1.0 for value in values], absent=values, noise="gaussian"
    ).save(path)
    result = run("audit", path, "--epsilon", "100", "--delta", "1e-5")
    assert result.exit_code == 3
    assert result.stdout.startswith("INVALID: ")


def test_lenient_lets_the_inconclusive_through_and_nothing_else(run, scores, leaky):
    assert run("audit", scores, *CLAIM, "--strict").exit_code == 3
    assert run("audit", scores, *CLAIM, "--lenient").exit_code == 0
    assert run("audit", leaky, *CLAIM, "--lenient").exit_code == 1
    assert run("audit", leaky, "--delta", "1e-5", "--lenient").exit_code == 3


def test_without_a_claim_there_is_a_bound_and_the_gate_stays_closed(run, leaky):
    result = run("audit", leaky, "--delta", "1e-5")
    assert result.exit_code == 3
    assert "the gate stays closed" in result.stderr
    assert result.stdout.startswith("NO VERDICT: ")
    assert "epsilon >= " in result.stdout
    assert "VIOLATION" not in result.stdout


def test_the_command_says_what_the_library_says(run, scores):
    content = json.loads(
        run(
            "audit", scores, *CLAIM, "--json", "-", "--auditor", "gaussian-rectangle",
            "--confidence", "0.9", "--gate-error", "0.01", "--noise-multiplier", "1.45",
            "--sampling-rate", "0.2", "--steps", "100", "--clip-norm", "1",
        ).stdout
    )  # fmt: skip
    claim = ag.PrivacyClaim(
        epsilon=8.0, delta=1e-5, noise_multiplier=1.45, sampling_rate=0.2, steps=100, clip_norm=1.0
    )
    expected = ag.audit(
        ag.CanaryScores.load(scores),
        claim=claim,
        auditor=ag.GaussianRectangle(),
        confidence=0.9,
        gate_error=0.01,
    )
    wanted = json.loads(expected.to_json())
    source = content.pop("provenance")
    assert source["file"] == "scores.npz"
    assert source["sha256"] == hashlib.sha256(scores.read_bytes()).hexdigest()
    for each in (content, wanted):
        each.pop("digest")
    assert content == {key: item for key, item in wanted.items() if key != "provenance"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--epsilon", "8"], "--delta is missing"),
        ([], "--epsilon and --delta are missing"),
        (["--delta", "1e-5", "--noise-multiplier", "2"], "--noise-multiplier to be a part of"),
        ([*CLAIM, "--auditor", "gausian-shift"], "Did you mean gaussian-shift?"),
        ([*CLAIM, "--auditor", "subsampled-gaussian"], "reads a transcript"),
        ([*CLAIM, "--json", "-", "--html", "-"], "--json and --html"),
        ([*CLAIM, "--json", "no/x", "--html", "no/x"], "--json and --html"),
        ([*CLAIM, "--confidence", "1.5"], "confidence"),
    ],
)
def test_what_cannot_be_audited_is_2(run, scores, arguments, word):
    result = run("audit", scores, *arguments)
    assert result.exit_code == 2
    assert word in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_documents_of_every_kind(run, leaky, tmp_path):
    paths = {form: tmp_path / f"out.{form}" for form in ("json", "junit", "html", "markdown")}
    options = [item for form, path in paths.items() for item in (f"--{form}", path)]
    result = run("audit", leaky, *CLAIM, *options)
    assert result.exit_code == 1
    assert ag.AuditResult.from_json(paths["json"].read_text()).verdict is ag.Verdict.VIOLATION
    suite = ET.fromstring(paths["junit"].read_bytes()).find("testsuite")
    assert int(suite.get("failures")) >= 1
    assert "VIOLATION" in paths["html"].read_text(encoding="utf-8").upper()
    assert "Violation" in paths["markdown"].read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in paths.values()
    )


@pytest.mark.parametrize("form", ["json", "junit", "markdown"])
def test_a_document_on_stdout_is_alone_there(run, correct, tmp_path, form):
    path = tmp_path / "out"
    assert run("audit", correct, *CLAIM, f"--{form}", path).exit_code == 0
    result = run("audit", correct, *CLAIM, f"--{form}", "-")
    assert result.exit_code == 0
    assert result.stdout == path.read_text(encoding="utf-8")


def test_a_link_is_followed_not_replaced(run, correct, tmp_path):
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("")
    link.symlink_to(target)
    assert run("audit", correct, *CLAIM, "--json", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["kind"] == "askgauss-result"


def test_names_from_a_file_cannot_command_a_terminal(run, tmp_path):
    path = tmp_path / "hostile.npz"
    transcript = ag.simulate_dpsgd(
        steps=40, sampling_rate=0.5, noise_multiplier=1.0, present=50, absent=50, seed=0,
        fault="half-noise-in-one-tensor",
    )  # fmt: skip
    names = ("\x1b[2J\x1b]0;title\x07", "a\u202eb", "<script>alert(1)</script>")
    transcript.with_facts(replace(transcript.facts, tensors=names)).save(path)
    documents = [tmp_path / name for name in ("out.html", "out.md", "out.xml")]
    options = ["--html", documents[0], "--markdown", documents[1], "--junit", documents[2]]
    claimed = ["--noise-multiplier", "1", "--steps", "40"]
    result = run("audit", path, *CLAIM, *claimed, "--verbose", *options)
    assert "script" in result.stdout  # the name is shown, as text
    texts = [result.output, *(item.read_text(encoding="utf-8") for item in documents)]
    texts.append(run("diagnose", path, *CLAIM, *claimed).output)
    for text in texts:
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    for text in texts[1:4]:
        assert "<script>alert" not in text


def test_a_hostile_file_name_is_spelled_out(run):
    result = run("audit", "no\x1b[31m such", *CLAIM)
    assert result.exit_code == 2
    assert "\\x1b[31m" in result.stderr
    assert "\x1b" not in result.stderr


# Reading from a pipe.


def test_standard_input(run, leaky):
    result = run("audit", "-", *CLAIM, input=leaky.read_bytes())
    assert result.exit_code == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"kind": "x", "schema": 1}'])
def test_standard_input_that_is_no_data(run, content):
    result = run("audit", "-", *CLAIM, input=content)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "the input stream" in result.stderr


# compare, diagnose, report.


def test_compare(run, scores, tmp_path):
    path = tmp_path / "table.md"
    options = ("--auditor", "gaussian-shift", "--auditor", "one-run", "--markdown", path)
    result = run("compare", scores, *CLAIM, *options)
    assert result.exit_code == 0
    assert "gaussian-shift" in result.stdout
    assert "| one-run" in path.read_text()
    rows = json.loads(run("compare", scores, *CLAIM, "--json", "-").stdout)["rows"]
    assert len(rows) > 5
    assert run("compare", scores, *CLAIM, "--json", "-", "--markdown", "-").exit_code == 2


def test_diagnose(run, correct, leaky, scores):
    claimed = (*CLAIM, "--noise-multiplier", "1.45", "--sampling-rate", "0.2", "--steps", "100")
    assert run("diagnose", correct, *claimed).exit_code == 0
    result = run("diagnose", leaky, *claimed)
    assert result.exit_code == 1
    assert "Failed:\n  noise scale: " in result.stdout
    assert "[pass] repeated noise: " in result.stdout
    assert run("diagnose", scores).exit_code == 0
    # A detail of a claim is not dropped for want of the claim.
    refused = run("diagnose", scores, "--noise-multiplier", "2")
    assert refused.exit_code == 2
    assert "--epsilon and --delta are missing" in refused.stderr
    findings = json.loads(run("diagnose", leaky, *claimed, "--json", "-").stdout)["findings"]
    assert {item["status"] for item in findings} >= {"pass", "fail"}


@pytest.mark.parametrize("claim", [CLAIM, ("--delta", "1e-5")])
@pytest.mark.parametrize("fault", [None, "no-noise", "same-noise-every-step", "uniform-noise"])
def test_the_answer_takes_at_most_14_lines_of_80_columns(run, tmp_path, fault, claim):
    ag.simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=1.4, present=20, absent=60, seed=0,
        fault=fault,
    ).save(tmp_path / "run.npz")  # fmt: skip
    shown = run("audit", tmp_path / "run.npz", *claim).stdout.splitlines()
    whole = run("audit", tmp_path / "run.npz", *claim, "--verbose").stdout.splitlines()
    assert len(shown) <= 14 < len(whole)
    assert max(map(len, shown)) <= 80
    labels = {line[2:14].strip() for line in shown[1:]}
    assert {"measured", "method", "not tested", "private", "next"} <= labels
    if fault is not None:
        assert "failed" in labels


def test_report_renders_what_audit_wrote(run, leaky, tmp_path):
    path = tmp_path / "result.json"
    audited = run("audit", leaky, *CLAIM, "--verbose", "--json", path)
    shown = run("report", path)
    assert shown.exit_code == 0  # it shows, it does not judge
    assert shown.stdout == audited.stdout
    page = run("report", "-", "--markdown", "-", input=path.read_bytes())
    assert page.stdout == run("audit", leaky, *CLAIM, "--markdown", "-").stdout


def test_report_of_a_folder_is_of_every_run_in_it(run, leaky, correct, tmp_path, monkeypatch):
    # Pages take longer to draw than everything else here, and are looked at elsewhere.
    monkeypatch.setattr(report, "render", lambda *_: "<html>drawn elsewhere")
    for name, source in (("a/one", leaky), ("b/two", correct)):
        (tmp_path / name).mkdir(parents=True)
        run("audit", source, *CLAIM, "--json", tmp_path / name / "result.json")
    alone = run("report", tmp_path / "a/one")
    assert alone.exit_code == 0
    assert "VIOLATION" in alone.stdout
    assert b"<html" in (tmp_path / "a/one/report.html").read_bytes()
    both = run("report", tmp_path)
    assert both.exit_code == 0
    lines = both.stdout.splitlines()
    assert lines.index("a/one") < lines.index("b/two")
    assert alone.stdout in both.stdout
    assert (tmp_path / "b/two/report.html").exists()
    refused = run("report", tmp_path, "--html", tmp_path / "x.html")
    assert refused.exit_code == 2
    assert "a/one" in refused.stderr
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": "askgauss-result"}', b"\xff"])
def test_report_of_something_else_is_2(run, content):
    result = run("report", "-", input=content)
    assert result.exit_code == 2
    assert "as a result" in result.stderr
    assert result.stderr.count("\n") == 1


def test_reading_the_wrong_kind_says_which_command_is_right(run, scores, tmp_path):
    path = tmp_path / "result.json"
    run("audit", scores, *CLAIM, "--json", path)
    assert "askgauss report" in run("audit", path, *CLAIM).stderr
    assert "askgauss audit FILE --html" in run("report", scores).stderr
    (tmp_path / "empty").mkdir()
    folder = run("report", tmp_path / "empty")
    assert folder.exit_code == 2
    assert "found none" in folder.stderr


@pytest.mark.parametrize("command", [["report"], ["attest"], ["check-results"]])
def test_what_never_ends_is_not_read_for_ever(run, tmp_path, command):
    big = tmp_path / "big.json"
    with big.open("wb") as stream:
        stream.truncate(3 << 30)
    for source in ("/dev/zero", str(big)):
        answer = run(*command, source)
        # JSON of other tools is left alone by the hook.
        assert answer.exit_code == (0 if command == ["check-results"] else 2)
        assert "Unexpected" not in answer.stderr
