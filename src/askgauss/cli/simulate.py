"""Commands that run a mechanism on paper: simulate, and the faults it can have."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from askgauss.cli.outputs import write_document
from askgauss.cli.program import Command, ExitCode
from askgauss.cli.shared import Seed, nearest
from askgauss.cli.terminal import Progress, as_table, printable, say
from askgauss.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.results import AuditResult
    from askgauss.simulation.faults import Fault

__all__ = ["faults", "simulate"]

# At 2,500 steps and this rate, this noise multiplier is epsilon 8 at delta 1e-5.
_STEPS = 2500
_SAMPLING_RATE = 4096 / 50000
_NOISE_MULTIPLIER = 2.576
_EPSILON, _DELTA = 8.0, 1e-5


def _fault_named(name: str | None) -> Fault | None:
    from askgauss.simulation.faults import FAULTS

    if name is not None and name not in FAULTS:
        raise InvalidArgumentError(f"Expected a fault to be {nearest(name, FAULTS)}")
    return None if name is None else FAULTS[name]


def _complete_fault(incomplete: str) -> list[str]:
    from askgauss.simulation.faults import FAULTS

    return [name for name in FAULTS if name.startswith(incomplete)]


Steps = Annotated[int, typer.Option(help="Number of steps.")]
Present = Annotated[int, typer.Option(help="Number of present canaries.")]
Absent = Annotated[int, typer.Option(help="Number of absent canaries.")]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE|-", help="Where the transcript goes.")
]

simulate = typer.Typer(help="Run a mechanism on paper and write its transcript.")
faults = typer.Typer(help="List what can be wrong with DP-SGD, and try whether it is caught.")


def _refuse_terminal(output: str) -> None:
    if output == "-" and sys.stdout.isatty():
        raise InvalidArgumentError(
            "Expected a pipe or -o FILE: a transcript is no text for a terminal. For example: "
            "askgauss simulate dpsgd | askgauss audit - --epsilon 8 --delta 1e-5"
        )


@simulate.command(cls=Command)
def dpsgd(
    steps: Steps = _STEPS,
    sampling_rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = _SAMPLING_RATE,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise on the sum, in clip norms.")
    ] = _NOISE_MULTIPLIER,
    present: Present = 2500,
    absent: Absent = 2500,
    seed: Seed = 0,
    fault: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Break the mechanism in a known way; see askgauss faults list.",
            autocompletion=_complete_fault,
        ),
    ] = None,
    output: Output = "-",
) -> None:
    """DP-SGD: Poisson sampling and fresh Gaussian noise; by default a run of epsilon 8 at 1e-5."""
    _refuse_terminal(output)
    from askgauss.simulation import simulate_dpsgd

    transcript = simulate_dpsgd(
        steps=steps,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        present=present,
        absent=absent,
        seed=seed,
        fault=_fault_named(fault),
    )
    write_document(output, transcript.save)


@simulate.command(cls=Command)
def dpftrl(
    steps: Steps = 128,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise of one node, in clip norms.")
    ] = 2.0,
    present: Present = 2500,
    absent: Absent = 2500,
    release: Annotated[
        Literal["nodes", "prefixes"], typer.Option(help="What is seen of the tree.")
    ] = "nodes",
    estimator: Annotated[
        Literal["plain", "honaker", "full"], typer.Option(help="How prefixes are made of nodes.")
    ] = "plain",
    seed: Seed = 0,
    output: Output = "-",
) -> None:
    """DP-FTRL: sums released through a tree of noise."""
    _refuse_terminal(output)
    from askgauss.simulation import simulate_dpftrl

    transcript = simulate_dpftrl(
        steps=steps,
        noise_multiplier=noise_multiplier,
        present=present,
        absent=absent,
        seed=seed,
        release=release,
        estimator=estimator,
    )
    write_document(output, transcript.save)


@faults.command("list", cls=Command)
def list_faults() -> None:
    """List the faults a simulation can have, and those no audit of one run can see."""
    from askgauss.simulation.faults import FAULTS, INVISIBLE

    width = max(len(name) for name in (*FAULTS, *(unseen.name for unseen in INVISIBLE)))
    for fault in FAULTS.values():
        say(printable(f"{fault.name.ljust(width)}  {fault.description}"))
    say("\nOut of sight of an audit of one run:")
    for unseen in INVISIBLE:
        say(printable(f"{unseen.name.ljust(width)}  {unseen.description} {unseen.instead}"))


@faults.command("run", cls=Command)
def run_faults(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Which; all if none is named.", autocompletion=_complete_fault
        ),
    ] = None,
    present: Present = 500,
    absent: Absent = 2000,
    steps: Steps = 600,
    seed: Seed = 0,
) -> None:
    """Simulate faults that claim epsilon 8 at 1e-5, audit each, and show which are caught.

    Exits with 1 if one of them is not answered as expected. Some show only in certain runs: batches
    are empty only where --present is small, and a slight fault needs many canaries.
    """
    from askgauss import accounting
    from askgauss.auditing import audit
    from askgauss.claims import PrivacyClaim
    from askgauss.simulation import simulate_dpsgd
    from askgauss.simulation.faults import FAULTS

    chosen = [fault for fault in map(_fault_named, name or FAULTS) if fault is not None]
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=_EPSILON, delta=_DELTA, sampling_rate=_SAMPLING_RATE, steps=steps
    )
    rows: list[tuple[str, ...]] = [("fault", "expected", "verdict", "epsilon >=", "seen by")]
    missed = 0
    with Progress("faults", len(chosen), unit="audits") as progress:
        for fault in chosen:
            transcript = simulate_dpsgd(
                steps=steps,
                sampling_rate=_SAMPLING_RATE,
                noise_multiplier=noise,
                present=present,
                absent=absent,
                seed=seed,
                fault=fault,
            )
            claim = PrivacyClaim(
                epsilon=_EPSILON,
                delta=_DELTA,
                noise_multiplier=noise,
                sampling_rate=_SAMPLING_RATE,
                steps=steps,
                clip_norm=fault.clip_norm,
            )
            result = audit(transcript, claim=claim)
            missed += result.verdict is not fault.verdict
            rows.append((fault.name, fault.verdict.value, *_outcome(result)))
            progress.advance()
    say(printable(as_table(rows)))
    say(f"{len(chosen) - missed} of {len(chosen)} as expected.")
    raise typer.Exit(ExitCode.VIOLATION if missed else ExitCode.CONSISTENT)


def _outcome(result: AuditResult) -> tuple[str, str, str]:
    from askgauss.results import number

    seen = [item.check for item in result.findings if item.status.value in ("fail", "warn")]
    verdict = "none" if result.verdict is None else result.verdict.value
    return verdict, number(result.epsilon_lower), ", ".join(seen[:2]) or "the bound"
