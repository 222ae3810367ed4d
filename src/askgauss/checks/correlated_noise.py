"""Checks of mechanisms with correlated noise: every node's or row's noise, and none of it twice.

Observations are decorrelated by node, by level and by coordinate: a single node without its noise
gives a record away, however well all others are protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, gammainc, ndtr, stdtr

from askgauss.checks.context import (
    INTERVAL_ERROR,
    KNOWN_BACKGROUND,
    TOLERANCE,
    Context,
    CorrelatedRun,
    around,
)
from askgauss.checks.correlation import (
    FEWEST_TO_COMPARE,
    LARGEST,
    exactly_repeated,
    repeated_noise,
    shared_noise,
    used_twice,
)
from askgauss.checks.correlation_tests import node_correlations, same_noise
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.noise import (
    gaussian_shape,
    noise_by_coordinate,
    noise_scale,
    noise_shape,
    values_without_noise,
)
from askgauss.checks.noise_reuse import ComparedNoise, noise_reused, repeated_exactly
from askgauss.checks.registry import ACCOUNTANT, NOISE_FRESHNESS, NOISE_SCALE, SAMPLER, check
from askgauss.checks.signal import contribution, counted_steps, step_count
from askgauss.checks.tails import (
    Spread,
    equal_variances_p_value,
    oddest_variance,
    ratio_p_value,
    sums_of_others,
)
from askgauss.exceptions import NotDefinedError
from askgauss.mechanisms.plans import StrategyPlan, TreePlan
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.stats import gaussian
from askgauss.stats.rounding import significant

__all__ = [
    "CORRELATED_NOISE_CHECKS",
    "NOISE_ROW_CHECKS",
    "participation",
    "sensitivity",
    "steps_of_plan",
]

_APART = "nodes, or prefixes of trees that are not filled up"
_FEWEST_PIECES = 10
_FEWEST_FOR_SHAPE = 16
_FEWEST_PLANTINGS = 10
# Parts of the run in which what canaries add is also looked at by itself.
_PARTS = 8
# Bartlett's test is one of large samples.
_FEWEST_TO_POOL = 20
# Noise below this share of what is claimed is none: what is left are rounding errors.
_SILENCE = 1e-5
# About the error that is left for one check when all of them share that of the gate.
_SHARE = 5e-5
# Standard errors that are detected at that error, two-sided, with probability .8.
_FAR = 4.06 + 0.84
# What to add to the oddest of very many, which is never near what is expected.
_ODDEST = ", as the oddest of so many may by chance."


@step_count.variant
def steps_of_plan(run: CorrelatedRun) -> Finding:
    """Whether as many steps were released as the strategy was accounted for."""
    transcript, claim = run.transcript, run.claim
    accounted = transcript.plan.steps if claim is None else claim.steps or transcript.plan.steps
    missing = int(np.count_nonzero(transcript.information == 0.0))

    def breach(_: int) -> tuple[bool, str]:
        return (
            run.breach(transcript.largest_information / run.claimed) if run.claimed else (False, "")
        )

    return counted_steps(
        taken=transcript.number_of_steps,
        accounted=accounted,
        counted=accounted,
        breach=breach,
        note=f" {missing:,} canaries never entered and have no score." if missing else "",
        remedy="Account for every leaf of the tree.",
    )


@check("sensitivity", part=ACCOUNTANT)
def sensitivity(run: CorrelatedRun) -> Finding:
    """How far one record moves what noise is added to, and how far the claim lets it.

    Exact, and never more than the mechanism's sensitivity: it is that of the record whose leaves
    show most, among all of them or among the canaries'. A claim of epsilon at noise of one row is
    one of sensitivity: that of the Gaussian mechanism with both.
    """
    transcript, claim = run.transcript, run.claim
    if claim is None or not run.claimed or not 0.0 < claim.delta < 1.0:
        return not_run("a claim, and the noise_multiplier that was accounted for")
    if claim.scheme is not None and claim.scheme.share < 1.0:
        return not_run("a claim without amplification by sampling")
    noise = run.most_noise()
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


@check("participation", part=SAMPLER)
def participation(run: CorrelatedRun) -> Finding | None:
    """Whether clients took part more often, or sooner again, than was accounted for."""
    rounds = run.transcript.facts.rounds
    if rounds is None:
        return None
    seen = rounds.participation
    if seen is None or seen.limit is None:
        return not_run("the names of the clients of every round: participants=")
    often, soon = seen.most > seen.limit, 0 < seen.closest < seen.separation
    again = f", the closest {seen.closest:,} apart" if seen.closest else ""
    broken, implied = False, ""
    if run.claimed and (often or soon):
        broken, implied = run.breach(seen.moved / run.most_noise())
    said = "no client took part more often, or sooner again, than that"
    if often or soon:
        said = f"the most frequent client took part in {seen.most:,} rounds{again}"
    return fact(
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


@check("nodes without noise", part=NOISE_SCALE)
def nodes_without_noise(run: CorrelatedRun) -> Finding:
    square = run.transcript.pieces.square
    most = run.absent * (_SILENCE * (run.claimed or 1.0)) ** 2
    # A handful of canaries may all read near zero by chance; exact zeros they may not.
    silent = square <= (most if run.absent >= _FEWEST_PIECES else 0.0)
    count = int(np.count_nonzero(silent))
    if not count and not run.known:
        return not_run(KNOWN_BACKGROUND)
    first = f", the first of them {_place(run, int(np.argmax(silent)))}" if count else ""
    return fact(
        count > 0,
        f"{count:,} of {square.size:,} nodes were released without noise{first}."
        if count
        else "every node was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(count),
        claimed=0.0,
        remedy="A record is in one node of every level: each of them needs noise, left and right.",
    )


@values_without_noise.variant
def _values_without_noise(run: CorrelatedRun) -> Finding:
    """Whether single values have no noise: some coordinates, in some nodes."""
    values = np.abs(run.transcript.kept_values).ravel()
    if not run.known or not values.size:
        return not_run(KNOWN_BACKGROUND if values.size else "absent canaries that are kept")
    unit = run.claimed or run.noise.scale
    silent = int(np.count_nonzero(values <= _SILENCE * unit))
    heard = values[values > _SILENCE * unit]
    # Noise on a lattice meets zero as often as the numbers next to it.
    _, repeats = np.unique(heard, return_counts=True)
    on_lattice = silent > 0 and int(repeats.max(initial=0)) > max(2, silent // 8)
    if on_lattice:
        return not_run("noise that is not drawn on a lattice")
    # Twice the density at zero, for the two sides: many more than chance has near it.
    expected = values.size * _SILENCE * math.sqrt(2.0 / math.pi)
    return judged(
        _at_least(silent, expected),
        f"{silent:,} of {values.size:,} values have no noise, where chance gives {expected:.2g}.",
        consequence=Consequence.BREACH,
        measured=float(silent),
        claimed=0.0,
        remedy="Every coordinate of every node needs noise: look for entries that are left out.",
        sees=f"no noise in {_visible_count(expected):,} of {values.size:,} values",
    )


def _at_least(count: int, expected: float) -> float:
    """P[a Poisson number of this mean is at least so large]."""
    return float(gammainc(count, expected)) if count else 1.0


def _visible_count(expected: float) -> int:
    count = 1
    while _at_least(count, expected) > _SHARE:
        count += 1
    return count


def _place(run: CorrelatedRun, row: int) -> str:
    pieces = run.transcript.pieces
    if isinstance(run.transcript.plan, StrategyPlan):
        return f"row {pieces.index[row]} of the strategy"
    return f"tree {pieces.tree[row]}, level {pieces.level[row]}, index {pieces.index[row]}"


def _compared(run: CorrelatedRun) -> ComparedNoise | None:
    """The noise of nodes that was compared by content; None where none was."""
    reuse, last = run.transcript.facts.reuse, run.transcript.pieces.tree.size - 1
    if reuse is None:
        return None
    return ComparedNoise(reuse=reuse, place=lambda found: _place(run, min(found[0], last)))


@noise_reused.variant
def _reused(run: CorrelatedRun) -> Finding | None:
    """Whether any noise of a node was used again."""
    compared = _compared(run)
    found = None if compared is None else noise_reused(compared)
    plan = run.transcript.plan
    by_prefix = isinstance(plan, TreePlan) and plan.release != "nodes"
    if found is not None and by_prefix and found.status is Status.PASS:
        # A node's noise is only in weighted sums with others': by itself it is not compared.
        return not_run("released nodes: sums of several hide where each is used")
    return found


@repeated_noise.variant
def _repeated_exactly(run: CorrelatedRun) -> Finding | None:
    compared = _compared(run)
    return None if compared is None else exactly_repeated(compared)


@repeated_noise.variant
def _repeated(run: CorrelatedRun) -> Finding | None:
    """Whether the noise of one node comes back in another."""
    rows = run.transcript.kept_values
    if repeated_exactly(run.transcript.facts.reuse):
        return None
    if missing := _cannot_compare(run):
        return not_run(missing)
    return used_twice(
        rows,
        "two nodes",
        lambda first, second: (
            f"noise of two nodes ({_place(run, first)}; {_place(run, second)}) correlates"
        ),
        errors=1.0,
        claimed=0.0,
        remedy="Every node needs noise of its own: split the random key, and never seed it again.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@shared_noise.variant
def _shared(run: CorrelatedRun) -> Finding:
    """Whether two coordinates get the same noise."""
    rows = run.transcript.kept_values
    if rows.shape[0] < _FEWEST_PIECES or rows.shape[1] < 2:
        return not_run(f"{_FEWEST_PIECES} nodes, and two absent canaries that are kept")
    if missing := _dependent(run):
        return not_run(missing)
    return used_twice(
        np.ascontiguousarray(rows.T),
        "two coordinates",
        lambda first, second: "two coordinates correlate",
        over=" over all nodes",
        claimed=0.0,
        remedy="Every coordinate needs noise of its own: split the random key between tensors.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _dependent(run: CorrelatedRun) -> str | None:
    """What is missing to take the noises of nodes for independent."""
    if not run.known:
        return KNOWN_BACKGROUND
    return None if run.transcript.plan.independent else _APART


def _cannot_compare(run: CorrelatedRun) -> str | None:
    """What is missing to compare the noises of nodes."""
    rows = run.transcript.kept_values
    if rows.shape[0] < 2 or rows.shape[1] < FEWEST_TO_COMPARE:
        return f"two nodes, and {FEWEST_TO_COMPARE} absent canaries that are kept"
    return _dependent(run)


@check("noise of related nodes", part=NOISE_FRESHNESS, after_resume=True)
def noise_of_related_nodes(run: CorrelatedRun) -> Finding:
    """Whether nodes that are near each other, or all of them together, have noise in common."""
    transcript = run.transcript
    if missing := _cannot_compare(run):
        return not_run(missing)
    ties = node_correlations(transcript.pieces, transcript.kept_values)
    if not ties:
        return not_run("nodes that are related")
    worst = min(ties, key=lambda tie: tie.p_value)
    return judged(
        min(1.0, len(ties) * worst.p_value),
        f"the noise of {worst.between} correlates by {worst.correlation:+.4f}.",
        if_fine=LARGEST,
        consequence=same_noise(worst.correlation),
        measured=worst.correlation,
        claimed=0.0,
        remedy="The noise of a node must not depend on that of any other: draw it afresh.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@check(
    "noise after restarts",
    part=NOISE_FRESHNESS,
    explains="repeated noise, noise of related nodes",
    after_resume=True,
)
def noise_after_restarts(run: CorrelatedRun) -> Finding:
    transcript = run.transcript
    if not transcript.plan.independent:
        return not_run(_APART)
    try:
        correlation, pairs = transcript.restart_correlation()
    except NotDefinedError:
        return not_run("a tree that is restarted")
    if not run.known:
        return not_run(KNOWN_BACKGROUND)
    return judged(
        2.0 * float(ndtr(-abs(correlation) * math.sqrt(pairs))),
        f"a node's noise correlates by {correlation:+.3f} with that of the tree before.",
        if_fine=", as it may by chance.",
        consequence=Consequence.BREACH if abs(correlation) > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="A restarted tree needs fresh noise: do not seed its generator again.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@check(
    "rows without noise",
    part=NOISE_SCALE,
    explains="noise by row, noise by step, noise extremes, noise scale, noise shape, values "
    "without noise",
)
def rows_without_noise(context: Context) -> Finding | None:
    """Whether every row of the strategy was released with noise."""
    rows = context.facts.noise_rows
    if rows is None:
        return None
    return fact(
        rows.silent > 0,
        f"{rows.silent:,} of {rows.rows:,} rows of the strategy were released without noise, the "
        f"first of them row {rows.first_silent:,}."
        if rows.silent
        else f"all {rows.rows:,} rows of the strategy were released with noise.",
        consequence=Consequence.BREACH,
        measured=float(rows.silent),
        claimed=0.0,
        remedy="Draw noise for every row of the strategy before it is mixed into a step.",
    )


@check(
    "noise by row",
    part=NOISE_SCALE,
    explains="noise by step, noise scale, noise extremes, noise shape",
)
def noise_by_row(context: Context) -> Finding | None:
    """Whether any row of the strategy has more or less noise than the others."""
    rows = context.facts.noise_rows
    if rows is None:
        return None
    if rows.rows < 2 or rows.absent < _FEWEST_PIECES or not rows.least_square > 0.0:
        return not_run(f"two rows with noise, at {_FEWEST_PIECES} absent canaries or more")
    found = []
    for row, square in ((rows.least, rows.least_square), (rows.most, rows.most_square)):
        others = Spread(float((rows.rows - 1) * rows.absent), max(rows.square - square, 0.0))
        one = Spread(float(rows.absent), square)
        if others.square == 0.0:
            return not_run("noise in two rows")
        ratio = (one.scale / others.scale) ** 2
        found.append((ratio_p_value(ratio, one.freedom, others.freedom), row, one, others))
    p_value, row, one, others = min(found, key=lambda item: item[0])
    relative = one.rounded().scale / others.rounded().scale
    critical = chdtri(one.freedom, 1.0 - 0.5 * _SHARE / rows.rows)
    visible = 1.0 - math.sqrt(critical / chdtri(one.freedom, 0.2))
    return judged(
        min(1.0, rows.rows * p_value),
        f"row {row:,} of the strategy has about {relative:.3g} times the noise of the others.",
        if_fine=_ODDEST,
        consequence=Consequence.INVALIDATES if relative < 1.0 else Consequence.LOOSENS,
        measured=relative,
        claimed=1.0,
        remedy="Every row of the strategy must get noise of the same scale.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"noise {visible:.0%} below the claim in one row",
    )


@check("noise by entry", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_entry(run: CorrelatedRun) -> Finding:
    """Whether a record meets the noise that the declared strategy says, step by step.

    Noise of another strategy hangs together otherwise once it is mixed by the declared one, and
    protects some step less: its covariance, which absent canaries show, says how much.
    """
    transcript, claimed = run.transcript, run.claimed
    squares, gain = transcript.leaf_square, transcript.leaf_gain
    if squares is None or gain is None or not claimed:
        return not_run(
            "a strategy whose noise_multiplier is claimed, a known background, and twice as many "
            "kept absent canaries as steps"
        )
    freedom = np.full(squares.size, float(transcript.leaf_freedom))
    worst, p_value = oddest_variance(squares, freedom, claimed, less=True)
    spread = Spread(float(freedom[worst]), float(squares[worst]))
    ratio = spread.scale / claimed
    rounded, moved = spread.rounded(), math.sqrt(float(gain[worst]))
    # The oddest of many: its interval is to hold for each of them.
    exact, interval = (
        part.interval(INTERVAL_ERROR / squares.size) if part.square else (0.0, 0.0)
        for part in (spread, rounded)
    )
    broken, _ = run.breach(moved / exact[1] if exact[1] else math.inf)
    _, implied = run.breach(moved / interval[1] if interval[1] else math.inf)
    return judged(
        p_value,
        f"a record that enters step {worst + 1} of {squares.size:,} meets "
        f"{rounded.scale / claimed:.3f} times "
        "the noise that the declared strategy gives it.",
        if_fine=_ODDEST,
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.INVALIDATES,
        measured=rounded.scale,
        interval=interval,
        claimed=claimed,
        remedy="The noise is not that of the declared strategy: compare the matrix that the noise "
        "is made with, row by row and column by column.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
    )


@check("noise by node", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_node(run: CorrelatedRun) -> Finding:
    """Every node's noise: one that lacks it is enough to give a record away."""
    pieces = run.transcript.pieces
    return _by_group(
        run,
        pieces.square,
        np.full(pieces.square.size, float(run.absent)),
        where=lambda worst: f"node ({_place(run, worst)})",
        breach=run.breach_of_piece,
        one="one node",
    )


