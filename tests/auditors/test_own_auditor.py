"""An auditor of one's own, in a file of one's own: everywhere a name is, and back from JSON."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss import auditors, power
from askgauss.auditors import OneRun, as_auditor, auditor_types, register_auditor
from askgauss.exceptions import AskGaussWarning, FileFormatError, InvalidArgumentError

GUIDE = Path(__file__).parents[2] / "docs" / "own-auditor.md"
CLAIM = ag.PrivacyClaim(epsilon=2.0, delta=1e-5)


def example():
    """The file that the guide shows."""
    return GUIDE.read_text(encoding="utf-8").split("```python\n", 1)[1].split("```", 1)[0]


@pytest.fixture
def own(monkeypatch, tmp_path):
    """The guide's auditor, known for one test."""
    monkeypatch.setattr(auditors, "_registered", {})
    (tmp_path / "sign_test.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sign_test", raising=False)
    kind = importlib.import_module("sign_test").SignTest
    monkeypatch.delitem(sys.modules, "sign_test")
    return kind


def scores(shift=2.0, count=400):
    draw = np.random.default_rng(0)
    return ag.CanaryScores.from_groups(
        present=draw.normal(shift, 1, count), absent=draw.normal(0, 1, count), noise="gaussian"
    )


def test_audit_compare_power_and_json(own):
    register_auditor(own)
    result = ag.audit(scores(), claim=CLAIM, auditor="sign-test")
    assert 0.5 < result.epsilon_lower < 4.0
    again = ag.AuditResult.from_json(result.to_json())
    assert again.epsilon_lower == result.epsilon_lower
    assert type(again.auditor).__name__ == "SignTest"
    table = ag.compare(scores(), claim=CLAIM, auditors=["sign-test", "gaussian-shift"])
    assert [row.name for row in table.rows] == ["sign-test", "gaussian-shift"]
    plan = power.solve(
        epsilon=1.0, delta=1e-5, present=200, absent=200, steps=100, sampling_rate=0.5,
        alternative=6.0, power=None, auditor="sign-test",
    )  # fmt: skip
    assert 0.0 <= plan.power <= 1.0


def test_an_unknown_one_says_how_to_make_it_known(own):
    register_auditor(own)
    text = ag.audit(scores(), claim=CLAIM, auditor=own()).to_json()
    auditors._registered.clear()
    with pytest.raises(FileFormatError, match="register_auditor"):
        ag.AuditResult.from_json(text)


@pytest.mark.parametrize("wrong", ["one-ruin", OneRun, 3, None.__class__, "os:system"])
def test_anything_else_is_refused_with_the_list(wrong):
    with pytest.raises(InvalidArgumentError, match="adaptive-one-run, bayesian"):
        ag.audit(scores(), claim=CLAIM, auditor=wrong)
    with pytest.raises(InvalidArgumentError, match="Call it"):
        as_auditor(OneRun)


def test_a_claim_that_is_none_is_refused():
    for wrong in ((8, 1e-5), 8.0, "8"):
        with pytest.raises(InvalidArgumentError, match="PrivacyClaim"):
            ag.audit(scores(), claim=wrong)
        with pytest.raises(InvalidArgumentError, match="PrivacyClaim"):
            ag.compare(scores(), claim=wrong)


def test_names_of_ours_are_not_taken():
    class OneRun(auditors.OneRun):
        pass

    with pytest.raises(InvalidArgumentError, match="is ours"):
        register_auditor(OneRun)
    with pytest.raises(InvalidArgumentError, match="frozen dataclass"):
        register_auditor(dict)


def test_entry_points_are_offered(own, monkeypatch):
    class Entry:
        value = "sign_test:SignTest"

        def load(self):
            return own

    class Broken(Entry):
        value = "gone:Gone"

        def load(self):
            raise ImportError("No module named 'gone'")

    monkeypatch.setattr(
        auditors.metadata, "entry_points", lambda group: [Entry(), Broken()] if group else []
    )
    auditors._offered.cache_clear()
    try:
        with pytest.warns(AskGaussWarning, match="gone:Gone"):
            assert auditor_types()["sign-test"] is own
    finally:
        monkeypatch.undo()
        auditors._offered.cache_clear()


def test_the_command_line_takes_module_and_class(tmp_path):
    (tmp_path / "sign_test.py").write_text(example())
    scores().save(tmp_path / "scores.npz")

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "askgauss", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    claim = ("--epsilon", "2", "--delta", "1e-5")
    done = call("audit", "scores.npz", *claim, "--auditor", "sign_test:SignTest", "--json", "-")
    assert json.loads(done.stdout)["auditor"]["name"] == "sign-test", done.stderr
    wrong = call("audit", "scores.npz", *claim, "--auditor", "sign_test:Nobody")
    assert wrong.returncode == 2
    assert "module:Class" in wrong.stderr
    (tmp_path / "c.toml").write_text('auditor = "sign_test:SignTest"\n')
    refused = call("audit", "scores.npz", *claim, "--config", "c.toml")
    assert refused.returncode == 2
    assert "a file runs no code" in refused.stderr


def test_a_comparison_can_be_drawn_and_set():
    table = ag.compare(scores(), claim=CLAIM, auditors=["gaussian-shift", "one-run", "max-cosine"])
    ax = table.plot()
    assert len(ax.lines) > 3
    text = table.to_latex()
    assert text.count(r"\\") == 4
    assert r"37\%" in text or r"\%" in text
    assert text.startswith(r"\begin{tabular}")
