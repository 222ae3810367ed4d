"""The self-test passes where askgauss is right, and only there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import askgauss
from askgauss import auditing
from tests.cli.conftest import ENVIRONMENT, PLAIN_PROGRAM

SMALL = ("--audits", "12", "--steps", "50", "--present", "150", "--absent", "150")


def test_it_passes_as_a_plain_installation_outside_the_source_tree(tmp_path):
    place = tmp_path / "site-packages"
    shutil.copytree(
        Path(askgauss.__file__).parent,
        place / "askgauss",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    environment = ENVIRONMENT | {"PYTHONPATH": str(place)}
    where = [sys.executable, "-c", "import askgauss; print(askgauss.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert found.stdout.decode().startswith(str(place))
    done = subprocess.run(
        [*PLAIN_PROGRAM, "selftest", "--audits", "8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("OK: promises are kept, and half the noise is caught.\n")


def test_it_says_when_audits_of_a_size_would_miss_the_leak(run):
    tiny = ("--audits", "6", "--steps", "20", "--present", "8", "--absent", "8")
    result = run("selftest", *tiny)
    assert result.exit_code == 3
    assert "too weak" in result.stdout
    assert "WEAK" in result.stdout


def test_it_fails_where_bounds_are_too_high(run, monkeypatch):
    right = auditing.audit

    def wrong(data, **options):
        result = right(data, **options)
        return replace(result, epsilon_lower=1.5 * result.epsilon_lower + 0.1)

    monkeypatch.setattr(auditing, "audit", wrong)
    result = run("selftest", *SMALL)
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout


def test_it_fails_where_there_are_false_alarms(run, monkeypatch):
    right = auditing.audit

    def wrong(data, **options):
        return replace(right(data, **options), verdict=askgauss.Verdict.INVALID)

    monkeypatch.setattr(auditing, "audit", wrong)
    result = run("selftest", *SMALL)
    assert result.exit_code == 1
    assert "alarm on correct runs" in result.stdout