@check("noise by level", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_level(run: CorrelatedRun) -> Finding:
    """The noise of every level: a level counts whatever its nodes are."""
    pieces = run.transcript.pieces
    levels, owner = np.unique(pieces.level, return_inverse=True)
    if not run.transcript.plan.independent or levels.size < 2:
        return not_run("independent noise in the nodes of two levels")

    def breach(worst: int, scale: float) -> tuple[bool, str]:
        here = np.flatnonzero(owner == worst)
        gains = np.zeros(here.size) if pieces.gain is None else pieces.gain[here]
        return run.breach_of_piece(int(here[np.argmax(gains)]), scale)

    return _by_group(
        run,
        np.bincount(owner, pieces.square).astype(np.float64),
        run.absent * np.bincount(owner).astype(np.float64),
        where=lambda worst: f"level {int(levels[worst])}",
        breach=breach,
        one="one level",
    )


@noise_by_coordinate.variant
def _by_coordinate(run: CorrelatedRun) -> Finding:
    """The noise of every coordinate, over all nodes: present canaries' too, less what they add."""
    transcript = run.transcript
    if transcript.noise_square is None:
        return not_run(_APART)
    if not run.known:
        return not_run(KNOWN_BACKGROUND)
    count = transcript.pieces.square.size
    return _by_group(
        run,
        transcript.noise_square,
        np.full(transcript.member.size, float(count)),
        where=lambda _: f"the oddest of {transcript.member.size:,} coordinates",
        breach=lambda _, scale: run.breach(
            transcript.largest_information / scale if scale > 0.0 else math.inf
        ),
        one="one coordinate",
        which=lambda worst: f"It is that of canary {worst}.",
    )


def _by_group(
    run: CorrelatedRun,
    square: NDArray[np.float64],
    freedom: NDArray[np.float64],
    *,
    where: Callable[[int], str],
    breach: Callable[[int, float], tuple[bool, str]],
    one: str,
    which: Callable[[int], str] = lambda _: "",
) -> Finding:
    """Groups of observations: the oddest against all others, and all of them against each other.

    Other records that are not taken off only add to the variance: then each group is compared with
    the claim, and only too little counts. So it is where groups depend on each other.
    """
    apart = run.known and run.transcript.plan.independent
    if square.size < 2:
        return not_run("two groups of nodes or coordinates to compare")
    if not apart and run.claimed is None:
        return not_run("a claimed noise_multiplier to compare with")
    if not square.any():
        return not_run("noise")
    worst, p_value = oddest_variance(
        square, freedom, None if apart else run.claimed, less=not run.known
    )
    if apart and not sums_of_others(square)[worst]:
        # No noise in all others: the odd one out is one of those.
        worst = int(np.argmin(square))
    spread = Spread(float(freedom[worst]), float(square[worst]))
    rest = float(sums_of_others(square)[worst])
    others = Spread(float(freedom.sum() - freedom[worst]), rest)
    against = others.scale if apart else run.claimed
    assert against is not None
    ratio = spread.scale / against
    broken, implied, consequence = False, "", Consequence.LOOSENS
    rounded, shown = spread.rounded(), others.rounded().scale if apart else against
    relative = rounded.scale / shown if shown else ratio
    interval = _of_many(rounded, square.size)
    if ratio < 1.0:
        broken, _ = breach(worst, _of_many(spread, square.size)[1])
        _, implied = breach(worst, interval[1])
        consequence = Consequence.BREACH if broken else Consequence.INVALIDATES
    if apart and freedom.min() >= _FEWEST_TO_POOL and (square > 0.0).all():
        unequal = equal_variances_p_value(square, freedom)
        if unequal < p_value and not broken:
            consequence = Consequence.INVALIDATES
        if unequal < p_value:
            implied = f" All of them together differ more than chance lets them.{implied}"
        p_value = min(1.0, 2.0 * min(p_value, unequal))
    critical = chdtri(freedom[worst], 1.0 - 0.5 * _SHARE / square.size)
    visible = 1.0 - math.sqrt(critical / chdtri(freedom[worst], 0.2))
    return judged(
        p_value,
        f"{where(worst)} has about {relative:.3g} times the noise of the others."
        if apart
        else f"{where(worst)} has about {relative:.3g} times the noise that is claimed.",
        if_fine=_ODDEST,
        # Where to look is published only where something is wrong.
        if_wrong=f"{which(worst)}{implied}".strip(),
        consequence=consequence,
        measured=rounded.scale,
        interval=interval,
        claimed=significant(shown),
        remedy="Every node of every level, and every coordinate in it, must get the same noise: "
        "look at how it is drawn there.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        sees=f"noise {visible:.0%} below the claim in {one}",
    )


def _of_many(spread: Spread, count: int) -> tuple[float, float]:
    """An interval of the oddest of so many, which is to hold for each of them."""
    return spread.interval(INTERVAL_ERROR / count) if spread.square else (0.0, 0.0)


@check("noise where planted", part=NOISE_SCALE, after_resume=True)
def noise_where_planted(run: CorrelatedRun) -> Finding:
    """Whether values that a canary is in have the noise of all others."""
    pieces = run.transcript.pieces
    if not run.known:
        return not_run(KNOWN_BACKGROUND)
    if pieces.planted is None or pieces.planted_square is None:
        return not_run(_APART)
    count = int(pieces.planted.sum())
    if count < _FEWEST_PLANTINGS or not pieces.square.any():
        return not_run(f"{_FEWEST_PLANTINGS} plantings, and noise")
    planted, noise = Spread(float(count), float(pieces.planted_square.sum())), run.noise
    ratio = planted.scale / noise.scale
    interval = planted.interval(INTERVAL_ERROR) if planted.square else (0.0, 0.0)
    broken, implied = False, ""
    if ratio < 1.0:
        shift = run.transcript.largest_information / interval[1] if interval[1] else math.inf
        broken, implied = run.breach(shift)
    return judged(
        ratio_p_value(ratio * ratio, planted.freedom, noise.freedom),
        f"where a canary is planted there is {ratio:.3f} times the noise of elsewhere.",
        if_fine=", as there may be by chance.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.INVALIDATES,
        measured=planted.scale,
        interval=interval,
        claimed=significant(noise.scale),
        remedy="Noise must not depend on what it is added to, and every record must add what it "
        "should: no more in some leaves than in others.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@noise_scale.variant
def _scale(run: CorrelatedRun) -> Finding:
    claimed = run.claimed
    if not claimed:
        return not_run("a claimed noise_multiplier to compare with")
    if not run.transcript.plan.independent:
        return not_run(_APART)
    noise = run.noise
    if noise.square == 0.0:
        return fact(
            True,
            "there is no noise at all.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=claimed,
            remedy="Check that noise is added, and that the release is read after it.",
        )
    ratio = noise.scale / claimed
    if ratio > 1.0 and not run.known:
        return not_run(KNOWN_BACKGROUND)
    interval = noise.interval(INTERVAL_ERROR)
    broken, implied = ratio < 1.0, ""
    if broken and run.claim is not None:
        broken, implied = run.breach(run.transcript.largest_information / interval[1])
    visible = _FAR / math.sqrt(2.0 * noise.freedom)
    return judged(
        noise.p_value(claimed),
        f"the noise of a node is {ratio:.3f} times what is claimed.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=noise.scale,
        interval=interval,
        claimed=claimed,
        remedy="Noise must be calibrated to the root of the number of levels a leaf is in."
        if ratio < 1.0
        else "More noise than claimed costs accuracy for nothing.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        sees=f"noise {max(visible, TOLERANCE):.1%} below the claim",
        visible=visible,
    )


@noise_shape.variant
def _shape(run: CorrelatedRun) -> Finding:
    """Whether the noise of a node is Gaussian."""
    rows = run.transcript.kept_values
    if rows.shape[0] < _FEWEST_PIECES or rows.shape[1] < _FEWEST_FOR_SHAPE:
        return not_run(f"{_FEWEST_PIECES} nodes of {_FEWEST_FOR_SHAPE} absent canaries")
    if missing := _dependent(run):
        return not_run(missing)
    rows = rows[np.ptp(rows, axis=1) > 0.0]
    if rows.shape[0] < _FEWEST_PIECES:
        return not_run(f"noise in {_FEWEST_PIECES} nodes")
    return gaussian_shape(
        rows, "node", applies="neither the accounting", undermines=Assumption.GAUSSIAN_SCORES
    )


@contribution.variant
def _contribution(run: CorrelatedRun) -> Finding:
    """What a planted canary adds to its leaves, in clip norms: over the run, and in parts of it."""
    transcript = run.transcript
    if missing := _dependent(run):
        return not_run(missing)
    present = transcript.member & (transcript.information > 0.0)
    count = int(np.count_nonzero(present))
    if count < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} present canaries that entered")
    noise, information = run.noise, transcript.information[present]
    products = information * transcript.score[present]
    parts = min(_PARTS, count // _FEWEST_PLANTINGS)
    part = transcript.leaves[present].min(axis=1) * parts // transcript.plan.steps
    # The whole run first, by least squares, then each part by itself.
    weights = np.array([information @ information, *np.bincount(part, information**2, parts)])
    sums = np.array([products.sum(), *np.bincount(part, products, parts)])
    means = np.divide(sums, weights, out=np.ones(parts + 1), where=weights > 0.0)
    errors = noise.scale / np.sqrt(np.maximum(weights, np.finfo(np.float64).tiny))
    # Without noise, rounding alone is let pass.
    off = np.where(np.abs(means - 1.0) > 1e-6, np.abs(means - 1.0), 0.0)
    distances = np.divide(off, errors, out=np.where(off > 0.0, np.inf, 0.0), where=errors > 0.0)
    p_values = 2.0 * stdtr(noise.freedom, -distances)
    p_values[1:] *= parts
    worst = int(np.argmin(p_values)) if p_values.min() < SUSPICIOUS else 0
    mean, error = float(means[worst]), float(errors[worst])
    more, broken, implied = mean > 1.0, False, ""
    if more and noise.square > 0.0:
        surely = max(mean - 4.0 * error, 0.0)
        broken, implied = run.breach(
            surely * transcript.largest_information / noise.interval(INTERVAL_ERROR)[1]
        )
    where = f" in part {worst} of {parts} of the run" if worst else ""
    return judged(
        min(1.0, 2.0 * float(p_values.min())),
        f"a planted canary adds {mean:.4f} clip norms to its leaf{where}.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=mean,
        interval=around(mean, error),
        claimed=1.0,
        remedy="One record counts for more than it should: is it clipped by itself, and counted "
        "once?"
        if more
        else "Canaries are scaled down: the bound is lower than it could be.",
        tolerable=abs(mean - 1.0) < TOLERANCE,
        sees=f"a record that adds {1.0 + _FAR * float(errors[0]):.3f} clip norms",
        visible=_FAR * float(errors[0]),
    )


NOISE_ROW_CHECKS = (rows_without_noise, noise_by_row)
"""Checks of single rows of a strategy, in runs whose steps are audited like those of DP-SGD."""

CORRELATED_NOISE_CHECKS = (
    nodes_without_noise,
    _values_without_noise,
    _reused,
    _repeated_exactly,
    _repeated,
    _shared,
    noise_of_related_nodes,
    noise_after_restarts,
    noise_by_entry,
    noise_by_node,
    noise_by_level,
    _by_coordinate,
    noise_where_planted,
    _scale,
    _shape,
    _contribution,
)
"""Checks of the noise of nodes or rows, and of what a record adds to them."""
