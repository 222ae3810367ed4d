"""Every example runs from anywhere, and says something about privacy.

In this process, so that torch and jax are imported once; what only takes longer is made smaller.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from pathlib import Path

import pytest

from tests import forks

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# Constants of an example that set its length, and nothing that is tested here.
SHORTER = {
    "jax_transformer": {"STEPS": 40, "RECORDS": 600},
    "language_model": {"RECORDS": 300, "CANARIES": 600},
    "lightning_audit": {"EPOCHS": 2},
}


def in_this_process(example, capsys):
    """As ``python example.py`` would, but for the constants: they are set before main is called."""
    specification = importlib.util.spec_from_file_location(example.stem, example)
    module = importlib.util.module_from_spec(specification)
    sys.modules[example.stem] = module
    specification.loader.exec_module(module)
    for name, value in SHORTER.get(example.stem, {}).items():
        assert hasattr(module, name)
        setattr(module, name, value)
    with warnings.catch_warnings():
        module.main(*([4.0] if example.stem == "language_model" else []))
    return capsys.readouterr().out


def on_two_ranks(example, folder):
    done = forks.ran_as_ranks(example, 2, cwd=folder)
    assert [rank.returncode for rank in done] == [0, 0], [rank.stderr for rank in done]
    return "".join(rank.stdout for rank in done)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path, monkeypatch, capsys):
    assert 'if __name__ == "__main__":\n    main(' in example.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    ranks = example.stem.startswith("fsdp")
    output = on_two_ranks(example, tmp_path) if ranks else in_this_process(example, capsys)
    assert "epsilon" in output
    if example.stem == "opacus_audit":
        correct, broken = output.split("Noise 0.5 times")
        assert "VIOLATION" not in correct
        assert "VIOLATION" in broken
    if example.stem == "fsdp_audit":
        # A correct run alarms once in a thousand; bounds of so many steps are 97 % on average.
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
