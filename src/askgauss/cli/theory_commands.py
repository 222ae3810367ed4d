"""Commands that need no data: what a score's law says, and what an audit could see."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from askgauss.cli.destinations import Json, write_text
from askgauss.cli.options import (
    GateError,
    RunNoise,
    RunRate,
    RunSteps,
    auditor_named,
    auditor_option,
)
from askgauss.cli.terminal import as_table, printable, say
from askgauss.exceptions import InvalidArgumentError

__all__ = ["plan", "theory"]


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
    """Show the exact law of a present canary's score beside the Gaussian that models it."""
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
    """Print after how many steps of a run on paper each fault is seen."""
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
        f"{present:,} present and {absent:,} absent canaries, noise {noise:.4g}, sampling rate "
        f"{sampling_rate:.4g}, error {error:g}; of {runs} runs of {steps:,} steps on paper:"
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
        typer.Option(help="True epsilon to be noticed.  [default: 1.25 times the claim]"),
    ] = None,
    power: Annotated[
        float | None, typer.Option(help="How likely it should be noticed.  [default: 0.8]")
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
    """Say before any training how many canaries an audit needs, or which leak it would notice."""
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
