"""The program in this process, as a shell would start it, and files for it to read."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner

import askgauss as ag
from askgauss.cli import app, main

PROGRAM = [sys.executable, "-m", "askgauss"]
ENVIRONMENT = {
    name: value
    for name, value in {**os.environ, "OMP_NUM_THREADS": "1"}.items()
    if name not in ("NO_COLOR", "TERM")
}

# What a plain installation does not have.
EXTRAS = ("torch", "opacus", "sklearn", "jax", "jax_privacy", "pandas", "hypothesis", "kymatio")
WITHOUT_EXTRAS = f"""
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.split(".")[0] in {EXTRAS} else find(name, *rest)
)
from askgauss.cli import main
main(sys.argv[1:])
"""
PLAIN_PROGRAM = [sys.executable, "-c", WITHOUT_EXTRAS]


# The program is the same in every call: reading the signatures of its commands once is enough.
typer.testing._get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def one_moment(monkeypatch):
    """Documents of the same audit are the same, whenever they are made."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def run():
    """Call the program in this process; stdout, stderr and the exit code come back apart."""

    def call(*arguments, **options):
        return CliRunner().invoke(app, [str(item) for item in arguments], **options)

    return call


@contextlib.contextmanager
def opened(stdout, stderr):
    """Streams of this process as a shell would leave them.

    Each is the name of a file to write to, ``"closed"``, or ``"read-only"``.
    """

    def stream(kind):
        if kind == "closed":
            return None
        if kind == "read-only":
            return os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
        return open(kind, "w", encoding="utf-8")  # noqa: PTH123

    before, streams = (sys.stdout, sys.stderr), (stream(stdout), stream(stderr))
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        made = {*streams, sys.stderr} - {None}
        sys.stdout, sys.stderr = before
        for item in made:
            with contextlib.suppress(OSError):
                item.close()


@pytest.fixture
def with_streams(tmp_path):
    """Call the program in this process on streams that may be full or closed; its exit code."""

    def call(*arguments, stdout=None, stderr=None):
        with (
            opened(stdout or tmp_path / "stdout", stderr or tmp_path / "stderr"),
            pytest.raises(SystemExit) as leaving,
        ):
            main([str(item) for item in arguments])
        return leaving.value.code

    return call


def _transcript(noise_multiplier):
    return ag.simulate_dpsgd(
        steps=100,
        sampling_rate=0.2,
        noise_multiplier=noise_multiplier,
        present=300,
        absent=300,
        seed=1,
    )


@pytest.fixture(scope="session")
def correct(tmp_path_factory):
    """A transcript of a run that keeps epsilon 8 at delta 1e-5 (its noise is 1.45 by the claim)."""
    path = tmp_path_factory.mktemp("data") / "correct.npz"
    _transcript(1.45).save(path)
    return path


@pytest.fixture(scope="session")
def leaky(tmp_path_factory):
    """The same with half the noise."""
    path = tmp_path_factory.mktemp("data") / "leaky.npz"
    _transcript(0.71).save(path)
    return path


@pytest.fixture(scope="session")
def scores(tmp_path_factory):
    """Scores of the correct run: too few for a verdict."""
    path = tmp_path_factory.mktemp("data") / "scores.npz"
    _transcript(1.45).scores().save(path)
    return path
