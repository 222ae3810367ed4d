"""The demo trains, audits and reports; what is stopped goes on; a folder has one user at a time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import askgauss as ag
from askgauss import report
from askgauss.cli import app, demo_training
from askgauss.cli import demo as demo_module
from askgauss.files.run_folder import RunFolder
from askgauss.recording.transcript import Transcript
from tests.cli.conftest import ENVIRONMENT, PLAIN_PROGRAM, PROGRAM

QUICK = ("--backend", "numpy", "--steps", "40", "--hidden", "8")
FILES = {
    *(".lock", "checkpoint.npz", "report.html", "result.json", "run.json"),
    *("scores.npz", "transcript.npz"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was left alone, and what the program said."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, CliRunner().invoke(app, ["demo", str(folder), *QUICK])


@pytest.fixture
def no_figures(monkeypatch):
    """A report takes longer to draw than these runs to train; here it is beside the point."""
    monkeypatch.setattr(report, "render", lambda result: "drawn elsewhere")


def _stop_after(monkeypatch, steps):
    """Ctrl-C, as the loop sees it, after so many steps."""
    taken = []
    step = demo_training.NumpyTrainer.step

    def counted(trainer):
        step(trainer)
        taken.append(trainer.done)
        if len(taken) == steps:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo_training.NumpyTrainer, "step", counted)


def test_a_run_leaves_everything_in_its_folder(finished):
    folder, done = finished
    # So small a run may end either way, but it ends with an answer.
    assert done.exit_code in (0, 3), done.stderr
    assert "epsilon >= " in done.stdout
    assert "accuracy" in done.stdout
    assert "numpy (no Opacus involved)" in done.stderr
    assert "40 of 40 steps" in done.stderr
    assert {path.name for path in folder.iterdir()} == FILES
    described = json.loads((folder / "run.json").read_text())
    assert described["status"] == "finished"
    assert described["versions"]["askgauss"] == ag.__version__
    asked = described["config"]
    assert (asked["options"]["seed"], asked["options"]["steps"]) == (0, 40)
    assert asked["claim"]["noise_multiplier"] > 0
    assert ag.Transcript.load(folder / "transcript.npz").number_of_steps == 40
    assert ag.AuditResult.from_json((folder / "result.json").read_text()).claim.epsilon == 8.0
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def without_source(text):
    """What was printed, less the file it came from, which a run that is under way has not."""
    lines, kept, dropped = text.splitlines(keepends=True), [], False
    for line in lines:
        # A label begins a row; its other lines are indented further.
        dropped = line.startswith("  source") or (dropped and line.startswith(" " * 14))
        kept += [] if dropped else [line]
    return "".join(kept)


def test_audit_and_report_read_the_folder(run, finished, no_figures):
    folder, done = finished
    assert done.stdout.startswith(run("audit", folder).stdout)
    audited = run("audit", folder, "--verbose")
    assert audited.exit_code == done.exit_code
    stricter = run("audit", folder, "--epsilon", "0.1", "--delta", "1e-5")
    assert stricter.exit_code == 1
    before = (folder / "report.html").read_bytes()
    shown = run("report", folder)
    assert shown.exit_code == 0
    assert without_source(shown.stdout) == without_source(audited.stdout)
    assert (folder / "report.html").read_text() == "drawn elsewhere"
    (folder / "report.html").write_bytes(before)


def test_what_was_stopped_goes_on_as_if_it_had_not_been(
    run, finished, tmp_path, monkeypatch, no_figures
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        _stop_after(patch, 15)
        stopped = run("demo", folder, *QUICK)
    assert stopped.exit_code == 130
    assert "step 15 of 40" in stopped.stderr
    assert f"askgauss demo {folder} --resume" in stopped.stderr
    assert stopped.stdout == ""
    assert RunFolder(folder).read().status == "interrupted"
    early = run("audit", folder)
    assert early.exit_code == 2
    assert "step 15 of 40" in early.stderr
    nothing = run("report", folder)
    assert nothing.exit_code == 2
    assert f"askgauss demo {folder} --resume" in nothing.stderr
    again = run("demo", folder)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    resumed = run("demo", folder, "--resume")
    assert resumed.exit_code == finished[1].exit_code
    assert resumed.stdout == finished[1].stdout
    # All but the identity that every run draws for itself.
    one, other = (Transcript.load(path / "transcript.npz") for path in (folder, finished[0]))
    assert one.facts.run != other.facts.run
    assert replace(one.facts, run=None) == replace(other.facts, run=None)
    arrays = other.arrays()
    assert one.arrays().keys() == arrays.keys()
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)
    ours, theirs = (ag.CanaryScores.load(path / "scores.npz") for path in (folder, finished[0]))
    np.testing.assert_array_equal(ours.score, theirs.score)
    # Once more changes nothing.
    assert run("demo", folder, "--resume").stdout == resumed.stdout


@pytest.fixture
def _interruptible():
    """Ctrl-C as Python has it: a shell starts what runs in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_a_second_control_c_stops_at_once():
    with demo_module._StopSign() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.seen
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # the old way again
        pytest.fail("Ctrl-C is still being caught")


