"""Replay on the command line, in pytest and as a page."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import askgauss as ag
from askgauss.replay import Difference, ReplayReport, join
from askgauss.report.html import render_replay
from tests.cli.conftest import ENVIRONMENT, PLAIN_PROGRAM
from tests.replay.runs import records, training

pytest_plugins = ["pytester"]

MODULE = """
import numpy as np

data = np.random.default_rng(0).normal(size=(50, 3))

def few():
    return data[:20]

def train(data, replay, logged=False):
    for batch in replay.batches(rate=0.3):
        rows = np.clip(data[batch], -0.5, 0.5)
        noise = replay.generator().normal(size=3)
        replay.release(rows.sum(axis=0), noise=noise, clip_norm=1.0)
        print("a step")
        if logged:
            replay.public("loss", float(rows.sum()))

def leaky(data, replay):
    train(data, replay, logged=True)

def unseeded(data, replay):
    replay.public("coin", np.random.default_rng().random())

def idle(data, replay):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def call(run, folder, monkeypatch):
    """Replay in this process, in the folder of the module, which is imported anew."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "made"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda *arguments: run("replay", *arguments)
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("mine:train", 0, "CONSISTENT: "),
        ("mine.py:train", 0, "CONSISTENT: "),
        ("mine:leaky", 1, "VIOLATION: loss depends on record 7"),
        ("mine:idle", 3, "INCONCLUSIVE: "),
    ],
)
def test_the_exit_code_is_the_verdict(call, name, code, said):
    done = call(name, "--leave-out", "7")
    assert done.exit_code == code, done.stderr
    assert done.stdout.startswith(said)
    # What the training prints is beside the answer.
    assert "a step" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine:unseeded", "--leave-out", "7"), "'coin' in step 0"),
        (("mine:absent", "--leave-out", "7"), "has no 'absent'"),
        (("nothing:train", "--leave-out", "7"), "there is no 'nothing'"),
        (("nothing.py:train", "--leave-out", "7"), "there is no 'nothing.py'"),
        (("mine", "--leave-out", "7"), "like module:name"),
        (("mine:train",), "exactly one of leave_out and replace"),
        (("mine:train", "--leave-out", "50"), "leave_out in [0, 50), got 50"),
        (("mine:train", "--replace", "1", "--adjacency", "add-remove"), "leave_out="),
    ],
)
def test_no_answer_is_2(call, arguments, said):
    done = call(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_it_needs_no_extras(folder):
    done = subprocess.run(
        [*PLAIN_PROGRAM, "replay", "mine:train", "--leave-out", "7"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CONSISTENT: ")


def test_documents(call, folder):
    done = call("mine:leaky", "--replace", "7", "--data", "mine:few", "--json", "-", "--html", "p")
    assert done.exit_code == 1, done.stderr
    report = ReplayReport.from_json(done.stdout)
    assert report.records == 20
    assert report.adjacency == "replace-one"
    assert json.loads(done.stdout)["kind"] == "askgauss-replay"
    page = (folder / "p").read_text()
    assert "<h1>Violation</h1>" in page
    assert "loss" in page


def test_the_page_shows_names_as_names():
    report = ag.replay(training(), records(), leave_out=17)
    assert "Nothing, but the noisy sums" in render_replay(report)
    evil = Difference(
        name="<script>alert(1)</script>\n::error::",
        kind="public",
        step=1,
        steps=(1,),
        size=1.0,
        values=("<b>", "&"),
        worlds=("left out",),
        leak_under=("add-remove",),
    )
    page = render_replay(replace(report, differences=(evil,), verdict=ag.Verdict.VIOLATION))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page


def test_a_replay_joins_an_audit():
    transcript = ag.simulate_dpsgd(
        steps=100, sampling_rate=0.2, noise_multiplier=1.45, present=300, absent=300, seed=1
    )
    result = ag.audit(transcript, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    clean = join(result, ag.replay(training(), records(), leave_out=17))
    assert clean.verdict is result.verdict is ag.Verdict.CONSISTENT
    assert clean.findings[-1].check == "replay"
    leaky = join(result, ag.replay(training(divisor="batch"), records(), leave_out=17))
    assert leaky.verdict is ag.Verdict.VIOLATION
    assert leaky.reason.startswith("replay: divisor")
    assert "replay: divisor" in leaky.to_json()
    replaced = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, adjacency="replace")
    result = ag.audit(transcript, claim=replaced)
    same = join(result, ag.replay(training(divisor="batch"), records(), leave_out=17))
    assert same.verdict is result.verdict


def test_the_fixture_fails_a_test_whose_training_leaks(pytester):
    pytester.makepyfile(
        mine=MODULE,
        test_mine="""
import mine

def test_private(privacy_replay):
    assert privacy_replay(mine.train, mine.data, leave_out=7).moved > 0

def test_leaky(privacy_replay):
    privacy_replay(mine.leaky, mine.data, leave_out=7)

def test_idle(privacy_replay):
    privacy_replay(mine.idle, mine.data, leave_out=7)
""",
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*VIOLATION: loss depends on record 7*", "*INCONCLUSIVE: *no step*"])


def test_a_configuration_runs_no_code(call, folder):
    """Where the records come from is code, which only the command line may name."""
    (folder / "made.py").write_text("raise SystemExit('imported')")
    (folder / "options.toml").write_text('[replay]\ndata = "made:data"\n')
    ran = call("mine:train", "--leave-out", "3", "--config", "options.toml")
    assert ran.exit_code == 2
    assert "a file runs no code" in " ".join(ran.stderr.split())
    assert "imported" not in ran.stderr.replace("to be imported", "")
