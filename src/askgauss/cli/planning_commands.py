"""Commands that need no data: plan, theory, simulate, faults, selftest."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from askgauss._text import printable
from askgauss.cli.options import (
    Absent,
    Confidence,
    GateError,
    Json,
    Present,
    RunNoise,
    RunRate,
    RunSteps,
    Seed,
    auditor_named,
    auditor_option,
    nearest,
    write_document,
    write_text,
)
from askgauss.cli.program import Command, ExitCode, Group
from askgauss.cli.terminal import ProgressBar, as_table, say
from askgauss.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.claims import PrivacyClaim
    from askgauss.federated import FederatedFault
    from askgauss.recording.inputs import AuditInput
    from askgauss.results import AuditResult
    from askgauss.simulation.faults import Fault, TreeFault


def theory(
    steps: RunSteps = 2500,
    sampling_rate: RunRate = 0.0819,
    noise_multiplier: RunNoise = 2.6245,
    clip_norm: Annotated[float, typer.Option(help="Clip norm.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Where to state epsilon.")] = 1e-5,
    tail: Annotated[
        float, typer.Option(help="How many standard deviations out the tails are compared.")
    ] = 4.0,
    json: Json = None,
) -> None:
    """Show the exact distribution of an inserted canary's score next to its Gaussian model."""
    from askgauss import accounting
    from askgauss.files import codec
    from askgauss.stats.score_law import ScoreLaw

    law = ScoreLaw(
        steps=steps,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
    )
    numbers = {
        "mean": law.mean,
        "variance": law.variance,
        "absent variance": law.absent_variance,
        "shift": law.shift,
        "skewness": law.skewness,
        "excess kurtosis": law.excess_kurtosis,
        "Kolmogorov distance": law.kolmogorov_distance(),
        "Kolmogorov distance, leading term": law.kolmogorov_leading_term(),
        f"tail deviation beyond {tail:g}": law.tail_deviation_exact(tail),
        f"tail deviation beyond {tail:g}, leading term": law.tail_deviation(tail),
        "epsilon of the score": law.epsilon_at(delta),
        "epsilon of the Gaussian model": law.gaussian_epsilon_at(delta),
        "epsilon of the accountant": accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
        ),
    }
    if json != "-":
        say(as_table([(name, f"{value:.6g}") for name, value in numbers.items()]))
    if json is not None:
        content = codec.to_plain({"law": law, "delta": delta, "numbers": numbers})
        write_text(json, codec.dumps("askgauss-theory", 1, content) + "\n")


_USUAL_FAULTS = (
    "noise=0.9",
    "noise=0.95",
    "noise=0.99",
    "contribution=1.5",
    "contribution=2",
    "rate=1.5",
    "period=1",
)


def _plan_monitor(
    faults: list[str],
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    present: int,
    absent: int,
    steps: int,
    power: float,
    error: float,
) -> None:
    """Print after how many steps of a simulated run each fault is detected."""
    from askgauss import _validate, accounting
    from askgauss.claims import PrivacyClaim
    from askgauss.monitor.simulate_run import RunFault, most_noticed, runs_on_paper, steps_to_alarm

    _validate.within(0, 0.5, gate_error=error)
    _validate.probability(power=power)
    runs = runs_on_paper(steps)
    run: dict[str, Any] = {"delta": delta, "sampling_rate": sampling_rate, "steps": steps}
    noise = accounting.dpsgd_noise_multiplier(epsilon=epsilon, **run)
    claim = PrivacyClaim(epsilon=epsilon, noise_multiplier=noise, **run)
    rows = [("fault", "half of runs by step", f"{power:.0%} by step")]
    size: dict[str, Any] = {"present": present, "absent": absent, "steps": steps, "error": error}
    for name in faults:
        fault = RunFault.parse(name)
        if most_noticed(fault, claim=claim, **size) < min(power, 0.5):
            rows.append((name, "never", "never"))
            continue
        found = steps_to_alarm(fault, claim=claim, runs=runs, **size)
        half, most = (found[math.ceil(len(found) * share) - 1] for share in (0.5, power))
        rows.append((name, _step_or_never(half), _step_or_never(most)))
    say(
        f"{present:,} inserted and {absent:,} held-out canaries, noise {noise:.4g}, sampling rate "
        f"{sampling_rate:.4g}, error {error:g}; of {runs} simulated runs of {steps:,} steps:"
    )
    say(as_table(rows))


def _step_or_never(step: float) -> str:
    return f"{step:,.0f}" if math.isfinite(step) else "never"


class Unknown(StrEnum):
    """What a plan may leave open."""

    PRESENT = "present"
    ABSENT = "absent"
    STEPS = "steps"
    ALTERNATIVE = "alternative"
    POWER = "power"