def test_control_c_from_outside(run, tmp_path):
    arguments = ["demo", str(tmp_path / "run"), "--backend", "numpy", "--steps", "5000"]
    arguments += ["--hidden", "512"]  # so that it takes minutes, if nobody stops it
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "training on" in process.stderr.readline()
    # Another process, this one, finds the folder taken.
    second = run("demo", tmp_path / "run", "--resume")
    assert second.exit_code == 2
    assert f"held by another process ({process.pid})" in second.stderr
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert output == ""
    assert errors.count("\n") == 1
    assert "--resume" in errors
    kept = RunFolder(tmp_path / "run").read()
    assert 0 < kept.done < 5000
    assert kept.status == "interrupted"


def test_control_c_in_the_first_seconds_leaves_a_folder_that_can_be_used(tmp_path, no_figures, run):
    """Before a run has been described there is nothing to resume, and nothing to lose."""
    folder = tmp_path / "run"
    # Enough steps not to be over before the signal comes.
    arguments = [*PROGRAM, "demo", str(folder), *QUICK, "--steps", "5000"]
    with subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (folder / ".lock").exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
    assert process.returncode == 130
    assert not (folder / "result.json").exists()
    # Where it was stopped before run.json was there, and where it was killed while writing that.
    (folder / ".run.json.0123.part").touch()
    again = ["demo", folder, *([] if not (folder / "run.json").exists() else ["--resume"])]
    result = run(*again, *(QUICK if len(again) == 2 else []))
    assert result.exit_code in (0, 3), result.stderr
    assert (folder / "result.json").exists()


def test_a_folder_with_nothing_but_a_lock_is_free_and_one_with_more_is_not(run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", ".run.json.0123456789abcdef.part"):
        (folder / name).touch()
    assert RunFolder(folder).is_empty()
    result = run("demo", folder, "--resume")
    assert result.exit_code == 2
    assert "without --resume" in result.stderr
    (folder / "mine.txt").touch()
    assert run("demo", folder, *QUICK).exit_code == 2


def test_the_lock_dies_with_its_holder(tmp_path):
    code = (
        "import os, sys\nfrom askgauss.files.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]):\n    os._exit(9)"
    )
    done = subprocess.run([PROGRAM[0], "-c", code, str(tmp_path)], env=ENVIRONMENT, check=False)
    assert done.returncode == 9
    with RunFolder(tmp_path):
        pass


def test_half_the_noise_is_found(run, tmp_path, no_figures):
    # A violation is what makes the demo a demo: the audit sees what the training did.
    folder = tmp_path / "run"
    options = ("--backend", "numpy", "--steps", "200", "--noise-factor", "0.5")
    result = run("demo", folder, *options)
    assert result.exit_code == 1
    assert result.stdout.startswith("VIOLATION: ")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--steps", "0"], "steps"),
        (["--batches", "1"], "batches"),
        (["--noise-factor", "-1"], "noise_factor"),
        (["--epsilon", "0"], "epsilon"),
        (["--backend", "jax"], "--backend"),
        (["--resume"], "no run.json"),
    ],
)
def test_wrong_options_are_2_and_leave_nothing(run, tmp_path, arguments, word):
    folder = tmp_path / "run"
    result = run("demo", folder, *arguments)
    assert result.exit_code == 2
    assert word in result.stderr
    assert result.stderr.count("\n") == 1
    assert not folder.exists()


def test_resuming_as_something_else_is_refused(run, finished):
    result = run("demo", finished[0], "--resume", "--epsilon", "4")
    assert result.exit_code == 2
    assert "--epsilon 8.0" in result.stderr


def test_a_folder_with_other_things_in_it_is_left_alone(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    result = run("demo", tmp_path, *QUICK)
    assert result.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"kind": "askgauss-run", "schema": 1}'])
