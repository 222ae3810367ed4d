"""Commands that need no data: what a score's law says, and what an audit could see."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from askgauss.cli.outputs import Json, write_text
from askgauss.cli.shared import Confidence, GateError
from askgauss.cli.terminal import as_table, printable, say
from askgauss.exceptions import UnsupportedError

__all__ = ["plan", "theory"]


def theory(
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 2500,
    sampling_rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = 0.0819,
    noise_multiplier: Annotated[float, typer.Option(help="Noise, in clip norms.")] = 2.6245,
    clip_norm: Annotated[float, typer.Option(help="Clip norm.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Where to state epsilon.")] = 1e-5,
    tail: Annotated[
        float, typer.Option(help="How many standard deviations out the tails are compared.")
    ] = 4.0,
    json: Json = None,
) -> None:
    """Show the exact law of a present canary's score beside the Gaussian that models it."""
    from askgauss import _plain, accounting
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
        content = _plain.to_plain({"law": law, "delta": delta, "numbers": numbers})
        write_text(json, _plain.dumps("askgauss-theory", 1, content) + "\n")


def plan(
    epsilon: Annotated[float, typer.Option(help="Claimed epsilon.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Claimed delta.")] = 1e-5,
    true_epsilon: Annotated[
        float | None, typer.Option(help="The leak to notice; leave out to find the smallest.")
    ] = None,
    present: Annotated[
        int | None, typer.Option(help="Present canaries; leave out to find how many.")
    ] = None,
    absent: Annotated[int | None, typer.Option(help="Absent canaries; as many as present.")] = None,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 2500,
    sampling_rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = 0.0819,
    power: Annotated[float, typer.Option(help="How likely the leak should be noticed.")] = 0.8,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
) -> None:
    """Say, before any training, how many canaries an audit needs or which leak it could notice."""
    from askgauss.claims import PrivacyClaim

    answer = _solver()(
        claim=PrivacyClaim(epsilon=epsilon, delta=delta, steps=steps, sampling_rate=sampling_rate),
        true_epsilon=true_epsilon,
        present=present,
        absent=absent,
        power=power,
        confidence=confidence,
        gate_error=gate_error,
    )
    say(printable(str(answer)))


def _solver() -> Any:
    """`askgauss.power.solve`, which not every version has."""
    try:
        return importlib.import_module("askgauss.power").solve
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "This askgauss has no power analysis. Simulate instead: askgauss selftest with your "
            "own --present, --absent, --steps and --sampling-rate shows what would be caught."
        ) from error
