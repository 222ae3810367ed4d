"""Checks of mechanisms with correlated noise: every node's or row's noise, and none of it twice.

Observations are decorrelated by node, by level and by coordinate: a single node without its noise
reveals a record, however well all others are protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, gammainc, ndtr, stdtr

from askgauss.checks.context import (
    INTERVAL_ERROR,
    TOLERANCE,
    Context,
    CorrelatedRun,
    around,
    known,
)
from askgauss.checks.correlation import (
    FEWEST_TO_COMPARE,
    exactly_repeated,
    node_correlations,
    repeated_noise,
    same_noise,
    shared_noise,
)
from askgauss.checks.noise import (
    noise_by_coordinate,
    noise_scale,
    noise_shape,
    values_without_noise,
)
from askgauss.checks.noise_reuse import ComparedNoise, noise_reused
from askgauss.checks.registry import (
    ACCOUNTANT,
    NOISE_FRESHNESS,
    NOISE_SCALE,
    SAMPLER,
    SUSPICIOUS,
    check,
    fact,
    judged,
    not_run,
)
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

_FEWEST_PIECES = 10
_FEWEST_PLANTINGS = 10
_DECORRELATED = "noise that can be decorrelated by node"
# Parts of the run in which what canaries add is also looked at by itself.
_PARTS = 8
# Bartlett's test is one of large samples.
_FEWEST_TO_POOL = 20
# Noise below this share of what is claimed is rounding error.
_SILENCE = 1e-5
# About the error that is left for one check when all of them share that of the gate.
_SHARE = 5e-5


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
        note=f" {missing:,} canaries were never included and have no score." if missing else "",
        remedy="Account for every leaf of the tree.",
    )


@check("sensitivity", part=ACCOUNTANT)
def sensitivity(run: CorrelatedRun) -> Finding:
    """How far one record moves what noise is added to, and how far the claim allows.

    Exact, and never more than the mechanism's sensitivity: it is that of the least protected
    record, among all of them or among the canaries. A claim of epsilon at the noise of one row
    implies a sensitivity: that of the Gaussian mechanism with both.
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
        f"{moves}; epsilon {claim.epsilon:g} with noise {noise:.4g} allows {covered:.4g}.{implied}",
        consequence=Consequence.BREACH,
        measured=moved,
        claimed=covered,
        remedy="Scale the noise by the norm of the strategy's longest column, or the strategy to "
        "columns of norm 1: one record moves a column, not a row."
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
    said = "no client took part more often, or sooner again"
    if often or soon:
        said = f"the most frequent client took part in {seen.most:,} rounds{again}"
    return fact(
        often or soon,
        f"{seen.limit:,} rounds are accounted for, at least {seen.separation:,} apart; "
        f"{said}.{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        # How often a client took part within the limits is not published.
        measured=float(seen.most) if often or soon else None,
        claimed=float(seen.limit),
        remedy="Have the server record when it last asked each client and ask it again only as "
        "accounted for; or account for more participations.",
    )


@check("nodes without noise", part=NOISE_SCALE)
def nodes_without_noise(run: CorrelatedRun) -> Finding:
    """Whether every node was released with noise."""
    square = run.transcript.pieces.square
    most = run.absent * (_SILENCE * (run.claimed or 1.0)) ** 2
    # A handful of canaries may all read near zero by chance; exact zeros they may not.
    silent = square <= (most if run.absent >= _FEWEST_PIECES else 0.0)
    count = int(np.count_nonzero(silent))
    if not count and not run.known:
        return not_run(known(run))
    first = f", the first of them {run.place(int(np.argmax(silent)))}" if count else ""
    return fact(
        count > 0,
        f"{count:,} of {square.size:,} nodes were released without noise{first}."
        if count
        else "every node was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(count),
        claimed=0.0,
        remedy="Add noise to every node, left and right: a record is in one node of every level.",
    )


