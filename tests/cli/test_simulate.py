"""Simulated runs through a real pipe, the faults, and the commands that need no data."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import askgauss as ag
from askgauss import power
from askgauss.recording.linear_transcript import LinearTranscript
from tests.cli.conftest import ENVIRONMENT, PROGRAM

CLAIM = ("--epsilon", "8", "--delta", "1e-5")


def test_the_first_thing_to_try():
    """Two programs with a pipe between them, as a shell would run them."""
    with subprocess.Popen(
        [*PROGRAM, "simulate", "dpsgd", "--fault", "half-noise"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        reader = subprocess.run(
            [*PROGRAM, "audit", "-", *CLAIM],
            env=ENVIRONMENT,
            stdin=writer.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
        assert writer.stderr.read() == b""
        assert writer.wait(600) == 0
    assert reader.returncode == 1
    assert reader.stdout.startswith("VIOLATION: ")
    assert reader.stderr == ""


def test_without_a_fault_it_is_consistent(run):
    piped = run("simulate", "dpsgd")
    assert piped.stderr == ""
    done = run("audit", "-", *CLAIM, input=piped.stdout_bytes)
    assert done.exit_code == 0
    assert done.stdout.startswith("CONSISTENT: ")


def test_a_writer_that_fails_is_not_taken_for_an_empty_run(run):
    first = run("simulate", "dpsgd", "--fault", "half-nois")
    assert first.exit_code == 2
    assert first.stdout_bytes == b""
    assert "Did you mean half-noise?" in first.stderr


def test_simulate_writes_what_the_library_simulates(run, tmp_path):
    path = tmp_path / "run.npz"
    sizes = {"steps": 20, "present": 10, "absent": 12, "seed": 3}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    options += ["--sampling-rate=0.5", "--noise-multiplier=2", f"--output={path}"]
    assert run("simulate", "dpsgd", *options).exit_code == 0
    expected = ag.simulate_dpsgd(**sizes, sampling_rate=0.5, noise_multiplier=2.0)
    found = ag.Transcript.load(path)
    assert (found.canaries.total == expected.canaries.total).all()
    assert found.facts == expected.facts
    piped = run("simulate", "dpsgd", *options[:-1])
    assert piped.stdout_bytes == path.read_bytes()


def test_dpftrl(run, tmp_path):
    path = tmp_path / "run.npz"
    sizes = ("--steps", "16", "--present", "200", "--absent", "200")
    options = ("--release", "prefixes", "--estimator", "honaker", "--noise-multiplier", "4")
    assert run("simulate", "dpftrl", *sizes, *options, "-o", path).exit_code == 0
    found = LinearTranscript.load(path)
    assert (found.plan.release, found.plan.estimator) == ("prefixes", "honaker")
    assert "epsilon >= " in run("audit", path, "--delta", "1e-5").stdout
    broken = ("--fault", "tree-restart-reuse", "--restart-every", "4")
    assert run("simulate", "dpftrl", *sizes, *broken, "-o", path).exit_code == 0
    assert "failed      noise after restarts" in run("audit", path, *CLAIM).stdout
    other = run("simulate", "dpftrl", "--fault", "half-noise", "-o", path)
    assert other.exit_code == 2
    assert "Did you mean tree-half-noise?" in other.stderr


def test_a_transcript_is_not_poured_into_a_terminal(with_streams, tmp_path):
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    assert with_streams("simulate", "dpsgd", stdout=os.ttyname(slave)) == 2
    os.close(slave)
    os.close(master)
    assert "-o FILE" in (tmp_path / "stderr").read_text()


def test_faults(run):
    listed = run("faults", "list").stdout
    assert "\nhalf-noise " in listed
    assert "\ntree-restart-reuse " in listed
    assert "Out of sight" in listed
    sizes = ("--steps", "300", "--present", "200", "--absent", "200")
    # Some show only where batches are empty, and some only in trees.
    names = ("half-noise", "noise-per-rank", "no-noise-on-empty-batches", "skipped-empty-batches")
    result = run("faults", "run", *names, "tree-restart-reuse", *sizes)
    assert result.exit_code == 0
    assert "5 of 5 named." in result.stdout
    # A run this small cannot tell, and the command says so.
    weak = run("faults", "run", "noise-90", "--steps", "5", "--present", "20", "--absent", "20")
    assert weak.exit_code == 1
    assert "0 of 1 named." in weak.stdout
    assert run("faults", "run", "no-such-fault").exit_code == 2


def test_theory_agrees_with_the_law(run):
    options = ("--steps", "100", "--sampling-rate", "0.2", "--noise-multiplier", "2")
    numbers = json.loads(run("theory", *options, "--json", "-").stdout)["numbers"]
    law = ag.ScoreLaw(steps=100, sampling_rate=0.2, noise_multiplier=2.0)
    assert numbers["Kolmogorov distance"] == law.kolmogorov_distance()
    assert numbers["epsilon of the score"] == law.epsilon_at(1e-5)
    assert numbers["epsilon of the score"] < numbers["epsilon of the accountant"]
    assert f"{law.mean:.6g}" in run("theory", *options).stdout


def test_plan_finds_what_is_left_open(run):
    settings = {"epsilon": 8.0, "delta": 1e-5, "sampling_rate": 0.2, "confidence": 0.9995}
    given = {"present": 50, "absent": 200, "steps": 100, "alternative": 12.0, "power": 0.9}
    for find in given:
        known = {name: value for name, value in given.items() if name != find}
        options = [f"--{name}={value}" for name, value in known.items()]
        result = run("plan", "--find", find, "--sampling-rate", "0.2", *options)
        assert result.exit_code == 0
        assert result.stdout == f"{power.solve(**settings, **known, **{find: None})}\n"
    refused = run("plan", "--find", "steps", "--steps", "100")
    assert refused.exit_code == 2
    assert "--steps" in refused.stderr
    assert "gaussian-shift" in run("plan", "--auditor", "gaussian-shift").stdout


def test_federated_rounds_are_written_and_their_fault_is_named(run, tmp_path):
    target = tmp_path / "rounds.npz"
    sizes = ("--rounds", "30", "--clients", "20", "--dimension", "1100", "--fault", "nan-passes")
    assert run("simulate", "federated", *sizes, "-o", target).exit_code == 0
    done = run("audit", target, "--epsilon", "15", "--delta", "1e-5")
    assert done.exit_code == 1
    assert "nan update" in done.stdout
    wrong = run("simulate", "federated", "--fault", "nan", "-o", target)
    assert wrong.exit_code == 2
    assert "nan-passes" in wrong.stderr
