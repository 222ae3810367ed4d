from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from askgauss.exceptions import FileFormatError, InvalidArgumentError, MissingExtraError
from paper import sweep

ROOT = Path(__file__).parents[2]

GRID = sweep.Grid(
    epsilons=(2.0, 8.0),
    seeds=3,
    auditors=("gaussian-shift", "subsampled-gaussian"),
    steps=20,
    sampling_rate=0.3,
    present=40,
    absent=40,
)


def test_a_sweep_goes_on_where_it_was(tmp_path):
    class Stop(Exception):
        pass

    def stop(done, of):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        sweep.run(GRID, folder=tmp_path / "s", progress=stop)
    seen = []
    path = sweep.run(GRID, folder=tmp_path / "s", progress=lambda done, of: seen.append(done))
    assert seen == [2, 3, 4, 5, 6]
    rows = sweep.read_table(path)
    assert len(rows) == 12
    other = sweep.run(GRID, folder=tmp_path / "t")
    assert sweep.read_table(other) == rows
    again = sweep.coverage(rows)
    assert [row["audits"] for row in again] == [3] * 4
    with pytest.raises(FileFormatError):
        sweep.run(sweep.Grid(seeds=1), folder=tmp_path / "s")


def test_a_sweep_of_trained_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ASKGAUSS_DATA", str(tmp_path / "data"))
    grid = dataclasses.replace(GRID, run="smoke", seeds=2, steps=30, present=200, absent=200)
    rows = sweep.read_table(sweep.run(grid, folder=tmp_path / "sweep"))
    assert len(rows) == 8
    assert all(row["bound"] < 1.1 * row["epsilon"] for row in rows)
    assert all(row["bound"] > 4.0 for row in rows if row["epsilon"] == 8.0)
    assert len({row["bound"] for row in rows}) == 8


def test_a_table_without_parquet_says_the_same(tmp_path, monkeypatch):
    whole = sweep.run(GRID, folder=tmp_path / "whole")
    assert whole.suffix == ".parquet"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    text = sweep.run(GRID, folder=tmp_path / "text")
    assert text.suffix == ".csv"
    rows = sweep.read_table(text)
    with pytest.raises(MissingExtraError, match=r"askgauss\[ray\]"):
        sweep.read_table(whole)
    monkeypatch.undo()
    for row, other in zip(rows, sweep.read_table(whole), strict=True):
        assert row == {**other, "bound": pytest.approx(other["bound"], rel=1e-9)}


@pytest.fixture
def cluster():
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    except Exception as error:  # noqa: BLE001 - Ray raises just this on a busy machine
        ray.shutdown()
        pytest.skip(f"Ray did not start: {error}")
    yield ray
    ray.shutdown()


def _workers():
    """Processes of Ray that are at work on a cell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::audit_cell"):
                found.append(int(path.parent.name))
    return found


def test_a_worker_killed_in_a_sweep_is_replaced_and_nothing_counts_twice(tmp_path, cluster):
    grid = dataclasses.replace(GRID, seeds=8, steps=400, present=800, absent=800)
    killed = []

    def kill(done, of):
        # Whoever is at work now dies, as on a machine that goes away.
        if done in (3, 4) or (done > 4 and not killed):
            for worker in _workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    there = sweep.run(grid, folder=tmp_path / "there", ray="local", progress=kill)
    assert killed
    here = sweep.run(grid, folder=tmp_path / "here")
    rows = sweep.read_table(there)
    assert len({(row["epsilon"], row["seed"], row["auditor"]) for row in rows}) == len(rows) == 32
    assert rows == sweep.read_table(here)


def test_a_sweep_starts_a_cluster_of_its_own(tmp_path):
    """In a process of its own, as a user would."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "paper", "sweep", "--ray", "local", "--seeds", "2"]
    command += ["--steps", "20", "--present", "40", "--absent", "40", "--epsilon", "2"]
    command += ["--auditor", "gaussian-shift", "--folder", str(tmp_path / "sweep")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    if "Ray did not start" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert len(sweep.read_table(done.stdout.strip())) == 2
    assert "above the truth" in done.stderr


def test_a_ray_that_does_not_start_is_said_and_is_no_bug_of_ours(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def late(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(sweep.SweepWorkerError, match="Ray did not start"):
        sweep.run(GRID, folder=tmp_path / "sweep", ray="local")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("127.0.0.1:1", sweep.SweepWorkerError),
        ("here:", InvalidArgumentError),
        ("here:99999", InvalidArgumentError),
    ],
)
def test_no_cluster_there(tmp_path, address, error):
    pytest.importorskip("ray")
    with pytest.raises(error, match=address):
        sweep.run(GRID, folder=tmp_path / "sweep", ray=address)
