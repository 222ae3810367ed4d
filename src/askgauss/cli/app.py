"""All commands, put together; nothing here imports anything slow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from askgauss import __version__
from askgauss.cli.audit_commands import audit, compare, diagnose, replay, report
from askgauss.cli.demo import demo
from askgauss.cli.evidence_commands import attest, check_results, verify
from askgauss.cli.explain_command import explain
from askgauss.cli.planning_commands import faults, plan, selftest, simulate, theory
from askgauss.cli.program import Command, ConfigFile, Debug, Program, Quiet
from askgauss.cli.terminal import say
from askgauss.cli.watch_command import watch

app = typer.Typer(
    cls=Program,
    name="askgauss",
    # Boxes and colours only for somebody who looks at a terminal.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"askgauss {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    config: ConfigFile = None,
    debug: Debug = False,
    quiet: Quiet = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            expose_value=False,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Audit differentially private training from one run.

    Start with `askgauss demo`, or without any training:
    `askgauss simulate dpsgd --fault half-noise | askgauss audit - --epsilon 8 --delta 1e-5`.

    Exit codes: 0 consistent, 1 violation, 2 usage or unreadable input, 3 no verdict that lets the
    run through: inconclusive, invalid, or without a claim.
    """
    if context.invoked_subcommand is None:
        say(context.get_help())


def version() -> None:
    """Print the version of askgauss and of its dependencies."""
    from askgauss.files import installed_versions

    say("\n".join(f"{name} {number}" for name, number in installed_versions().items()))


_PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "First steps": (demo, selftest, version),
    "Audit": (audit, compare, diagnose, report, explain),
    "Evidence": (attest, verify, check_results),
    "During training": (watch, replay),
    "Before training": (plan, theory, simulate, faults),
}
for panel, commands in _PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=Command, rich_help_panel=panel)(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit; the entry point of the command line."""
    app(arguments)
