"""Every example runs as it is, from anywhere, and says something about privacy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def run(example, folder):
    ranks = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *(ranks if example.stem.startswith("fsdp") else []), str(example)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    output = run(example, tmp_path)
    assert "epsilon" in output
    if example.stem == "opacus_audit":
        correct, broken = output.split("Noise 0.5 times")
        assert "VIOLATION" not in correct
        assert "VIOLATION" in broken
    if example.stem == "fsdp_audit":
        # A sound run alarms once in a thousand; bounds of so many steps are 97 % on average.
        assert "CONSISTENT" in output
        assert int(re.search(r"\((\d+)% of the claim\)", output)[1]) >= 90
    if example.stem == "federated":
        correct, broken = output.split("Clients weigh the examples")
        assert "CONSISTENT" in correct
        assert "[fail] client weight" in broken
    if example.stem == "opacus_replay":
        plain, mended, logged, _ = output.split("\n\n")
        assert plain.splitlines()[1].startswith("VIOLATION: divisor")
        assert mended.splitlines()[1].startswith("CONSISTENT")
        assert logged.splitlines()[1].startswith("VIOLATION: loss")
    if example.stem == "raw_loop":
        assert "VIOLATION" not in output
        assert "INVALID" not in output


def test_there_are_examples():
    assert {"simulated_audit", "opacus_audit", "raw_loop"} <= {path.stem for path in EXAMPLES}