@values_without_noise.variant
def _values_without_noise(run: CorrelatedRun) -> Finding:
    """Whether single values have no noise: some coordinates, in some nodes."""
    values = np.abs(run.transcript.kept_values).ravel()
    if not run.known or not values.size:
        return not_run(known(run) if values.size else "held-out canaries that are kept")
    unit = run.claimed or run.noise.scale
    silent = int(np.count_nonzero(values <= _SILENCE * unit))
    heard = values[values > _SILENCE * unit]
    # Noise on a lattice meets zero as often as the numbers next to it.
    _, repeats = np.unique(heard, return_counts=True)
    on_lattice = silent > 0 and int(repeats.max(initial=0)) > max(2, silent // 8)
    if on_lattice:
        return not_run("noise that is not drawn on a lattice")
    # Twice the density at zero, for the two sides.
    expected = values.size * _SILENCE * math.sqrt(2.0 / math.pi)
    return judged(
        _at_least(silent, expected),
        f"{silent:,} of {values.size:,} values have no noise; {expected:.2g} expected by chance.",
        consequence=Consequence.BREACH,
        measured=float(silent),
        claimed=0.0,
        remedy="Look for entries that are left out: every coordinate of every node needs noise.",
        sees=f"no noise in {_visible_count(expected):,} of {values.size:,} values",
    )


def _at_least(count: int, expected: float) -> float:
    """P[a Poisson number of this mean is at least this large]."""
    return float(gammainc(count, expected)) if count else 1.0


def _visible_count(expected: float) -> int:
    count = 1
    while _at_least(count, expected) > _SHARE:
        count += 1
    return count


def _compared(run: CorrelatedRun) -> ComparedNoise | None:
    """The noise of nodes that was compared by content; None where none was."""
    reuse, last = run.transcript.facts.reuse, run.transcript.pieces.tree.size - 1
    if reuse is None:
        return None
    return ComparedNoise(reuse=reuse, place=lambda found: run.place(min(found[0], last)))


@noise_reused.variant
def _reused(run: CorrelatedRun) -> Finding | None:
    """Whether any noise of a node was used again."""
    compared = _compared(run)
    found = None if compared is None else noise_reused(compared)
    plan = run.transcript.plan
    by_prefix = isinstance(plan, TreePlan) and plan.release != "nodes"
    if found is not None and by_prefix and found.status is Status.PASS:
        # A node's noise is only released in weighted sums with that of others.
        return not_run("released nodes: sums of several hide where each is used")
    return found


@repeated_noise.variant
def _repeated_exactly(run: CorrelatedRun) -> Finding | None:
    compared = _compared(run)
    return None if compared is None else exactly_repeated(compared)


def _cannot_compare(run: CorrelatedRun) -> str:
    """What is missing to compare the noises of nodes."""
    rows = run.transcript.kept_values
    if rows.shape[0] < 2 or rows.shape[1] < FEWEST_TO_COMPARE:
        return f"two nodes, and {FEWEST_TO_COMPARE} held-out canaries that are kept"
    return run.dependent


@check("noise of related nodes", part=NOISE_FRESHNESS, needs=(_cannot_compare,), after_resume=True)
def noise_of_related_nodes(run: CorrelatedRun) -> Finding:
    """Whether nodes that are near each other, or all of them together, have noise in common."""
    transcript = run.transcript
    ties = node_correlations(transcript.pieces, transcript.kept_values)
    if not ties:
        return not_run("nodes that are related")
    worst = min(ties, key=lambda tie: tie.p_value)
    return judged(
        min(1.0, len(ties) * worst.p_value),
        f"of all kinds of related nodes, the noise of {worst.between} correlates most: "
        f"{worst.correlation:+.4f}.",
        consequence=same_noise(worst.correlation),
        measured=worst.correlation,
        claimed=0.0,
        remedy="Draw fresh noise for every node: it must not depend on that of any other.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@check(
    "noise after restarts",
    part=NOISE_FRESHNESS,
    explains="repeated noise, noise of related nodes",
    after_resume=True,
)
def noise_after_restarts(run: CorrelatedRun) -> Finding:
    """Whether the noise of a tree comes back in the next one."""
    transcript = run.transcript
    if run.apart:
        return not_run(run.apart)
    try:
        correlation, pairs = transcript.restart_correlation()
    except NotDefinedError:
        return not_run("a tree that is restarted")
    if not run.known:
        return not_run(known(run))
    return judged(
        2.0 * float(ndtr(-abs(correlation) * math.sqrt(pairs))),
        f"the noise of a node correlates by {correlation:+.3f} with that of the tree before.",
        consequence=Consequence.BREACH if abs(correlation) > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="Draw fresh noise after a restart: do not seed the generator again.",
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
        return not_run(f"two rows with noise, at {_FEWEST_PIECES} held-out canaries or more")
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
    return judged(
        min(1.0, rows.rows * p_value),
        f"of {rows.rows:,} rows of the strategy, row {row:,} differs most: it has about "
        f"{relative:.3g} times the noise of the others.",
        consequence=Consequence.INVALIDATES if relative < 1.0 else Consequence.LOOSENS,
        measured=relative,
        claimed=1.0,
        remedy="Give every row of the strategy noise of the same scale.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"noise {_visible(one.freedom, rows.rows):.0%} below the claim in one row",
    )


def _visible(freedom: float, groups: int) -> float:
    """How much less noise is detected with probability .8 in one of this many groups."""
    critical = chdtri(freedom, 1.0 - 0.5 * _SHARE / groups)
    return 1.0 - math.sqrt(critical / chdtri(freedom, 0.2))


@check("noise by entry", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_entry(run: CorrelatedRun) -> Finding:
    """Whether a record is protected by the noise that the declared strategy says, step by step.

    Noise of another strategy has another covariance once it is decorrelated by the declared one,
    and protects some step less: held-out canaries show how much.
    """
    transcript, claimed = run.transcript, run.claimed
    squares, gain = transcript.leaf_square, transcript.leaf_gain
    if squares is None or gain is None or not claimed:
        return not_run(
            "a strategy whose noise_multiplier is claimed, a known background, and twice as many "
            "kept held-out canaries as steps"
        )
    freedom = np.full(squares.size, float(transcript.leaf_freedom))
    worst, p_value = oddest_variance(squares, freedom, claimed, less=True)
    spread = Spread(float(freedom[worst]), float(squares[worst]))
    ratio = spread.scale / claimed
    rounded, moved = spread.rounded(), math.sqrt(float(gain[worst]))
    exact, interval = (_of_many(part, squares.size) for part in (spread, rounded))
    broken, _ = run.breach(moved / exact[1] if exact[1] else math.inf)
    _, implied = run.breach(moved / interval[1] if interval[1] else math.inf)
    return judged(
        p_value,
        f"the least protected record, in step {worst + 1} of {squares.size:,}, has "
        f"{rounded.scale / claimed:.3f} times the noise that the declared strategy gives it.",
        consequence=Consequence.INVALIDATES,
        breach=(broken, implied),
        measured=rounded.scale,
        interval=interval,
        claimed=claimed,
        remedy="Compare the matrix that the noise is made with, row by row and column by column: "
        "the noise is not that of the declared strategy.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
    )


@check("noise by node", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_node(run: CorrelatedRun) -> Finding:
    """Every node's noise: one without it reveals a record."""
    pieces = run.transcript.pieces
    return _by_group(
        run,
        pieces.square,
        np.full(pieces.square.size, float(run.absent)),
        where=lambda worst: f"node ({run.place(worst)})",
        breach=run.breach_of_piece,
        one="one node",
    )


@check("noise by level", part=NOISE_SCALE, reveals_individual=True, after_resume=True)
def noise_by_level(run: CorrelatedRun) -> Finding:
    """The noise of every level."""
    pieces = run.transcript.pieces
    levels, owner = np.unique(pieces.level, return_inverse=True)
    if run.apart or levels.size < 2:
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
    """The noise of every coordinate, over all nodes; inserted canaries' less what they add."""
    transcript = run.transcript
    if transcript.noise_square is None:
        return not_run(run.apart or _DECORRELATED)
    if not run.known:
        return not_run(known(run))
    count = transcript.pieces.square.size
    return _by_group(
        run,
        transcript.noise_square,
        np.full(transcript.member.size, float(count)),
        where=lambda _: f"of {transcript.member.size:,} coordinates, the one that differs most",
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
    """Groups of observations: the most extreme against all others, and all against each other.

    Other records that are not subtracted only add to the variance: then each group is compared with
    the claim, and only too little counts. So it is where groups depend on each other.
    """
    apart = not run.dependent
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
        # No noise in all others: the one that differs is one of those.
        worst = int(np.argmin(square))
    spread = Spread(float(freedom[worst]), float(square[worst]))
    rest = float(sums_of_others(square)[worst])
    others = Spread(float(freedom.sum() - freedom[worst]), rest)
    against = others.scale if apart else run.claimed
    assert against is not None
    ratio = spread.scale / against
    broken, implied = False, ""
    consequence = Consequence.INVALIDATES if ratio < 1.0 else Consequence.LOOSENS
    rounded, shown = spread.rounded(), others.rounded().scale if apart else against
    relative = rounded.scale / shown if shown else ratio
    interval = _of_many(rounded, square.size)
    if ratio < 1.0:
        broken, _ = breach(worst, _of_many(spread, square.size)[1])
        _, implied = breach(worst, interval[1])
    if apart and freedom.min() >= _FEWEST_TO_POOL and (square > 0.0).all():
        unequal = equal_variances_p_value(square, freedom)
        if unequal < p_value:
            consequence = Consequence.INVALIDATES
            implied = f" All of them together differ by more than chance.{implied}"
        p_value = min(1.0, 2.0 * min(p_value, unequal))
    against_what = "the noise of the others" if apart else "the claimed noise"
    return judged(
        p_value,
        f"{where(worst)} has about {relative:.3g} times {against_what}.",
        # Where to look is published only where something is wrong.
        if_wrong=which(worst),
        consequence=consequence,
        breach=(broken, implied),
        measured=rounded.scale,
        interval=interval,
        claimed=significant(shown),
        remedy="Check how the noise is drawn there: every node of every level, and every "
        "coordinate in it, must get the same noise.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        sees=f"noise {_visible(float(freedom[worst]), square.size):.0%} below the claim in {one}",
    )


def _of_many(spread: Spread, count: int) -> tuple[float, float]:
    """An interval of the most extreme of this many groups, valid for each of them."""
    return spread.interval(INTERVAL_ERROR / count) if spread.square else (0.0, 0.0)


@check("noise where planted", part=NOISE_SCALE, after_resume=True)
def noise_where_planted(run: CorrelatedRun) -> Finding:
    """Whether values with an included canary have the noise of all others."""
    pieces = run.transcript.pieces
    if not run.known:
        return not_run(known(run))
    if pieces.planted is None or pieces.planted_square is None:
        return not_run(run.apart or _DECORRELATED)
    count = int(pieces.planted.sum())
    if count < _FEWEST_PLANTINGS or not pieces.square.any():
        return not_run(f"{_FEWEST_PLANTINGS} inclusions of canaries, and noise")
    planted, noise = Spread(float(count), float(pieces.planted_square.sum())), run.noise
    ratio = planted.scale / noise.scale
    interval = planted.interval(INTERVAL_ERROR) if planted.square else (0.0, 0.0)
    broken, implied = False, ""
    if ratio < 1.0:
        shift = run.transcript.largest_information / interval[1] if interval[1] else math.inf
        broken, implied = run.breach(shift)
    return judged(
        ratio_p_value(ratio * ratio, planted.freedom, noise.freedom),
        f"nodes with an included canary have {ratio:.3f} times the noise of all others.",
        consequence=Consequence.INVALIDATES,
        breach=(broken, implied),
        measured=planted.scale,
        interval=interval,
        claimed=significant(noise.scale),
        remedy="Check that the noise does not depend on what it is added to, and that every record "
        "adds one clip norm to each of its leaves.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        undermines=Assumption.GAUSSIAN_SCORES,
    )


@contribution.variant
def _contribution(run: CorrelatedRun) -> Finding:
    """What an included canary adds to its leaves, in clip norms: over the run, and in parts."""
    transcript = run.transcript
    if run.dependent:
        return not_run(run.dependent)
    present = transcript.member & (transcript.information > 0.0)
    count = int(np.count_nonzero(present))
    if count < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} inserted canaries that were included")
    noise, information = run.noise, transcript.information[present]
    products = information * transcript.score[present]
    parts = min(_PARTS, count // _FEWEST_PLANTINGS)
    part = transcript.leaves[present].min(axis=1) * parts // transcript.plan.steps
    # The whole run first, by least squares, then each part.
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
        f"an included canary adds {mean:.4f} clip norms to its leaf{where}.",
        consequence=Consequence.LOOSENS,
        breach=(broken, implied),
        measured=mean,
        interval=around(mean, error),
        claimed=1.0,
        remedy="Check that every record is clipped by itself and counted once: one record adds "
        "more than the clip norm."
        if more
        else "Canaries are scaled down: the bound is lower than it could be.",
        tolerable=abs(mean - 1.0) < TOLERANCE,
        sees=f"a record that adds {1.0 + run.noticed * float(errors[0]):.3f} clip norms",
        visible=run.noticed * float(errors[0]),
    )


NOISE_ROW_CHECKS = (rows_without_noise, noise_by_row)
"""Checks of single rows of a strategy, in runs whose steps are audited like those of DP-SGD."""

CORRELATED_NOISE_CHECKS = (
    nodes_without_noise,
    _values_without_noise,
    _reused,
    _repeated_exactly,
    repeated_noise,
    shared_noise,
    noise_of_related_nodes,
    noise_after_restarts,
    noise_by_entry,
    noise_by_node,
    noise_by_level,
    _by_coordinate,
    noise_where_planted,
    noise_scale,
    noise_shape,
    _contribution,
)
"""Checks of the noise of nodes or rows, and of what a record adds to them."""