def plan(
    find: Annotated[Unknown, typer.Option(help="What to find, given the others.")] = (
        Unknown.PRESENT
    ),
    epsilon: Annotated[float, typer.Option(help="Claimed epsilon.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Claimed delta.")] = 1e-5,
    sampling_rate: RunRate = 0.0819,
    present: Annotated[int | None, typer.Option(help="Present canaries.  [default: 1000]")] = None,
    absent: Annotated[int | None, typer.Option(help="Absent canaries.  [default: 4000]")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.  [default: 2500]")] = None,
    alternative: Annotated[
        float | None,
        typer.Option(help="True epsilon to be detected.  [default: 1.25 times the claim]"),
    ] = None,
    power: Annotated[
        float | None, typer.Option(help="How likely it should be detected.  [default: 0.8]")
    ] = None,
    gate_error: GateError = 0.001,
    auditor: Annotated[
        str | None,
        auditor_option("Method; by default the one that reads a transcript."),
    ] = None,
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor",
            help="Instead, after how many steps a monitor sees faults; --gate-error is its error.",
        ),
    ] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE", help="With --monitor: noise, contribution, rate, period."
        ),
    ] = None,
) -> None:
    """Say before any training how many canaries an audit needs, or which leak it detects."""
    if monitor:
        if alternative is not None or auditor is not None or find is not Unknown.PRESENT:
            raise InvalidArgumentError(
                "Expected --monitor without --find, --alternative and --auditor: its faults are "
                "given with --fault."
            )
        _plan_monitor(
            fault or list(_USUAL_FAULTS),
            epsilon=epsilon,
            delta=delta,
            sampling_rate=sampling_rate,
            present=250 if present is None else present,
            absent=4750 if absent is None else absent,
            steps=2500 if steps is None else steps,
            power=0.8 if power is None else power,
            error=gate_error,
        )
        return
    if fault:
        raise InvalidArgumentError("Expected --fault with --monitor only.")
    from askgauss import policy
    from askgauss.power import solve

    given: dict[str, Any] = {
        "present": present,
        "absent": absent,
        "steps": steps,
        "alternative": alternative,
        "power": power,
    }
    if given[find] is not None:
        raise InvalidArgumentError(
            f"Expected --{find} to be left out, it is what to find. Name another with --find."
        )
    usual: dict[str, Any] = {
        "present": 1000,
        "absent": 4000,
        "steps": 2500,
        "alternative": policy.ALTERNATIVE * epsilon,
        "power": policy.ENOUGH_POWER,
    }
    for name, value in usual.items():
        if name != find and given[name] is None:
            given[name] = value
    answer = solve(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=sampling_rate,
        gate_error=gate_error,
        auditor=auditor_named(auditor),
        **given,
    )
    say(printable(str(answer)))


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

simulate = typer.Typer(
    name="simulate", cls=Group, help="Simulate a mechanism and write its transcript."
)
faults = typer.Typer(
    name="faults",
    cls=Group,
    help="List what can be wrong with private training, and what catches it.",
)


def _refuse_terminal(output: str) -> None:
    if output == "-" and sys.stdout.isatty():
        raise InvalidArgumentError(
            "Expected a pipe or -o FILE: a transcript is no text for a terminal. For example: "
            "askgauss simulate dpsgd | askgauss audit - --epsilon 8 --delta 1e-5"
        )


