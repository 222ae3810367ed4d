"""Whether the noise of a linear mechanism covers what one record moves: as declared, as found."""

from __future__ import annotations

import math

import numpy as np

from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE
from askgauss.checks.correlated_run import LinearRun
from askgauss.checks.findings import fact, judged, not_run
from askgauss.checks.rounding_to_error import coarse_spread
from askgauss.checks.tails import Spread, oddest_variance
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.recording.facts import RoundFacts
from askgauss.results import Consequence, Finding
from askgauss.stats import gaussian

__all__ = ["covered_sensitivity", "leaf_noise", "participation"]


def covered_sensitivity(run: LinearRun) -> Finding:
    """How far one record moves what noise is added to, and how far the claim lets it.

    Exact, and never more than the mechanism's sensitivity: it is that of the record whose leaves
    show most, among all of them or among the canaries'. A claim of epsilon at noise of one row is
    one of sensitivity: that of the Gaussian mechanism with both.
    """
    name, transcript, claim = "sensitivity", run.transcript, run.claim
    if claim is None or not run.claimed or not 0.0 < claim.delta < 1.0:
        return not_run(name, "a claim, and the noise_multiplier that was accounted for")
    if claim.scheme is not None and claim.scheme.share < 1.0:
        return not_run(name, "a claim without amplification by sampling")
    noise = run.elsewhere()
    covered = noise * float(gaussian.gdp_mu(float(claim.epsilon), float(claim.delta)))
    if claim.adjacency == "replace":  # a record that turns into its opposite moves twice as far
        covered *= 0.5
    moved = transcript.largest_information
    strategy = isinstance(transcript.plan, StrategyPlan)
    moves = f"one record moves {'the rows' if strategy else 'the nodes'} by {moved:.4g} clip norms"
    if strategy and transcript.plan.participations == 1:
        moves += ", the norm of the strategy's longest column"
    broken, implied = run.breach(moved / noise)
    return fact(
        name,
        broken,
        f"{moves}; epsilon {claim.epsilon:g} with noise {noise:.4g} covers {covered:.4g}.{implied}",
        consequence=Consequence.BREACH,
        measured=moved,
        claimed=covered,
        remedy="What one record moves is a column, not a row: scale the noise by the norm of the "
        "longest one, or the strategy to columns of norm 1."
        if strategy
        else "Account for every node that the leaves of one record are in.",
        sees=f"a record that moves {(1.0 + TOLERANCE) * covered:.4g} clip norms",
    )


def leaf_noise(run: LinearRun) -> Finding:
    """Whether a record meets the noise that the declared strategy says, step by step.

    Noise of another strategy hangs together otherwise once it is mixed by the declared one, and
    protects some step less: its covariance, which absent canaries show, says how much.
    """
    name, transcript, claimed = "noise by entry", run.transcript, run.claimed
    squares, gain = transcript.leaf_square, transcript.leaf_gain
    if squares is None or gain is None or not claimed:
        return not_run(
            name,
            "a strategy whose noise_multiplier is claimed, a known background, and twice as many "
            "kept absent canaries as steps",
        )
    freedom = np.full(squares.size, float(transcript.leaf_freedom))
    worst, p_value = oddest_variance(squares, freedom, claimed, less=True)
    spread = Spread(float(freedom[worst]), float(squares[worst]))
    ratio = spread.scale / claimed
    # One step's noise is told no finer than chance moves it.
    told, moved = coarse_spread(spread), math.sqrt(float(gain[worst]))
    # The oddest of many: its interval is to hold for each of them.
    exact, interval = (
        part.interval(INTERVAL_ERROR / squares.size) if part.square else (0.0, 0.0)
        for part in (spread, told)
    )
    broken, _ = run.breach(moved / exact[1] if exact[1] else math.inf)
    _, implied = run.breach(moved / interval[1] if interval[1] else math.inf)
    return judged(
        name,
        p_value,
        f"a record that enters step {worst + 1} of {squares.size:,} meets "
        f"{told.scale / claimed:.3f} times "
        "the noise that the declared strategy gives it.",
        if_fine=", as the oddest of so many may by chance.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.INVALIDATES,
        measured=told.scale,
        interval=interval,
        claimed=claimed,
        remedy="The noise is not that of the declared strategy: compare the matrix that the noise "
        "is made with, row by row and column by column.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
    )


def participation(run: LinearRun, rounds: RoundFacts) -> Finding:
    """Whether clients took part more often, or sooner again, than was accounted for."""
    name, seen = "participation", rounds.participation
    if seen is None or seen.limit is None:
        return not_run(name, "the names of the clients of every round: participants=")
    often, soon = seen.most > seen.limit, 0 < seen.closest < seen.separation
    again = f", the closest {seen.closest:,} apart" if seen.closest else ""
    broken, implied = False, ""
    if run.claimed and (often or soon):
        broken, implied = run.breach(seen.moved / run.elsewhere())
    said = "no client took part more often, or sooner again, than that"
    if often or soon:
        said = f"the most frequent client took part in {seen.most:,} rounds{again}"
    return fact(
        name,
        often or soon,
        f"{seen.limit:,} rounds are accounted for, at least {seen.separation:,} apart; "
        f"{said}.{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        # How often somebody took part who may is nobody's business.
        measured=float(seen.most) if often or soon else None,
        claimed=float(seen.limit),
        remedy="Let the server keep when it last asked each client, and ask it again only as "
        "accounted; or account for more participations.",
    )
