"""Checks of federated rounds: the weight of a client, its update, and an adaptive clip norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss.checks.context import NOTICED, TOLERANCE, Context, around
from askgauss.checks.registry import (
    CLIPPING,
    NOISE_SCALE,
    SENSITIVITY,
    WEIGHTING,
    check,
    fact,
    judged,
    not_run,
)
from askgauss.checks.signal import planting
from askgauss.recording.facts import ProbeFacts, ProbeReading, RoundFacts
from askgauss.results import Consequence, Finding, Status
from askgauss.stats.rounding import digits

__all__ = ["ROUND_CHECKS", "FederatedRounds"]

_COPY = "an aggregator that can be copied: an object with __call__, or a method of one"
# Noise of four times as many clients that is this much larger was added by the clients.
_PER_CLIENT = 1.4
# A clip norm that changes less than this does not show which one the noise is scaled by.
_MOVED = 1e-6
# Standard errors that an exponent may be off the one of either norm.
_EXPLAINED = 4.0
# The least error of a probe without any noise.
_EXACT = 1e-9
# An update that is clipped in half precision may be off by this.
_HALF_PRECISION = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedRounds:
    """What was seen of federated rounds.

    Attributes:
        facts: What was seen of their clients.
        context: What was released; None where the noise correlates from round to round.
    """

    facts: RoundFacts
    context: Context | None

    @property
    def probes(self) -> ProbeFacts:
        """What copies of the aggregator answered."""
        return self.facts.probes


@check("client weight", part=WEIGHTING, decides=True, explains="contribution, honest updates")
def client_weight(rounds: FederatedRounds) -> Finding:
    """Whether a client weighs more than the noise assumes."""
    facts, context, probes = rounds.facts, rounds.context, rounds.probes
    remedy = (
        "Use the plain mean, or cap the weights and scale the noise by the largest one: the noise "
        "is scaled for clients of equal weight, and a client reports its own."
    )
    run = f"In this run the largest weight was {facts.heaviest:.3g} times the mean of its round."
    if probes.heavy_refused:
        return fact(
            False,
            f"a client that reports a million times the weight of others is refused "
            f"({probes.heavy_refused}).",
            consequence=Consequence.BREACH,
        )
    if probes.heavy is not None:
        return _probe(
            rounds,
            probes.heavy,
            f"of {probes.clients:,} clients, one that reports a million times the weight of others "
            f"adds {_in_words(probes.heavy)} to the sum",
            if_wrong=run,
            remedy=remedy,
            sees="a client with {} times its share of the weight",
        )
    estimate = None
    if context is not None and context.transcript.finite:
        estimate = planting(context)
    if context is None or estimate is None or abs(facts.reported - 1.0) < TOLERANCE:
        return not_run(f"clients that report different weights; or {_COPY}")
    mean, error, _ = estimate
    return judged(
        float(ndtr(-(mean - 1.0) / error)),
        f"a canary client adds {mean:.4g} clip norms; with reported weights it would be "
        f"{facts.reported:.4g}, with equal ones 1.",
        if_wrong=run,
        consequence=Consequence.LOOSENS,
        breach=context.breach(signal=mean - 4.0 * error),
        measured=mean,
        interval=around(mean, error),
        claimed=1.0,
        remedy=remedy,
        tolerable=mean - 1.0 < TOLERANCE,
    )


def _in_words(reading: ProbeReading) -> str:
    return f"{reading.added:.4g} clip norms (± {2 * reading.error:.2g})"


def _probe(
    rounds: FederatedRounds,
    reading: ProbeReading,
    said: str,
    *,
    remedy: str,
    sees: str,
    if_wrong: str = "",
    clients: int = 1,
    tolerance: float = TOLERANCE,
) -> Finding:
    """Whether a client of a probe adds more than the noise of the same release covers.

    A sum that is scaled up together with its noise is as private as before: what an aggregator
    divides by, such as the number of clients that answered, may differ from what was declared.
    """
    claimed = None if rounds.context is None else rounds.context.claimed_noise
    assumed = 0.0 if claimed is None or not claimed.size else float(claimed[0])
    allowed = max(1.0, reading.noise / assumed) if assumed > 0.0 else 1.0
    error = max(reading.error, _EXACT)
    if allowed > 1.0:
        error = math.hypot(error, allowed / math.sqrt(2.0 * max(reading.values, 1)))
    # It is rounded to a grid as wide as its error: its least value is compared with the limit.
    off = (reading.added - allowed) / error - 0.5
    covered = f"The noise covers {allowed:.3g}."
    return judged(
        min(1.0, clients * float(ndtr(-off))),
        f"{said}; the noise covers {allowed:.3g}." if allowed > 1.0 + TOLERANCE else f"{said}.",
        if_wrong=f"{covered} {if_wrong}".strip(),
        consequence=Consequence.BREACH,
        measured=reading.added,
        interval=around(reading.added, reading.error),
        claimed=1.0,
        remedy=remedy,
        tolerable=reading.added - allowed < tolerance,
        sees=sees.format(f"{1.0 + max(NOTICED * error, tolerance):.3g}"),
    )


@check("update norms", part=CLIPPING, explains=f"{SENSITIVITY}, honest updates, nan update")
def update_norms(rounds: FederatedRounds) -> Finding:
    """Whether updates are clipped, near the clip norm and far above it."""
    probes = rounds.probes
    remedy = (
        "Clip every update by its norm over all arrays together, in float32 or more: "
        "update * min(1, clip_norm / norm), and drop updates whose norm is not finite."
    )
    if probes.overflowed:
        return fact(
            True,
            f"an update of {probes.overflowed} makes the release infinite or nan: one client "
            "determines it.",
            consequence=Consequence.BREACH,
            remedy=remedy,
        )
    if probes.clipped is None:
        return not_run(probes.unchecked or _COPY)
    return _probe(
        rounds,
        probes.clipped,
        f"of {probes.clipped_tried:,} kinds of updates above the clip norm, one of "
        f"{probes.clipped_size:,.4g} clip norms {probes.clipped_way} adds most, "
        f"{_in_words(probes.clipped)}",
        remedy=remedy,
        sees="an update that adds {} clip norms",
        tolerance=_HALF_PRECISION,
    )


@check(
    "single clients",
    part=CLIPPING,
    explains=f"{SENSITIVITY}, update norms, honest updates, client weight",
)
def single_clients(rounds: FederatedRounds) -> Finding:
    """Whether any client counts more than once."""
    probes = rounds.probes
    if probes.counted is None:
        return not_run(probes.unchecked or _COPY)
    return _probe(
        rounds,
        probes.counted,
        f"of {probes.clients:,} clients that send the same norm, the one that counts most adds "
        f"{_in_words(probes.counted)}",
        remedy="Look for an update that is also the start of the sum, is sent again, or is taken "
        "twice from a queue: every client's update must be added once.",
        sees="a client that counts {} times",
        clients=max(probes.clients, 1),
    )


@check(
    "honest updates",
    part=CLIPPING,
    explains="noise scale, noise by step, common noise, noise by coordinate, whole-run correlation",
    reveals_individual=True,
)
def honest_updates(rounds: FederatedRounds) -> Finding | None:
    """Whether honest clients add more than the clip norm, in the rounds themselves."""
    honest, context = rounds.facts.honest, rounds.context
    if context is None:
        return None
    if honest is None or not honest.error > 0.0:
        return not_run(
            "rounds with fresh noise, and honest updates that are subtracted (background=True)"
        )
    added, error = honest.added, honest.error
    least = added - 3.0 * error
    return judged(
        # The largest of many groups, on a grid as wide as its error.
        min(1.0, honest.groups * float(ndtr(0.5 - (added - 1.0) / error))),
        f"of {honest.groups:,} groups of honest clients, {honest.group} add most along their own "
        f"updates: {added:.3g} clip norms per client (± {2.0 * error:.2g}).",
        consequence=Consequence.INFORMS,
        breach=context.breach(signal=least) if least > 1.0 else (False, ""),
        measured=added,
        interval=around(added, error),
        claimed=1.0,
        remedy="Check that every update is clipped over all arrays together, and added once. For "
        "an aggregator that combines clipped updates in another way, set background=False.",
        tolerable=added - 1.0 < TOLERANCE,
        sees=f"honest clients that add {1.0 + max(NOTICED * error, TOLERANCE):.3g} clip norms",
    )


@check("nan update", part=CLIPPING)
def nan_update(rounds: FederatedRounds) -> Finding:
    """Whether a nan in one update appears in the release; refusing it is right."""
    probes = rounds.probes
    return _odd_update("an update with one nan", probes.with_nan, probes, raises=False)


@check("zero update", part=CLIPPING)
def zero_update(rounds: FederatedRounds) -> Finding:
    """Whether an update of zeros appears in the release, or ends the round."""
    return _odd_update("an update of zeros", rounds.probes.zero, rounds.probes, raises=True)


def _odd_update(what: str, outcome: str, probes: ProbeFacts, *, raises: bool) -> Finding:
    """Whether one degenerate update appears in the release, or stops the round."""
    if not outcome:
        return not_run(probes.unchecked or _COPY)
    if outcome == "finite":
        said = f"{what} left the release finite."
    elif outcome == "nan":
        said = f"{what} makes the whole release nan: one client determines it despite the noise."
    else:
        said = f"{what} raises {outcome}."
    passes = outcome == "nan"
    return fact(
        passes or (raises and outcome != "finite"),
        said,
        consequence=Consequence.BREACH if passes else Consequence.INFORMS,
        remedy="Drop or zero what is not finite before clipping, and divide by "
        "max(norm, clip_norm), which is never zero.",
    )


@check("noise at the server")
def noise_at_the_server(rounds: FederatedRounds) -> Finding:
    """Whether the server adds the noise once, however many clients answer."""
    probes = rounds.probes
    if probes.spread is None:
        return not_run(probes.unchecked or f"noise, and {_COPY}")
    grows = probes.spread - 4.0 * probes.spread_error > _PER_CLIENT
    said = f"with four times as many clients the sum has {probes.spread:.3g} times the noise"
    return fact(
        grows,
        f"{said}: every client adds noise." if grows else f"{said}: it is added once.",
        consequence=Consequence.INFORMS,
        measured=probes.spread,
        claimed=1.0,
        remedy="Claim the noise for the fewest clients that may answer a round: noise that clients "
        "add is enough only while as many stay as it was split over.",
    )


@check("clip norm direction", part=CLIPPING)
def clip_norm_direction(rounds: FederatedRounds) -> Finding | None:
    """Whether the clip norm grows where updates are above it.

    Either norm alone may reveal the noise on a round's count; their ratio does not.
    """
    if not rounds.facts.adaptive:
        return None
    probes = rounds.probes
    above, below = probes.norm_if_above, probes.norm_if_below
    if above is None or below is None:
        return not_run(probes.unchecked or _COPY)
    return fact(
        above < below,
        f"with all updates above the clip norm, the next clip norm is {digits(above / below):g} "
        "times that with all updates below it.",
        consequence=Consequence.INFORMS,
        measured=digits(above / below),
        remedy="Count the updates that are not above the norm: the bit is inverted, and the norm "
        "moves away from its target quantile.",
    )


@check("noise norm", part=NOISE_SCALE, explains="noise scale, noise by step, noise drift")
def noise_norm(rounds: FederatedRounds) -> Finding | None:
    """Which norm the noise is scaled by: the one updates were clipped to, or the next."""
    facts, context = rounds.facts, rounds.context
    if not facts.adaptive or context is None or not context.transcript.finite:
        return None
    ratios = np.log(np.asarray(facts.next_norms))
    if not context.known or ratios.size != context.transcript.number_of_steps:
        return not_run("a known background, and the clip norm after every round")
    squares, counts = context.squares / context.schedule**2, context.others
    if not (squares > 0.0).all():
        return not_run("noise in every round")
    fit = _exponent(ratios, 0.5 * np.log(squares / counts), 2.0 * counts, context.claimed_noise)
    if fit is None:
        return not_run("a clip norm that changes")
    slope, error = fit
    typical = float(np.exp(ratios.mean()))
    return judged(
        2.0 * float(ndtr(-abs(slope) / error)),
        f"the noise scales with the next clip norm to the power {slope:.3f} (± {2.0 * error:.2g}): "
        "0 if it uses the norm that updates are clipped to, 1 if it uses the updated one.",
        if_wrong=f"The updated norm is {typical:.3f} times the one before it, on average.",
        consequence=Consequence.BREACH if typical < 1.0 - TOLERANCE else Consequence.INFORMS,
        measured=slope,
        interval=around(slope, error),
        claimed=0.0,
        remedy="Scale the noise by the norm that this round's updates were clipped to, and update "
        "the norm afterwards.",
    )


def _exponent(
    ratios: NDArray[np.float64],
    scales: NDArray[np.float64],
    weights: NDArray[np.float64],
    claimed: NDArray[np.float64] | None,
) -> tuple[float, float] | None:
    """The exponent with which the noise follows the next norm, and its standard error.

    Relative to the claimed noise where that explains all of it, with either norm; else from round
    to round, whatever the noise is.
    """
    if claimed is not None and (claimed > 0.0).all() and float(ratios @ ratios) > _MOVED:
        spread = float(weights @ ratios**2)
        slope = float((weights * ratios) @ (scales - np.log(claimed))) / spread
        error = 1.0 / math.sqrt(spread)
        if min(abs(slope), abs(slope - 1.0)) < _EXPLAINED * error:
            return slope, error
    centred = ratios - float(weights @ ratios) / float(weights.sum())
    if float(centred @ centred) < _MOVED:
        return None
    spread = float(weights @ centred**2)
    return float((weights * centred) @ scales) / spread, 1.0 / math.sqrt(spread)


@check("rounds without a release")
def rounds_without_a_release(rounds: FederatedRounds) -> Finding | None:
    """How many rounds released nothing."""
    unreleased = rounds.facts.unreleased
    if not unreleased:
        return None
    return Finding(
        check="",
        status=Status.INFO,
        summary=f"{unreleased:,} rounds released nothing and are not audited.",
    )


ROUND_CHECKS = (
    client_weight,
    update_norms,
    single_clients,
    honest_updates,
    nan_update,
    zero_update,
    noise_at_the_server,
    clip_norm_direction,
    noise_norm,
    rounds_without_a_release,
)
"""Checks of federated rounds."""
