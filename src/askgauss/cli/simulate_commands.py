"""Commands that run a mechanism on paper: simulate, and the faults it can have."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from askgauss.cli.destinations import write_document
from askgauss.cli.options import Seed, nearest
from askgauss.cli.program import Command, ExitCode
from askgauss.cli.terminal import Progress, as_table, printable, say
from askgauss.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.claims import PrivacyClaim
    from askgauss.federated import FederatedFault
    from askgauss.recording.inputs import AuditInput
    from askgauss.simulation.faults import Fault, TreeFault

__all__ = ["faults", "simulate"]

_Kind = TypeVar("_Kind")

# At 2,500 steps and this rate, this noise multiplier is epsilon 8 at delta 1e-5.
_STEPS = 2500
_SAMPLING_RATE = 4096 / 50000
_NOISE_MULTIPLIER = 2.576
_EPSILON, _DELTA = 8.0, 1e-5
# Of 100 rounds with every client in each: epsilon 33.1 at delta 1e-5.
_FEDERATED_NOISE = 2.0
# Trees that faults are tried on: leaves, and leaves of one tree where it takes several.
_LEAVES, _RESTART = 64, 16


def _named(name: str, faults: Mapping[str, _Kind]) -> _Kind:
    if name not in faults:
        raise InvalidArgumentError(f"Expected a fault to be {nearest(name, faults)}")
    return faults[name]


def _all_faults() -> dict[str, Fault | TreeFault]:
    from askgauss.simulation.faults import FAULTS, TREE_FAULTS

    return {**FAULTS, **TREE_FAULTS}


def _complete_fault(incomplete: str) -> list[str]:
    return [name for name in _all_faults() if name.startswith(incomplete)]


def _complete_server_fault(incomplete: str) -> list[str]:
    from askgauss.federated import FEDERATED_FAULTS

    return [name for name in FEDERATED_FAULTS if name.startswith(incomplete)]


Steps = Annotated[int, typer.Option(help="Number of steps.")]
Present = Annotated[int, typer.Option(help="Number of present canaries.")]
Absent = Annotated[int, typer.Option(help="Number of absent canaries.")]
FaultName = Annotated[
    str | None,
    typer.Option(
        "--fault",
        metavar="NAME",
        help="Break the mechanism in a known way; see askgauss faults list.",
        autocompletion=_complete_fault,
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE|-", help="Where the transcript goes.")
]

simulate = typer.Typer(help="Run a mechanism on paper and write its transcript.")
faults = typer.Typer(help="List what can be wrong with private training, and what catches it.")


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
    fault: FaultName = None,
    output: Output = "-",
) -> None:
    """DP-SGD: Poisson sampling and fresh Gaussian noise; by default a run of epsilon 8 at 1e-5."""
    _refuse_terminal(output)
    from askgauss.simulation import FAULTS, simulate_dpsgd

    transcript = simulate_dpsgd(
        steps=steps,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        present=present,
        absent=absent,
        seed=seed,
        fault=None if fault is None else _named(fault, FAULTS),
    )
    write_document(output, transcript.save, private=True)


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
    restart_every: Annotated[
        int | None, typer.Option(help="Leaves of one tree; else all steps are in one.")
    ] = None,
    seed: Seed = 0,
    fault: FaultName = None,
    output: Output = "-",
) -> None:
    """DP-FTRL: sums released through a tree of noise."""
    _refuse_terminal(output)
    from askgauss.simulation import TREE_FAULTS, simulate_dpftrl

    transcript = simulate_dpftrl(
        steps=steps,
        noise_multiplier=noise_multiplier,
        present=present,
        absent=absent,
        seed=seed,
        release=release,
        estimator=estimator,
        restart_every=restart_every,
        fault=None if fault is None else _named(fault, TREE_FAULTS),
    )
    write_document(output, transcript.save, private=True)


@simulate.command(cls=Command)
def federated(
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 100,
    clients: Annotated[int, typer.Option(help="Honest clients of a round.")] = 100,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise on the sum, in clip norms.")
    ] = _FEDERATED_NOISE,
    dimension: Annotated[int, typer.Option(help="Entries of an update.")] = 2000,
    present: Annotated[int, typer.Option(help="Number of present canary clients.")] = 50,
    absent: Annotated[int, typer.Option(help="Number of absent canary clients.")] = 950,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Let the clip norm follow the updates.")
    ] = False,
    seed: Seed = 0,
    fault: Annotated[
        str | None,
        typer.Option(
            "--fault",
            metavar="NAME",
            help="Break the server in a known way; see askgauss faults list.",
            autocompletion=_complete_server_fault,
        ),
    ] = None,
    output: Output = "-",
) -> None:
    """Federated averaging, every client in every round; by default of epsilon 33.1 at 1e-5."""
    _refuse_terminal(output)
    from askgauss.federated import FEDERATED_FAULTS, simulate_federated

    transcript = simulate_federated(
        rounds=rounds,
        clients=clients,
        noise_multiplier=noise_multiplier,
        dimension=dimension,
        present=present,
        absent=absent,
        adaptive=adaptive,
        seed=seed,
        fault=None if fault is None else _named(fault, FEDERATED_FAULTS),
    )
    write_document(output, transcript.save, private=True)


@faults.command("list", cls=Command)
def list_faults() -> None:
    """List the faults a simulation can have, and those no audit of one run can see."""
    from askgauss.federated import FEDERATED_FAULTS
    from askgauss.simulation.faults import FAULTS, INVISIBLE, TREE_FAULTS

    unseen_names = (unseen.name for unseen in INVISIBLE)
    width = max(len(name) for name in (*_all_faults(), *FEDERATED_FAULTS, *unseen_names))
    listed: tuple[tuple[str, Iterable[Fault | TreeFault | FederatedFault]], ...] = (
        ("DP-SGD:", FAULTS.values()),
        ("\nDP-FTRL:", TREE_FAULTS.values()),
        ("\nFederated (simulate federated --fault):", FEDERATED_FAULTS.values()),
    )
    for title, members in listed:
        say(title)
        for fault in members:
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
    steps: Annotated[int, typer.Option(help="Number of steps of DP-SGD.")] = 600,
    seed: Seed = 0,
) -> None:
    """Simulate faults in runs that claim epsilon 8 at 1e-5, audit each, and show what names it.

    Exits with 1 if the finding that belongs to a fault does not name it: a slight fault needs many
    canaries. The verdict may still be consistent, where a fault costs accuracy and not privacy.
    """
    from askgauss._text import number
    from askgauss.auditing import audit
    from askgauss.simulation.faults import Fault

    everything = _all_faults()
    chosen = [_named(item, everything) for item in name or everything]
    rows: list[tuple[str, ...]] = [("fault", "finding", "named", "verdict", "epsilon >=")]
    with Progress("faults", len(chosen), unit="audits") as progress:
        for fault in chosen:
            if isinstance(fault, Fault):
                data, claim = _broken_run(fault, steps, present, absent, seed)
            else:
                data, claim = _broken_tree(fault, present, absent, seed)
            result = audit(data, claim=claim)
            flagged = {
                item.check for item in result.findings if item.status.value in ("fail", "warn")
            }
            named = "yes" if fault.finding in flagged else "no"
            verdict = "none" if result.verdict is None else result.verdict.value
            rows.append((fault.name, fault.finding, named, verdict, number(result.epsilon_lower)))
            progress.advance()
    say(printable(as_table(rows)))
    caught = sum(row[2] == "yes" for row in rows)
    say(f"{caught} of {len(chosen)} named.")
    raise typer.Exit(ExitCode.CONSISTENT if caught == len(chosen) else ExitCode.VIOLATION)


def _broken_run(
    fault: Fault, steps: int, present: int, absent: int, seed: int
) -> tuple[AuditInput, PrivacyClaim]:
    from askgauss import accounting
    from askgauss.claims import PrivacyClaim
    from askgauss.simulation import simulate_dpsgd

    rate = _SAMPLING_RATE
    if fault.expected_batch is not None:
        rate = min(1.0, fault.expected_batch / max(present, 1))
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=_EPSILON, delta=_DELTA, sampling_rate=rate, steps=steps
    )
    transcript = simulate_dpsgd(
        steps=steps,
        sampling_rate=rate,
        noise_multiplier=noise,
        present=present,
        absent=absent,
        seed=seed,
        fault=fault,
    )
    return transcript, PrivacyClaim(
        epsilon=_EPSILON,
        delta=_DELTA,
        noise_multiplier=noise,
        sampling_rate=rate,
        steps=steps,
        clip_norm=fault.clip_norm,
    )


def _broken_tree(
    fault: TreeFault, present: int, absent: int, seed: int
) -> tuple[AuditInput, PrivacyClaim]:
    from askgauss.claims import PrivacyClaim
    from askgauss.mechanisms import tree
    from askgauss.simulation import simulate_dpftrl

    restart = _RESTART if fault.restarts else None
    noise = tree.noise_multiplier(
        epsilon=_EPSILON, delta=_DELTA, steps=_LEAVES, restart_every=restart
    )
    transcript = simulate_dpftrl(
        steps=_LEAVES,
        noise_multiplier=noise,
        present=present,
        absent=absent,
        seed=seed,
        restart_every=restart,
        fault=fault,
    )
    return transcript, PrivacyClaim(epsilon=_EPSILON, delta=_DELTA)