@simulate.command(cls=Command)
def dpsgd(
    steps: RunSteps = _STEPS,
    sampling_rate: RunRate = _SAMPLING_RATE,
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
    steps: RunSteps = 128,
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
    with ProgressBar("faults", len(chosen), unit="audits") as progress:
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
    from askgauss.mechanisms.plans import TreePlan
    from askgauss.simulation import simulate_dpftrl

    restart = _RESTART if fault.restarts else None
    plan = TreePlan(steps=_LEAVES, restart_every=restart)
    noise = plan.noise_multiplier(epsilon=_EPSILON, delta=_DELTA)
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


# A correct installation fails one of the comparisons this rarely.
_ERROR = 1e-6
_TRANSCRIPTS = 3
_MOST_AUDITS = 10**4


def selftest(
    present: Present = 500,
    absent: Absent = 500,
    steps: RunSteps = 500,
    sampling_rate: RunRate = 0.1,
    noise_multiplier: RunNoise = 2.0,
    delta: Annotated[float, typer.Option(help="Delta of the bounds.")] = 1e-5,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
    audits: Annotated[int, typer.Option(help="Number of simulated audits of each kind.")] = 100,
    auditor: Annotated[
        str | None,
        auditor_option("Method of the audits of scores, such as one of your own."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Check the installation: no false alarms on clean runs, and a planted leak is caught.

    Simulates runs of the sizes given: without any leak, correct ones, and ones with half the noise
    they claim. Exits with 0 if all is well, 1 if a promise is broken, 3 if the promises hold but
    audits of this size would miss the planted leak.
    """
    import numpy as np

    from askgauss import _validate, accounting
    from askgauss.auditing import audit
    from askgauss.claims import PrivacyClaim
    from askgauss.policy import ENOUGH_POWER
    from askgauss.scores import CanaryScores
    from askgauss.simulation import simulate_dpsgd, simulate_scores
    from askgauss.simulation.simulated_runs import check_canaries
    from askgauss.stats import gaussian
    from askgauss.stats.score_law import ScoreLaw

    _validate.count(maximum=_MOST_AUDITS, audits=audits)
    _validate.integer(0, seed=seed)
    check_canaries(present, absent)
    method = auditor_named(auditor)
    law = ScoreLaw(steps=steps, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    truth = law.epsilon_at(delta)
    claim = PrivacyClaim(
        epsilon=accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
        ),
        delta=delta,
    )
    streams = np.random.default_rng(seed).spawn(3 * audits)

    def check(data: CanaryScores) -> AuditResult:
        return audit(
            data, claim=claim, auditor=method, confidence=confidence, gate_error=gate_error
        )

    def without_leak(index: int) -> AuditResult:
        return check(
            CanaryScores.from_groups(
                present=streams[index].standard_normal(present),
                absent=streams[index].standard_normal(absent),
                noise="gaussian",
            )
        )

    def simulated(index: int, noise: float) -> AuditResult:
        return check(
            simulate_scores(
                steps=steps,
                sampling_rate=sampling_rate,
                noise_multiplier=noise,
                present=present,
                absent=absent,
                seed=streams[index],
            )
        )

    def transcript(index: int, noise: float) -> AuditResult:
        run = simulate_dpsgd(
            steps=steps,
            sampling_rate=sampling_rate,
            noise_multiplier=noise,
            present=present,
            absent=absent,
            seed=seed + index,
        )
        return audit(run, claim=claim, confidence=confidence, gate_error=gate_error)

    total = 3 * audits + 2 * _TRANSCRIPTS
    with ProgressBar("self-test", total, unit="audits") as progress:

        def repeated(count: int, one: Callable[[int], AuditResult]) -> list[AuditResult]:
            results = []
            for index in range(count):
                results.append(one(index))
                progress.advance()
            return results

        nulls = repeated(audits, without_leak)
        correct = repeated(audits, lambda index: simulated(audits + index, noise_multiplier))
        leaks = repeated(
            audits, lambda index: simulated(2 * audits + index, 0.5 * noise_multiplier)
        )
        clean_runs = repeated(_TRANSCRIPTS, lambda index: transcript(index, noise_multiplier))
        leaky_runs = repeated(_TRANSCRIPTS, lambda index: transcript(index, 0.5 * noise_multiplier))

    exact = abs(float(gaussian.epsilon(1e-5, 0.0, 1.0, 1.0, 1.0)) - 4.377178) < 1e-5
    caught = sum(_alarm(result) for result in leaks)
    rows = [
        ("check", "observed", "promised", ""),
        ("epsilon of two Gaussians", "exact" if exact else "off", "exact", _word(exact)),
        _promise("bound above 0 without a leak", nulls, lambda r: r.epsilon_lower > 0, confidence),
        _promise(
            "bound above the truth, correct runs",
            correct,
            lambda result: result.epsilon_lower > truth,
            confidence,
        ),
        _promise("alarm without a leak", nulls, _alarm, 1.0 - gate_error),
        _promise("alarm on correct runs", correct + clean_runs, _alarm, 1.0 - gate_error),
    ]
    kept = all(row[-1] == "ok" for row in rows[1:])
    strong = caught >= ENOUGH_POWER * audits and all(_alarm(result) for result in leaky_runs)
    for name, found, tried in (
        ("half the noise caught, scores", caught, audits),
        ("half the noise caught, transcripts", sum(map(_alarm, leaky_runs)), _TRANSCRIPTS),
    ):
        enough = found >= ENOUGH_POWER * tried
        rows.append((name, f"{found}/{tried}", "most", "ok" if enough else "too weak"))
    say(as_table(rows))
    if not kept:
        say("BROKEN: this installation does not audit as it promises. Do not trust its verdicts.")
        raise typer.Exit(ExitCode.VIOLATION)
    if not strong:
        say("WEAK: promises are kept, but audits of this size miss half the noise. More canaries.")
        raise typer.Exit(ExitCode.UNDECIDED)
    say("OK: promises are kept, and half the noise is caught.")


def _alarm(result: AuditResult) -> bool:
    return result.verdict is not None and result.verdict.value in ("VIOLATION", "INVALID")


def _word(kept: bool) -> str:
    return "ok" if kept else "BROKEN"


def _promise(
    name: str, results: list[AuditResult], bad: Callable[[AuditResult], bool], confidence: float
) -> tuple[str, str, str, str]:
    """Compare how often something happened with how often it may."""
    from askgauss.stats.limits import clopper_pearson_lower

    count, tried, allowed = sum(map(bad, results)), len(results), 1.0 - confidence
    # The most that chance gives a correct installation.
    most = max(k for k in range(tried + 1) if clopper_pearson_lower(k, tried, _ERROR) <= allowed)
    promised = f"{allowed:.3g} of them, by chance up to {most}"
    return name, f"{count}/{tried}", promised, _word(count <= most)
