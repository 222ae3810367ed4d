"""Two live copies of a run are refused: the second one, and before it wrote anything."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from askgauss.exceptions import RecordingError
from askgauss.files import atomic as locks
from askgauss.files.checkpoint import CheckpointFiles
from askgauss.recording.inputs import load_audit_input
from tests.live_worker import make, obey

LIVE, WRITTEN = "to belong to no live run", "as this run left it"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


class Worker:
    """A process of `tests.live_worker`."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("live_worker.py"))],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def does(self, *commands: str) -> None:
        for command in commands:
            assert self.ask(command) == "done", command

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def workers(tmp_path):
    started: list[Worker] = []

    def start(**environment: str) -> Worker:
        started.append(Worker(tmp_path, **environment))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


@pytest.mark.parametrize("kind", ["recorder", "linear", "sampled"])
def test_a_checkpoint_belongs_to_the_run_that_lives(tmp_path, workers, kind):
    owner, second = workers(), workers()
    owner.does(f"make {kind}", "step", "save c.npz")
    (tmp_path / "link.npz").symlink_to("c.npz")
    second.does(f"make {kind}")
    for name in ("c.npz", "link.npz", "./c.npz"):
        assert LIVE in second.ask(f"load {name}")
        assert f"({owner.process.pid})" in second.ask(f"save {name}")
    owner.does("step", "save c.npz")
    owner.stop()
    second.does("load link.npz", "step", "save c.npz")


def test_who_loaded_a_checkpoint_has_it_too(workers):
    owner, second = workers(), workers()
    owner.does("make recorder", "step", "save c.npz", "drop", "make recorder")
    second.does("make recorder", "load c.npz")
    assert LIVE in owner.ask("load c.npz")


def test_the_second_writer_of_a_store_is_refused_and_not_the_first(workers):
    owner, second = workers(), workers()
    owner.does("make store steps", "step", "save c.npz")
    assert LIVE in second.ask("make store steps")
    owner.does("step", "save c.npz", "step", "transcript")
    owner.stop()
    second.does("make store steps", "load c.npz", "step", "save c.npz")


def test_a_copy_that_went_on_meanwhile_is_noticed(workers):
    owner, second = workers(), workers()
    owner.does("make recorder", "step", "save c.npz", "release")
    second.does("make recorder", "load c.npz", "step", "save c.npz")
    assert LIVE in owner.ask("save c.npz")
    second.does("release")
    for command in ("hold", "save c.npz"):
        assert WRITTEN in owner.ask(command)
    second.does("step", "save c.npz", "drop")
    owner.does("load c.npz", "step", "save c.npz")


def test_a_run_that_has_ended_holds_nothing(tmp_path, workers):
    owner, second = workers(), workers()
    owner.does("make store steps", "step", "finish c.npz")
    second.does("make store steps", "load c.npz")
    # Whoever audits the file asks nobody.
    assert load_audit_input(tmp_path / "c.npz").number_of_steps == 1


@needs_fork
def test_a_child_neither_frees_the_file_nor_keeps_it_for_ever(workers):
    owner, second = workers(), workers()
    owner.does("make recorder", "step", "save c.npz")
    owner.ask("fork")
    second.does("make recorder")
    assert LIVE in second.ask("load c.npz")
    child = int(owner.ask("fork to outlive"))
    try:
        assert LIVE in second.ask("load c.npz")
        owner.stop()
        second.does("load c.npz")
    finally:
        os.kill(child, signal.SIGKILL)


def test_other_ranks_of_one_run_load_what_the_first_holds(workers):
    first, other = workers(RANK="0"), workers(RANK="1")
    first.does("make recorder", "step", "save c.npz")
    other.does("make recorder", "load c.npz")
    assert LIVE in other.ask("save c.npz")


def test_one_process_goes_on_with_what_it_saved(tmp_path):
    path = tmp_path / "c.npz"
    recorder = make("recorder")
    obey(recorder, "step")
    recorder.save(path)
    resumed = make("recorder")
    resumed.load(path)
    obey(recorder, "step")
    recorder.save(path)
    obey(resumed, "step")
    with pytest.raises(RecordingError, match=WRITTEN):
        resumed.save(path)
    path.write_bytes(b"damaged")
    resumed.save(path)


@pytest.mark.parametrize("hindrance", ["no place", "no locks"])
def test_where_nothing_can_be_locked_copies_are_still_noticed(tmp_path, monkeypatch, hindrance):
    path = tmp_path / "c.npz"
    if hindrance == "no place":
        (tmp_path / "c.npz.lock").mkdir()
    else:

        def fail(stream):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(locks, "_lock", fail)
    first, second = make("recorder"), make("recorder")
    obey(first, "step")
    first.save(path)
    second.load(path)
    obey(second, "step")
    second.save(path)
    with pytest.raises(RecordingError, match=WRITTEN):
        first.save(path)


def test_what_could_not_be_loaded_is_not_held(tmp_path, workers):
    path = tmp_path / "c.npz"
    make("linear").save(path)
    wrong = make("recorder")
    with pytest.raises(ValueError, match="kind"):
        wrong.load(path)
    with pytest.raises(FileNotFoundError):
        wrong.load(tmp_path / "missing.npz")
    assert not (tmp_path / "missing.npz.lock").exists()
    workers().does("make linear", "load c.npz")


def test_a_long_run_does_not_hold_every_checkpoint_it_wrote(tmp_path):
    files = CheckpointFiles()
    for index in range(30):
        files.holds.take(tmp_path / f"{index}.npz")
    held = [name for name, lock in locks._held.items() if lock.stream and str(tmp_path) in name]
    assert [Path(name).stem for name in held] == [str(index) for index in range(22, 30)]


def test_a_device_is_not_held():
    assert not locks.Holds().take(os.devnull)
    assert not Path(f"{os.devnull}.lock").exists()