def test_a_damaged_run(run, tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    for arguments in (["audit", tmp_path], ["demo", tmp_path, "--resume"]):
        result = run(*arguments)
        assert result.exit_code == 2
        *_, error = result.stderr.splitlines()
        assert "run.json" in error


def test_without_extras_it_trains_in_numpy_and_says_so(tmp_path):
    done = subprocess.run(
        [*PLAIN_PROGRAM, "demo", "run", "--steps", "30", "--hidden", "8"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    assert "training on made-up digits with numpy (no Opacus involved)" in done.stderr


def test_opacus_that_is_not_installed_is_said(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_module.importlib.util, "find_spec", lambda name: None)
    refused = run("demo", tmp_path / "other", "--backend", "opacus")
    assert refused.exit_code == 2
    assert "pip install 'askgauss[opacus,sklearn]'" in refused.stderr


def test_opacus_trains_stops_and_goes_on(run, tmp_path, monkeypatch, no_figures):
    pytest.importorskip("opacus")
    from askgauss.integrations.opacus import demo_run

    taken = []
    step = demo_run.OpacusTrainer.step

    def counted(trainer):
        step(trainer)
        taken.append(trainer.done)
        if len(taken) == 10:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo_run.OpacusTrainer, "step", counted)
    folder = tmp_path / "run"
    options = ("--steps", "25", "--batches", "4", "--noise-factor", "0.25")
    assert run("demo", folder, *options).exit_code == 130
    assert taken == list(range(1, 11))
    result = run("demo", folder, "--resume")
    assert taken == list(range(1, 26))
    assert result.exit_code == 1
    facts = ag.Transcript.load(folder / "transcript.npz").facts
    assert facts.accounted_steps == 25
    assert facts.unnoised_steps == 0
    assert RunFolder(folder).read().config["backend"] == "opacus"


# What the numpy trainer computes.


def _trainer(**changes):
    plan = {
        "steps": 10, "sampling_rate": 0.2, "noise_multiplier": 1.0, "noise_factor": 1.0,
        "clip_norm": 0.5, "learning_rate": 0.3, "hidden": 5, "seed": 0,
    }  # fmt: skip
    return demo_training.NumpyTrainer(
        demo_training.DemoPlan(**plan | changes), demo_training.load_digits(0)
    )


def test_the_clipped_sum_is_that_of_example_gradients():
    """Against finite differences of the loss, one example at a time, clipped one by one."""
    trainer, digits = _trainer(), demo_training.load_digits(0)
    images, labels = digits.images[:6], digits.labels[:6]
    weights = trainer._weights.copy()

    def loss(vector, image, label):
        trainer._weights = vector
        return -np.log(trainer._forward(image[None])[1][0, label])

    total, clipped = np.zeros(weights.size), 0
    for image, label in zip(images, labels, strict=True):
        gradient = np.zeros(weights.size)
        for place in range(weights.size):
            nudge = np.zeros(weights.size)
            nudge[place] = 1e-5
            ahead, behind = loss(weights + nudge, image, label), loss(weights - nudge, image, label)
            gradient[place] = (ahead - behind) / 2e-5
        norm = np.linalg.norm(gradient)
        clipped += norm > 0.5
        total += gradient * min(1.0, 0.5 / norm)
    trainer._weights = weights
    assert clipped > 0
    np.testing.assert_allclose(trainer._clipped_sum(images, labels), total, atol=1e-7)


def test_an_empty_batch_has_an_empty_sum():
    trainer, digits = _trainer(), demo_training.load_digits(0)
    assert not trainer._clipped_sum(digits.images[:0], digits.labels[:0]).any()


def test_the_noise_and_the_plantings_are_as_planned():
    trainer = _trainer(noise_multiplier=3.0, noise_factor=0.5, hidden=64)
    for _ in range(40):
        trainer.step()
    transcript = trainer.transcript()
    noise = transcript.watch_values
    # Over 1,000 draws: their deviation is within 12 % of 1.5 but for a chance below 1e-6.
    assert noise.size > 1000
    assert abs(noise.std() / 1.5 - 1.0) < 0.12
    assert transcript.canaries.planted[~transcript.member].sum() == 0
    rate = transcript.canaries.planted[transcript.member].mean() / 40
    # 71 canaries in 40 steps at 0.2: a deviation of 0.0075.
    assert abs(rate - 0.2) < 0.04
    assert transcript.facts.noise_multiplier == 3.0
