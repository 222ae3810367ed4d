"""What a check tests, on the command line."""

from __future__ import annotations

import pytest
import typer.testing

from askgauss.checks.registry import registered
from askgauss.cli import app

RUNNER = typer.testing.CliRunner()


def test_a_check_is_explained_with_its_part_and_its_causes():
    shown = RUNNER.invoke(app, ["explain", "Noise scale"]).output
    assert shown.startswith("noise scale: ")
    assert "part        noise scale" in shown
    assert "may follow" in shown


def test_every_check_is_listed_and_can_be_explained():
    listed = RUNNER.invoke(app, ["explain"]).output
    for name in registered():
        assert name in listed
        assert RUNNER.invoke(app, ["explain", name]).exit_code == 0


@pytest.mark.parametrize(("given", "near"), [("noise scal", "noise scale"), ("xyz", "lists all")])
def test_an_unknown_name_gets_the_near_ones(given, near):
    done = RUNNER.invoke(app, ["explain", given])
    assert done.exit_code == 2
    assert near in done.output + str(done.exception or "")
