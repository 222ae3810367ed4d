"""The pytest plugin: tests that fail when a run breaks its claim."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import askgauss as ag
from askgauss import accounting

pytest_plugins = ["pytester"]

# A session inside forgets what it imports, but the package keeps the names: two of each class.
for module in ("auditing", "recording.inputs", "simulation"):
    importlib.import_module(f"askgauss.{module}")

SUITE = """
import math
import pytest
import askgauss as ag

def simulated(noise_multiplier, canaries=300):
    return ag.simulate_dpsgd(
        steps=100, sampling_rate=0.2, noise_multiplier=noise_multiplier,
        present=canaries, absent=canaries, seed=1)

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
"""
TESTS = {
    "private": """
@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
def test_private(privacy_audit):
    assert privacy_audit(simulated(1.45)).epsilon_lower > 6.0
""",
    "leaky": """
@pytest.mark.privacy(epsilon=8.0, delta=1e-5, noise_multiplier=1.45)
def test_leaky(privacy_audit):
    privacy_audit(simulated(0.725))
""",
    "weak": """
@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
def test_weak(privacy_audit):
    privacy_audit(simulated(1.45, canaries=5).scores())
""",
    "invalid": """
@pytest.mark.privacy(epsilon=100.0, delta=1e-5)
def test_invalid(privacy_audit):
    values = [math.sin(index) for index in range(300)] * 2
    privacy_audit(
        ag.CanaryScores.from_groups(
            present=[value + 1 for value in values], absent=values, noise="gaussian"))
""",
}


@pytest.fixture
def suite(pytester, monkeypatch):
    """Run some of the tests above with the plugin, in a session of their own."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def call(*names, options=(), text=""):
        pytester.makepyfile(SUITE + "".join(TESTS[name] for name in names) + text)
        plugin = "askgauss.pytest_plugin"
        return pytester.runpytest_inprocess("-p", plugin, "--strict-markers", *options)

    return call


def test_the_verdict_decides(suite):
    result = suite("private", "leaky", "weak", "invalid")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*= privacy audits =*",
            "CONSISTENT *::test_private: epsilon >= *, claimed 8 at delta 1e-05; *tested: *",
            "VIOLATION *::test_leaky: epsilon >= *, claimed 8 at delta 1e-05; broken: noise scale*",
            "INCONCLUSIVE *::test_weak: *",
            "INVALID *::test_invalid: *",
        ]
    )


def test_a_failure_shows_the_findings_and_no_traceback(suite):
    result = suite("leaky")
    result.stdout.fnmatch_lines(
        ["VIOLATION: *", "*claimed     epsilon 8*", "*[[]fail] noise scale*"]
    )
    result.stdout.no_fnmatch_line("*privacy_audit(simulated*")


@pytest.mark.parametrize(
    ("options", "passed"), [((), 1), (("--privacy-strict",), 1), (("--privacy-lenient",), 2)]
)
def test_an_inconclusive_audit_passes_only_if_asked_to(suite, options, passed):
    suite("weak", "private", options=options).assert_outcomes(passed=passed, failed=2 - passed)


def test_json_of_all_audits(suite, pytester):
    suite("private", "leaky", options=["--privacy-json", "audits.json"])
    content = json.loads((pytester.path / "audits.json").read_text())
    assert content["kind"] == "askgauss-test-audits"
    assert content["schema"] == 1
    verdicts = {item["test"].split("::")[-1]: item["result"] for item in content["tests"]}
    assert verdicts["test_private"]["verdict"] == "CONSISTENT"
    assert verdicts["test_leaky"]["verdict"] == "VIOLATION"
    assert verdicts["test_leaky"]["findings"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("name", "private"), [("weak", True), ("private", False)])
def test_json_of_few_canaries_is_for_its_owner(suite, pytester, name, private):
    suite(name, options=["--privacy-json", "audits.json"])
    path = pytester.path / "audits.json"
    assert json.loads(path.read_text())["private"] is private
    assert (path.stat().st_mode & 0o077 == 0) is private


