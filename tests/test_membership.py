"""Scores of groups that nobody randomised carry no bound; who decided membership is asked for."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import askgauss as ag
from askgauss import loggers
from askgauss.canaries import TextCanaries
from askgauss.cli import app
from askgauss.evidence import attestation
from askgauss.evidence.verification import verify
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    NotDefinedError,
    ScoresError,
)
from askgauss.recording.inputs import load_audit_input
from askgauss.report.words import advice
from askgauss.results import AuditResult, Verdict
from askgauss.stats.tradeoff import TradeOff

CLAIM = ag.PrivacyClaim(epsilon=1.0, delta=1e-5)


def easier(membership, seed=0, **known):
    """Members one deviation easier than non-members, and no leak."""
    draw = np.random.default_rng(seed)
    return ag.CanaryScores.from_groups(
        present=draw.normal(1.0, 1.0, 1000), absent=draw.standard_normal(1000),
        membership=membership, **known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "auditor", [None, "one-run", "one-run-fdp", "clopper-pearson", "gaussian-shift"]
)
def test_fixed_groups_carry_no_bound(auditor):
    """They ended in VIOLATION, or "369% of the claim", and `next` advised to declare noise."""
    result = ag.audit(easier("fixed"), claim=CLAIM, auditor=auditor)
    assert result.verdict is Verdict.INVALID
    assert result.epsilon_lower == 0.0
    assert result.epsilon_point is None
    assert result.if_gaussian is None
    assert result.distribution_free is None
    assert result.epsilon_at(delta=1e-6) == 0.0
    assert result.p_value(epsilon=0.1) == 1.0
    assert "not assigned at random" in result.reason
    assert "gaussian" not in advice(result).action.lower()
    assert "no bound: membership was not randomised" in str(result)
    again = AuditResult.from_json(result.to_json())
    assert (again.verdict, again.epsilon_lower) == (Verdict.INVALID, 0.0)


@pytest.mark.parametrize(
    "auditor",
    [
        None,
        "one-run",
        "one-run-fdp",
        "adaptive-one-run",
        "order-statistics",
        "gaussian-dp",
        "clopper-pearson",
        "bayesian",
    ],
)
def test_unknown_membership_carries_no_bound_and_is_asked_for(auditor):
    """It showed a bound, with a warning."""
    result = ag.audit(easier(None), claim=CLAIM, auditor=auditor)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert not result.carries_bound
    assert result.epsilon_lower == 0.0
    assert (result.epsilon_point, result.if_gaussian, result.power) == (None, None, None)
    assert result.p_value(epsilon=0.1) == 1.0
    assert result.epsilon_at(delta=1e-6) == 0.0
    assert result.tradeoff() == TradeOff.gaussian(0.0)
    assert "nobody stated" in result.reason
    assert 'membership="randomised"' in advice(result).action
    assert "--membership" in advice(result).action
    again = AuditResult.from_json(result.to_json())
    assert (again.verdict, again.epsilon_lower) == (Verdict.INCONCLUSIVE, 0.0)
    measured = ag.audit(easier(None), delta=1e-5, auditor=auditor)
    assert (measured.verdict, measured.epsilon_lower) == (None, 0.0)
    assert 'membership="randomised"' in advice(measured).action


def test_no_output_shows_a_bound_of_unknown_membership():
    result = ag.audit(easier(None), claim=CLAIM)
    assert "no bound: membership is not stated" in str(result)
    assert "epsilon >=" not in str(result)
    assert result.to_dict()["carries_bound"] is False
    forged = json.loads(result.to_json()) | {"carries_bound": True}
    with pytest.raises(FileFormatError):
        AuditResult.from_json(json.dumps(forged))
    page = result.to_html()
    assert "no bound: membership is not stated" in page
    assert "epsilon is at least" not in page
    assert "no bound: membership is not stated" in result.to_markdown()
    assert "epsilon_lower" not in " ".join(loggers._numbers_of(result))
    table = ag.compare(easier(None), claim=CLAIM, auditors=["one-run", "gaussian-dp"])
    assert [row.bound for row in table.rows] == [None, None]
    assert "membership is not stated" in table.rows[0].reason
    assert attestation._metrics(result)[0]["value"] == "none"
    with pytest.raises(NotDefinedError, match="no bound"):
        ag.audit(easier(None), claim=CLAIM, auditor="gaussian-dp").gdp()


def test_a_method_of_gaussian_scores_declares_them():
    """Choosing one says that scores are sums with Gaussian noise, as noise="gaussian" does."""
    result = ag.audit(easier(None), claim=CLAIM, auditor="gaussian-shift")
    assert result.carries_bound
    assert result.noise_declared


@pytest.mark.parametrize(
    ("membership", "verdict"), [("randomised", Verdict.CONSISTENT), (None, Verdict.INCONCLUSIVE)]
)
def test_unknown_membership_does_not_speak_for_a_claim_either(membership, verdict):
    """The same scores, and a claim that they have the power to contradict."""
    claim = ag.PrivacyClaim(epsilon=12.0, delta=1e-5)
    result = ag.audit(easier(membership), claim=claim, auditor="gaussian-dp")
    assert result.verdict is verdict


@pytest.mark.parametrize("membership", ["randomised", "declared"])
def test_random_membership_is_judged(membership):
    result = ag.audit(easier(membership), claim=CLAIM)
    assert result.verdict is Verdict.VIOLATION
    assert result.auditor.name == "clopper-pearson"
    assert result.membership == membership
    found = {item.check: item.summary for item in result.findings}
    assert ("membership" in found) == (membership == "declared")


def test_declared_noise_needs_no_random_membership():
    """Held-out canaries of noisy sums are pure noise by construction."""
    for membership in (None, "fixed"):
        result = ag.audit(easier(membership, noise="gaussian"), claim=CLAIM)
        assert result.verdict is Verdict.VIOLATION
    run = ag.simulate_dpsgd(
        steps=50, sampling_rate=0.2, noise_multiplier=2.0, present=60, absent=300, seed=0
    )
    assert "membership" not in {item.check for item in ag.audit(run.scores(), claim=CLAIM).findings}


def test_it_travels_with_the_scores(tmp_path):
    scores = easier("fixed")
    scores.save(tmp_path / "scores.npz")
    assert ag.CanaryScores.load(tmp_path / "scores.npz").membership == "fixed"
    direct = ag.CanaryScores(score=scores.score, member=scores.member, membership="declared")
    assert direct.metadata.membership == "declared"
    assert ag.CanaryScores(score=scores.score, member=scores.member).membership is None
    assert easier(None, fair_coins=True).membership == "randomised"
    assert easier(None).with_membership("fixed").membership == "fixed"
    with pytest.raises(ScoresError, match='"fixed", as the scores say'):
        scores.with_membership("randomised")
    with pytest.raises(InvalidArgumentError, match="membership"):
        easier("perhaps")
    with pytest.raises(InvalidArgumentError, match="fair coins decided it"):
        easier("fixed", fair_coins=True)


@pytest.mark.parametrize("form", ["csv", "json", "npz", "parquet"])
def test_tables_say_how(tmp_path, form):
    path = tmp_path / f"scores.{form}"
    score, member = [0.1, 0.7, 1.4, 0.3], [0, 1, 1, 0]
    if form == "csv":
        path.write_text("score,member,membership\n" + "".join(
            f"{a},{b},randomised\n" for a, b in zip(score, member, strict=True)))  # fmt: skip
    elif form == "json":
        path.write_text(json.dumps({"score": score, "member": member, "membership": "randomised"}))
    elif form == "npz":
        np.savez(path, score=score, member=member, membership=np.array("randomised"))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {"score": score, "member": member, "membership": ["randomised"] * 4}
        parquet.write_table(arrow.table(columns), path)
    assert load_audit_input(path).membership == "randomised"


@pytest.mark.parametrize(("text", "message"), [
    ("score,member,run\n1,1,a\n2,1,a\n0,0,b\n1,0,b\n", "names 2 runs"),
    ("id,score,member\n1,1,1\n1,2,1\n2,0,0\n3,1,0\n", "more than once"),
    ("score,age\n1,1\n2,0\n", "expected the columns 'score' and 'member'"),
    ("score,member,probability\n1,1,1.0\n2,1,0.5\n0,0,0.5\n1,0,0.5\n", r"in \(0, 1\)"),
    ("score,member,probability\n1,1,0\n2,1,0.5\n0,0,0.5\n1,0,0.5\n", r"in \(0, 1\)"),
    ("score,member,probability\n1,1,0.5\n2,1,0.5\n0,0,\n1,0,\n", "2 for 4"),
    ("score,member,membership\n1,1,fixed\n2,1,randomised\n0,0,fixed\n1,0,fixed\n", "differs"),
])  # fmt: skip
def test_tables_that_are_refused(tmp_path, text, message):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        load_audit_input(path)
    refused = CliRunner().invoke(app, ["audit", str(path), "--epsilon", "1", "--delta", "1e-5"])
    assert refused.exit_code == 2
    assert re.search(message, " ".join(refused.output.split()))
    assert "Traceback" not in refused.output


def test_known_probabilities_are_made_fair(tmp_path):
    draw = np.random.default_rng(0)
    member = draw.random(400) < 0.2
    rows = [f"{draw.normal():.4f},{int(here)},0.2" for here in member]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(["score,member,probability", *rows]))
    scores = load_audit_input(path)
    assert scores.membership == "randomised"
    assert 120 < len(scores) < 200


def test_a_column_of_members_may_be_called_membership(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("score,membership\n1,1\n2,1\n0,0\n1,0\n")
    scores = load_audit_input(path)
    assert scores.member.sum() == 2
    assert scores.membership is None


def test_the_command_line_says_how(tmp_path):
    path, out = tmp_path / "scores.csv", tmp_path / "result.json"
    scores = easier(None)
    lines = [f"{a},{int(b)}" for a, b in zip(scores.score, scores.member, strict=True)]
    path.write_text("\n".join(["score,member", *lines]))
    options = ["audit", str(path), "--epsilon", "1", "--delta", "1e-5", "--json", str(out)]
    runner = CliRunner()
    assert runner.invoke(app, options).exit_code == 3
    assert runner.invoke(app, [*options, "--membership", "fixed"]).exit_code == 3
    assert json.loads(out.read_text())["verdict"] == "INVALID"
    assert runner.invoke(app, [*options, "--membership", "declared"]).exit_code == 1
    assert not [
        part
        for part in verify(AuditResult.load(out), load_audit_input(path)).parts
        if part.status not in ("holds", "not checked")
    ]
    asked = runner.invoke(app, [*options, "--membership", "members.json"])
    assert asked.exit_code == 2
    assert "join a file of members" in " ".join(asked.output.split())
    with pytest.raises(ScoresError, match="Join them by canary id"):
        ag.CanaryScores(score=scores.score, member=scores.member[:-1])
    probability = np.where(scores.member, 1.0, 0.5)
    with pytest.raises(InvalidArgumentError, match="probability"):
        scores.with_fair_coins(probability)


@pytest.mark.parametrize("sizes", [(500, 20), (20, 20), (60, 60)])
def test_the_headline_holds_whatever_the_noise(sizes):
    """Pure noise with a shift of one unit of Laplace noise: epsilon 1 at most. 245 of 298 above."""
    above = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        scores = ag.CanaryScores.from_groups(
            present=1.0 + draw.laplace(size=sizes[0]), absent=draw.laplace(size=sizes[1]),
            membership="randomised",
        )  # fmt: skip
        above += ag.audit(scores, delta=1e-5).epsilon_lower > 1.0
    assert above <= 9  # once in 10,000 at the nominal 5 %


def test_what_gaussian_noise_would_mean_is_shown_beside():
    result = ag.audit(easier("randomised"), claim=CLAIM)
    assert result.if_gaussian.epsilon_lower > result.epsilon_lower
    assert "had Gaussian noise been declared" in str(result)
    declared = ag.audit(easier("randomised", noise="gaussian"), claim=CLAIM)
    assert declared.epsilon_lower == pytest.approx(result.if_gaussian.epsilon_lower)
    assert declared.if_gaussian is None


def test_canaries_of_ours_say_how_membership_was_drawn():
    """Also where fixed numbers of them are present: which ones was drawn at random."""
    texts = TextCanaries.new_tokens(["the code is"], present=5, absent=5, seed=0)
    assert texts.scores(np.arange(10.0)).membership == "randomised"
