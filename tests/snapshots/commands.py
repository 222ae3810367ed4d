"""The command line: what every verdict, and every refusal, prints and exits with."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from typer.testing import CliRunner

import askgauss as ag
from askgauss.cli import app

_CLAIM = ("--epsilon", "8", "--delta", "1e-5")
COMMANDS: dict[str, tuple[str, ...]] = {
    "consistent": ("audit", "correct.npz", *_CLAIM),
    "violation": ("audit", "half-noise.npz", *_CLAIM),
    "inconclusive": ("audit", "scores.npz", *_CLAIM),
    "lenient": ("audit", "scores.npz", *_CLAIM, "--lenient"),
    "invalid": ("audit", "repeated.npz", "--epsilon", "100", "--delta", "1e-5"),
    "no-claim": ("audit", "correct.npz", "--delta", "1e-5"),
    "no-file": ("audit", "nowhere.npz", *_CLAIM),
    "out-of-range": ("audit", "correct.npz", "--epsilon", "-1", "--delta", "1e-5"),
    "diagnose": ("diagnose", "half-noise.npz"),
    "plan": ("plan", *_CLAIM),
}


@dataclass(frozen=True)
class Printed:
    """What a command left on the terminal."""

    exit_code: int
    output: str

    def __str__(self) -> str:
        return self.output

    def to_dict(self) -> dict[str, Any]:
        """Its exit code; the text is a document."""
        return {"exit_code": self.exit_code}


def printed(name: str) -> Printed:
    """Run a command in this process, in a folder with the files that it names."""
    wanted = [item for item in COMMANDS[name] if item in _FILES]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for file in wanted:
            _FILES[file]().save(file)
        done = CliRunner().invoke(
            app,
            list(COMMANDS[name]),
            env={"COLUMNS": "100", "SOURCE_DATE_EPOCH": "1700000000", "NO_COLOR": "1"},
        )
    return Printed(exit_code=done.exit_code, output=f"{done.stdout}\n{done.stderr}")


@functools.cache
def _transcript(noise_multiplier: float) -> Any:
    return ag.simulate_dpsgd(
        steps=100,
        sampling_rate=0.2,
        noise_multiplier=noise_multiplier,
        present=300,
        absent=300,
        seed=1,
    )


def _repeated() -> ag.CanaryScores:
    """Every score twice: an audit of them would count the same evidence twice."""
    scores = np.tile(np.arange(300) / 10, 2)
    return ag.CanaryScores.from_groups(present=scores + 1.0, absent=scores, noise="gaussian")


_FILES: dict[str, Callable[[], Any]] = {
    "correct.npz": lambda: _transcript(1.45),
    "half-noise.npz": lambda: _transcript(0.71),
    "scores.npz": lambda: _transcript(1.45).scores(),
    "repeated.npz": _repeated,
}
