"""What a monitor says of the cause of an alarm: since when, how much, and what it comes to."""

from __future__ import annotations

import math

from askgauss import accounting
from askgauss.monitor.eprocess import PARTS, EProcesses, Tally
from askgauss.sampling import Scheme

__all__ = ["find_onset", "implied_epsilon", "summary"]


def find_onset(cause: str, bets: EProcesses, tally: Tally, rate: float | None) -> None:
    """Let the tally's latest steps begin where the fault seems to have begun."""

    def weigh(freedom: float, square: float, signal: tuple[float, float, float]) -> float:
        count, total, opportunities = signal
        if cause == "contribution":
            return (total - count) / math.sqrt(max(count, 1.0))
        if cause == "sampling rate" and rate is not None:
            return (count - rate * opportunities) / math.sqrt(max(opportunities, 1.0))
        if cause != "noise" or not square < freedom:
            return 0.0
        # The likelihood of the noise that was measured, over that of what is declared.
        share = max(square / freedom, 1e-300)
        return -0.5 * freedom * (math.log(share) + 1.0 - share)

    tally.narrow(weigh, bets.weakest_tensor() if cause == "noise" else None)


def summary(
    cause: str, bets: EProcesses, tally: Tally, noise: float | None, rate: float | None
) -> str:
    """What was measured of the cause since its onset, in a sentence."""
    if cause == "noise":
        tensor = bets.weakest_tensor()
        where = "" if tensor is None else f" in tensor {tensor}"
        ratio = tally.noise(tensor, lately=True)
        shown = "" if noise is None else f" ({ratio * noise:.4g} for {noise:.4g})"
        return f"The noise{where} is {ratio:.3g} times what is declared{shown}."
    if cause == "contribution":
        deviation = tally.noise(lately=True) * (1.0 if noise is None else noise)
        added = tally.contribution(deviation, lately=True)
        return f"A planted canary adds {added:.3g} clip norms, where 1 is the most."
    if cause == "sampling rate":
        return (
            f"Canaries are sampled at rate {tally.rate(lately=True):.4g}, where "
            f"{rate:.4g} is claimed."
        )
    step, correlation = bets.likeness()
    return f"The noise correlates by {correlation:+.3f} with that of step {step}."


def implied_epsilon(
    cause: str,
    *,
    bets: EProcesses | None,
    tally: Tally,
    declared: float | None,
    rate: float | None,
    scheme: Scheme | None,
    steps: int,
    planned: int | None,
    delta: float,
) -> float | None:
    """Epsilon at the planned end: what was measured so far, and from here on as since the onset.

    Args:
        cause: The cause of the alarm.
        bets: The e-processes, once there are any.
        tally: What was measured.
        declared: The noise multiplier, where all steps have declared the same.
        rate: The claimed sampling rate, where known.
        scheme: How batches are drawn, where that is not Poisson sampling.
        steps: Steps so far.
        planned: Steps at the end, where known.
        delta: Where epsilon is stated.
    """
    if cause == "repeated noise" and bets is not None:
        # The same noise twice cancels out of a difference.
        return math.inf if abs(bets.likeness()[1]) > 0.99 else None
    unknown = delta == 0.0 or (rate is None and scheme is None)
    if cause not in PARTS or unknown or bets is None or declared is None:
        return None
    tensor = bets.weakest_tensor() if cause == "noise" else None
    history = []
    for count, lately in ((steps, False), (max((planned or steps) - steps, 0), True)):
        noise = declared * tally.noise(tensor, lately=lately)
        if cause == "contribution":
            noise /= max(tally.contribution(noise, lately=lately), 1.0)
        if cause == "sampling rate":
            noise, rate = declared, tally.rate(lately=lately)
        if count:
            history.append((noise, count))
    if rate is not None:
        segments = ((noise, min(rate, 1.0), count) for noise, count in history)
        return accounting.history_epsilon(segments, delta)
    assert scheme is not None
    return _over_a_run(scheme, history, delta)


def _over_a_run(scheme: Scheme, history: list[tuple[float, int]], delta: float) -> float:
    """Epsilon of segments of noise and steps, as if their squared signals were spread evenly."""
    steps = sum(count for _, count in history)
    if any(noise == 0.0 for noise, _ in history):
        return scheme.epsilon_lower(noise_multiplier=0.0, steps=steps, delta=delta)
    squared = sum(count / noise**2 for noise, count in history) / steps
    return scheme.epsilon_lower(noise_multiplier=squared**-0.5, steps=steps, delta=delta)
