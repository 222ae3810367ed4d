"""Commands that run a mechanism on paper: simulate, and the faults it can have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Annotated, Any, Protocol

import typer

from askgauss.cli.outputs import write_document
from askgauss.cli.program import Command, ExitCode
from askgauss.cli.shared import Seed, nearest, part
from askgauss.cli.terminal import as_table, printable, say
from askgauss.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.results import AuditResult

__all__ = ["faults", "simulate"]

# At 2,500 steps and this rate, this noise multiplier is epsilon 8 at delta 1e-5.
_STEPS = 2500
_SAMPLING_RATE = 4096 / 50000
_NOISE_MULTIPLIER = 2.576
_EPSILON, _DELTA = 8.0, 1e-5


class _Savable(Protocol):
    def save(self, target: IO[bytes]) -> None: ...


def _known_faults() -> Mapping[str, Any]:
    found: Mapping[str, Any] = part("simulation.faults", "faults_by_name")()
    return found


def _fault_named(name: str | None) -> Any:
    if name is None:
        return None
    known = _known_faults()
    if name not in known:
        raise InvalidArgumentError(f"Expected --fault to be {nearest(name, known)}")
    return known[name]


def _complete_fault(incomplete: str) -> list[str]:
    return [name for name in sorted(_known_faults()) if name.startswith(incomplete)]


Steps = Annotated[int, typer.Option(help="Number of steps.")]
Present = Annotated[int, typer.Option(help="Number of present canaries.")]
Absent = Annotated[int, typer.Option(help="Number of absent canaries.")]
Fault = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Break the mechanism in a known way; see askgauss faults list.",
        autocompletion=_complete_fault,
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE|-", help="Where the transcript goes.")
]

simulate = typer.Typer(help="Run a mechanism on paper and write its transcript.")
faults = typer.Typer(help="List what can be wrong with a mechanism, and try whether it is caught.")


def _refuse_terminal(output: str) -> None:
    if output == "-" and sys.stdout.isatty():
        raise InvalidArgumentError(
            "Expected a pipe or -o FILE: a transcript is no text for a terminal. For example: "
            "askgauss simulate dpsgd | askgauss audit - --epsilon 8 --delta 1e-5"
        )


def _write(transcript: _Savable, output: str) -> None:
    write_document(output, transcript.save)


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
    fault: Fault = None,
    output: Output = "-",
) -> None:
    """DP-SGD: Poisson sampling and fresh Gaussian noise; by default a run of epsilon 8 at 1e-5."""
    _refuse_terminal(output)
    from askgauss.simulation import simulate_dpsgd

    broken = {} if fault is None else {"fault": _fault_named(fault)}
    _write(
        simulate_dpsgd(
            steps=steps,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            present=present,
            absent=absent,
            seed=seed,
            **broken,
        ),
        output,
    )


@simulate.command(cls=Command)
def dpftrl(
    steps: Steps = 128,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise of one node, in clip norms.")
    ] = 2.0,
    present: Present = 2500,
    absent: Absent = 2500,
    release: Annotated[str, typer.Option(help="What is seen: nodes or prefixes.")] = "nodes",
    estimator: Annotated[
        str, typer.Option(help="How prefixes are made: plain, honaker or full.")
    ] = "plain",
    seed: Seed = 0,
    fault: Fault = None,
    output: Output = "-",
) -> None:
    """DP-FTRL: sums released through a tree of noise."""
    _refuse_terminal(output)
    broken = {} if fault is None else {"fault": _fault_named(fault)}
    _write(
        part("simulation", "simulate_dpftrl")(
            steps=steps,
            noise_multiplier=noise_multiplier,
            present=present,
            absent=absent,
            seed=seed,
            release=release,
            estimator=estimator,
            **broken,
        ),
        output,
    )


@faults.command("list", cls=Command)
def list_faults() -> None:
    """List the faults a simulation can have."""
    rows = [(name, _first_line(fault)) for name, fault in _known_faults().items()]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        say(printable(f"{name.ljust(width)}  {text}"))


def _first_line(fault: Any) -> str:
    return str(fault.__doc__ or "").strip().split("\n", 1)[0]


@faults.command("run", cls=Command)
def run_faults(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Which; all of DP-SGD if none is named."),
    ] = None,
    present: Present = 500,
    absent: Absent = 500,
    steps: Steps = 500,
    seed: Seed = 0,
) -> None:
    """Simulate faults of DP-SGD, audit each, and show which ones are caught.

    Exits with 1 if one of them passes as consistent with its claim.
    """
    from askgauss import accounting
    from askgauss.auditing import audit
    from askgauss.claims import PrivacyClaim
    from askgauss.simulation import simulate_dpsgd

    known = _known_faults()
    chosen = {one: _fault_named(one) for one in name} if name else known
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=_EPSILON, delta=_DELTA, sampling_rate=_SAMPLING_RATE, steps=steps
    )
    claim = PrivacyClaim(
        epsilon=_EPSILON,
        delta=_DELTA,
        noise_multiplier=noise,
        sampling_rate=_SAMPLING_RATE,
        steps=steps,
        clip_norm=1.0,
    )
    rows: list[tuple[str, ...]] = [("fault", "verdict", "epsilon at least", "because of")]
    missed = False
    for one, fault in chosen.items():
        simulated: Any = simulate_dpsgd
        transcript = simulated(
            steps=steps,
            sampling_rate=_SAMPLING_RATE,
            noise_multiplier=noise,
            present=present,
            absent=absent,
            seed=seed,
            fault=fault,
        )
        result = audit(transcript, claim=claim)
        rows.append((one, *_outcome(result)))
        missed = missed or ExitCode.of(result) == ExitCode.CONSISTENT
    say(printable(as_table(rows)))
    raise typer.Exit(ExitCode.VIOLATION if missed else ExitCode.CONSISTENT)


def _outcome(result: AuditResult) -> tuple[str, str, str]:
    from askgauss.results import number

    failed = [item.check for item in result.findings if item.status.value in ("fail", "warn")]
    verdict = "" if result.verdict is None else result.verdict.value
    return verdict, number(result.epsilon_lower), ", ".join(failed[:2]) or "the bound"