def test_json_into_a_folder_that_is_not_there(suite):
    result = suite("private", options=["--privacy-json", "no/such/audits.json"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--privacy-json: there is no folder*"])


def test_json_that_cannot_be_written_is_not_a_success(suite, pytester):
    (pytester.path / "audits.json").mkdir()
    result = suite("private", options=["--privacy-json", "audits.json"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["--privacy-json: cannot write 'audits.json'*"])


def test_junit_carries_verdicts(suite, pytester):
    suite("private", options=["--junitxml", "junit.xml"])
    properties = ET.parse(pytester.path / "junit.xml").findall(".//property")
    assert {item.get("name"): item.get("value") for item in properties}[
        "privacy_verdict"
    ] == "CONSISTENT"


def test_a_path_a_claim_and_a_method_may_be_given(suite, pytester):
    ag.simulate_dpsgd(
        steps=50, sampling_rate=0.5, noise_multiplier=2.0, present=50, absent=50, seed=0
    ).save(pytester.path / "run.npz")
    text = """
def test_path(privacy_audit):
    result = privacy_audit("run.npz", claim=CLAIM, auditor=ag.GaussianShift())
    assert result.auditor == ag.GaussianShift()
    assert result.confidence == 0.95
"""
    suite(text=text, options=["--privacy-lenient"]).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def test_it(privacy_audit):\n    privacy_audit(simulated(1.45))", "exactly one claim"),
        (
            "@pytest.mark.privacy(epsilon=8.0, delta=1e-5)\ndef test_it(privacy_audit):\n"
            "    privacy_audit(simulated(1.45), claim=CLAIM)",
            "exactly one claim",
        ),
        (
            "@pytest.mark.privacy(8.0, 1e-5)\ndef test_it(privacy_audit):\n"
            "    privacy_audit(simulated(1.45))",
            "epsilon= and delta= by name",
        ),
        (
            "@pytest.mark.privacy(epsilon=8.0, delta=1e-5, nois=2)\ndef test_it(privacy_audit):\n"
            "    privacy_audit(simulated(1.45))",
            "does not know nois",
        ),
        (
            "@pytest.mark.privacy(epsilon=8.0)\ndef test_it(privacy_audit):\n"
            "    privacy_audit(simulated(1.45))",
            "epsilon= and delta= by name",
        ),
    ],
)
def test_a_test_without_one_claim_fails(suite, text, message):
    result = suite(text=text)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{message}*"])


def test_a_gate_that_audits_nothing_fails(suite):
    result = suite(
        text="""
@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
def test_marked(): pass

def test_asked(privacy_audit): pass

@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
class TestAll:
    def test_something_else(self): pass

@pytest.mark.xfail(strict=True)
@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
def test_known_to_fail(): assert False

@pytest.mark.skip
@pytest.mark.privacy(epsilon=8.0, delta=1e-5)
def test_left_out(): pass
"""
    )
    result.assert_outcomes(passed=1, failed=2, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["*This test passed without an audit.*"])


def test_marker_levels_reach_the_audit(suite):
    text = """
@pytest.mark.privacy(epsilon=8.0, delta=1e-5, confidence=0.8, gate_error=0.01, steps=100)
def test_levels(privacy_audit):
    result = privacy_audit(simulated(1.45))
    assert (result.confidence, result.gate_error, result.claim.steps) == (0.8, 0.01, 100)
"""
    suite(text=text).assert_outcomes(passed=1)


def test_a_session_without_audits_says_nothing(suite):
    result = suite(text="def test_nothing(): pass")
    result.stdout.no_fnmatch_line("*privacy audits*")


def test_results_cross_from_workers(suite, pytester):
    pytest.importorskip("xdist")
    options = ["-p", "xdist", "-n", "1", "--privacy-json", "audits.json", "--privacy-lenient"]
    result = suite("private", "weak", options=options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["CONSISTENT *::test_private: *", "INCONCLUSIVE *::test_weak: *"])
    assert len(json.loads((pytester.path / "audits.json").read_text())["tests"]) == 2


def test_the_plugin_itself_imports_nothing_heavy():
    # Without the package's own __init__, whatever that imports.
    code = (
        "import sys, types\n"
        "package = types.ModuleType('askgauss')\n"
        f"package.__path__ = {list(ag.__path__)!r}\n"
        "sys.modules['askgauss'] = package\n"
        "import askgauss.pytest_plugin\n"
        "print(sorted({'numpy', 'scipy', 'torch', 'matplotlib', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The examples of the gate.

EXAMPLES = Path(__file__).parents[1] / "examples"


def _gate(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "askgauss.pytest_plugin", "-p", "no:cacheprovider",
         "-q", *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


def test_the_example_gate_passes_and_a_broken_training_does_not(tmp_path):
    for name in ("training.py", "test_privacy.py"):
        (tmp_path / name).write_text((EXAMPLES / "pytest_gate" / name).read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    passing = _gate(tmp_path, "--privacy-strict")
    assert passing.returncode == 0, passing.stdout
    assert "CONSISTENT test_privacy.py::test_training_keeps_its_claim" in passing.stdout
    code = (tmp_path / "training.py").read_text()
    right = "noise_multiplier * CLIP_NORM, FEATURES"
    assert right in code
    (tmp_path / "training.py").write_text(code.replace(right, f"0.5 * {right}"))
    failing = _gate(tmp_path)
    assert failing.returncode == 1
    assert "VIOLATION" in failing.stdout


def test_the_example_states_the_epsilon_of_its_settings():
    claimed = accounting.dpsgd_epsilon(
        noise_multiplier=1.3, sampling_rate=0.1, steps=300, delta=1e-5
    )
    assert f"{claimed:.2f}" in (EXAMPLES / "pytest_gate" / "training.py").read_text()
    assert claimed < 7.9


def test_the_workflow_uses_options_that_exist():
    import typer

    from askgauss.cli import app

    text = (EXAMPLES / "ci_workflow.yml").read_text()
    words = text.split("askgauss audit", 1)[1].split("- if:")[0].split()
    command = typer.main.get_command(app).commands["audit"]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in words if word.startswith("--")}
    assert len(used) == 7
    assert used <= known
    for option in ("--privacy-strict", "--privacy-json"):
        assert option in text
