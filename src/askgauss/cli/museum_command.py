"""The command that shows real bugs of released libraries, where the sources are at hand."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from askgauss.cli.program import ExitCode
from askgauss.exceptions import InvalidArgumentError

__all__ = ["museum"]

# Of a copy of the repository that this file is in.
_ROOT = Path(__file__).parents[3]
# What the museum ends with where an exhibit did not do what is expected; Python that crashes, or
# cannot write, ends with 1.
_UNEXPECTED = 10


class Action(StrEnum):
    """What to do in the museum."""

    LIST = "list"
    RUN = "run"
    ALL = "all"


def museum(
    action: Annotated[
        Action, typer.Argument(help="List the exhibits, run some of them, or run all.")
    ] = Action.LIST,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="The exhibits to run.")
    ] = None,
) -> None:
    """Run real bugs of released libraries beside mended twins, and audit both.

    The museum is not installed with the package: it runs in a copy of the source repository,
    installs each release by name and hash into .venvs/museum (or $MUSEUM_ROOMS), and needs the
    packages that make test does. The exit code is 0 if every exhibit that was shown did what is
    expected of it, 1 if one did not, 2 if there is no answer; one that cannot be installed is
    skipped by name.
    """
    if not (_ROOT / "museum" / "__main__.py").exists():
        raise InvalidArgumentError(
            "Expected the folder museum beside src, got an installed package, which lacks it. "
            "Run the command in a copy of the source repository, after pip install --editable . "
            "or by make museum."
        )
    wanted = list(names or ())
    if (action is Action.RUN) != bool(wanted):
        raise InvalidArgumentError(
            f"Expected {'the names of exhibits' if action is Action.RUN else 'no names'} after "
            f"{action.value}, got {wanted}. See askgauss museum list."
        )
    done = subprocess.run([sys.executable, "-m", "museum", action.value, *wanted], cwd=_ROOT)
    codes = {0: ExitCode.CONSISTENT, _UNEXPECTED: ExitCode.VIOLATION}
    raise typer.Exit(codes.get(done.returncode, ExitCode.FAILURE))
