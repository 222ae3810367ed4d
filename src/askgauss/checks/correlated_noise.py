"""Checks of a mechanism with correlated noise: every node's noise, and none of it used twice.

Observations are taken apart by node, by level and by coordinate: a single node without its noise
gives a record away, however well all others are protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, gammainc, ndtr, stdtr

from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE, around
from askgauss.checks.correlated_run import LinearRun
from askgauss.checks.federated_rounds import round_checks
from askgauss.checks.findings import SUSPICIOUS, WHOLE_RUN, fact, judged, not_run
from askgauss.checks.node_correlation import ties_between_nodes
from askgauss.checks.noise_reuse import repeated_exactly, reused_noise
from askgauss.checks.pairwise_similarity import most_alike, same_noise
from askgauss.checks.rounding_to_error import coarse_cosine, coarse_spread, significant
from askgauss.checks.sensitivity import covered_sensitivity, leaf_noise, participation
from askgauss.checks.tails import (
    Spread,
    equal_variances_p_value,
    oddest_variance,
    ratio_p_value,
    sums_of_others,
)
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import NotDefinedError
from askgauss.mechanisms.plans import StrategyPlan, TreePlan
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.stats import normality

__all__ = ["linear_checks"]

_KNOWN = "a known background, to tell noise from other records"
_APART = "nodes, or prefixes of trees that are not filled up"
_FEWEST_COLUMNS = 32
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
# Standard errors that are noticed at that error, two-sided, with probability .8.
_FAR = 4.06 + 0.84
# What to add to the oddest of very many, which is never near what is expected.
_LARGEST = ", as the largest of so many may by chance."


def linear_checks(transcript: LinearTranscript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check that the transcript of a tree mechanism allows."""
    run = LinearRun(transcript, claim)
    yield fact(
        "finite gradients",
        not transcript.finite,
        "every released number was finite."
        if transcript.finite
        else "nan, infinite or larger than 1e140: such values were released.",
        consequence=Consequence.INVALIDATES,
        remedy="Find where they come from: nothing can be said of such a run.",
    )
    yield _step_count(run)
    yield covered_sensitivity(run)
    if (rounds := transcript.facts.rounds) is not None:
        yield from round_checks(rounds, claim, None)
        yield participation(run, rounds)
    if not transcript.finite:
        return
    yield _silent_nodes(run)
    yield _silent_values(run)
    if transcript.facts.reuse is not None:
        found = reused_noise(
            transcript.facts.reuse,
            lambda found: _place(run, min(found[0], transcript.pieces.tree.size - 1)),
        )
        by_prefix = isinstance(transcript.plan, TreePlan) and transcript.plan.release != "nodes"
        if by_prefix and found.status is Status.PASS:
            # A node's noise is only in weighted sums with others': by itself it is not compared.
            found = not_run(
                "noise reused at other coordinates",
                "released nodes: sums of several hide where each is used",
            )
        yield found
    if not repeated_exactly(transcript.facts.reuse):
        yield _repeated(run)
    yield _shared(run)
    yield _ties(run)
    yield _restarts(run)
    yield leaf_noise(run)
    yield _by_node(run)
    yield _by_level(run)
    yield _by_coordinate(run)
    yield _where_planted(run)
    yield _scale(run)
    yield _shape(run)
    yield _contribution(run)


def _step_count(run: LinearRun) -> Finding:
    transcript, claim = run.transcript, run.claim
    accounted = transcript.plan.steps if claim is None else claim.steps or transcript.plan.steps
    taken = transcript.number_of_steps
    missing = int(np.count_nonzero(transcript.information == 0.0))
    unseen = f" {missing:,} canaries never entered and have no score." if missing else ""
    broken, implied = False, ""
    if taken > accounted and run.claimed:
        broken, implied = run.breach(transcript.largest_information / run.claimed)
    return fact(
        "step count",
        taken != accounted,
        f"{taken:,} steps were released and {accounted:,} accounted for.{unseen}{implied}"
        if taken >= accounted
        else f"{taken:,} steps were seen of {accounted:,} that were accounted for.{unseen}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=float(taken),
        claimed=float(accounted),
        remedy="Account for every leaf of the tree." if taken > accounted else WHOLE_RUN,
        visible=1.0 if taken < accounted else None,
    )


def _silent_nodes(run: LinearRun) -> Finding:
    name, square = "nodes without noise", run.transcript.pieces.square
    most = run.absent * (_SILENCE * (run.claimed or 1.0)) ** 2
    # A handful of canaries may all read near zero by chance; exact zeros they may not.
    silent = square <= (most if run.absent >= _FEWEST_PIECES else 0.0)
    count = int(np.count_nonzero(silent))
    if not count and not run.known:
        return not_run(name, _KNOWN)
    first = f", the first of them {_place(run, int(np.argmax(silent)))}" if count else ""
    return fact(
        name,
        count > 0,
        f"{count:,} of {square.size:,} nodes were released without noise{first}."
        if count
        else "every node was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(count),
        claimed=0.0,
        remedy="A record is in one node of every level: each of them needs noise, left and right.",
    )


def _silent_values(run: LinearRun) -> Finding:
    """Whether single values have no noise: some coordinates, in some nodes."""
    name, values = "values without noise", np.abs(run.transcript.kept_values).ravel()
    if not run.known or not values.size:
        return not_run(name, _KNOWN if values.size else "absent canaries that are kept")
    unit = run.claimed or run.noise.scale
    silent = int(np.count_nonzero(values <= _SILENCE * unit))
    heard = values[values > _SILENCE * unit]
    # Noise on a lattice meets zero as often as the numbers next to it.
    _, repeats = np.unique(heard, return_counts=True)
    on_lattice = silent > 0 and int(repeats.max(initial=0)) > max(2, silent // 8)
    if on_lattice:
        return not_run(name, "noise that is not drawn on a lattice")
    # Twice the density at zero, for the two sides: many more than chance has near it.
    expected = values.size * _SILENCE * math.sqrt(2.0 / math.pi)
    return judged(
        name,
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


def _place(run: LinearRun, row: int) -> str:
    pieces = run.transcript.pieces
    if isinstance(run.transcript.plan, StrategyPlan):
        return f"row {pieces.index[row]} of the strategy"
    return f"tree {pieces.tree[row]}, level {pieces.level[row]}, index {pieces.index[row]}"


def _cannot_compare(run: LinearRun, rows: NDArray[np.float64]) -> str | None:
    """What is missing to compare the noises of nodes."""
    if rows.shape[0] < 2 or rows.shape[1] < _FEWEST_COLUMNS:
        return f"two nodes, and {_FEWEST_COLUMNS} absent canaries that are kept"
    if not run.known:
        return _KNOWN
    return None if run.transcript.plan.independent else _APART


def _repeated(run: LinearRun) -> Finding:
    """Whether the noise of one node comes back in another."""
    name, rows = "repeated noise", run.transcript.kept_values
    if missing := _cannot_compare(run, rows):
        return not_run(name, missing)
    found = most_alike(rows)
    if found is None:
        return not_run(name, "noise in two nodes")
    correlation, first, second, p_value = found
    told, said = coarse_cosine(correlation, rows.shape[1], errors=1.0)
    return judged(
        name,
        p_value,
        f"the most alike noise of two nodes ({_place(run, first)}; {_place(run, second)}) "
        f"correlates by {said}.",
        if_fine=_LARGEST,
        consequence=same_noise(correlation),
        measured=told,
        claimed=0.0,
        remedy="Every node needs noise of its own: split the random key, and never seed it again.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _shared(run: LinearRun) -> Finding:
    """Whether two coordinates get the same noise."""
    name, rows = "shared noise", run.transcript.kept_values
    if rows.shape[0] < _FEWEST_PIECES or rows.shape[1] < 2:
        return not_run(name, f"{_FEWEST_PIECES} nodes, and two absent canaries that are kept")
    if not run.known or not run.transcript.plan.independent:
        return not_run(name, _APART if run.known else _KNOWN)
    found = most_alike(np.ascontiguousarray(rows.T))
    if found is None:
        return not_run(name, "noise in two coordinates")
    correlation, _, _, p_value = found
    # One pair of canaries: nearly orthogonal ones are not told from orthogonal ones.
    told, said = coarse_cosine(correlation, rows.shape[0])
    return judged(
        name,
        p_value,
        f"the most alike two coordinates correlate by {said} over all nodes.",
        if_fine=_LARGEST,
        consequence=same_noise(correlation),
        measured=told,
        claimed=0.0,
        remedy="Every coordinate needs noise of its own: split the random key between tensors.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _ties(run: LinearRun) -> Finding:
    """Whether nodes that are near each other, or all of them together, have noise in common."""
    name, transcript = "noise of related nodes", run.transcript
    if missing := _cannot_compare(run, transcript.kept_values):
        return not_run(name, missing)
    ties = ties_between_nodes(transcript.pieces, transcript.kept_values)
    if not ties:
        return not_run(name, "nodes that are related")
    worst = min(ties, key=lambda tie: tie.p_value)
    return judged(
        name,
        min(1.0, len(ties) * worst.p_value),
        f"the noise of {worst.between} correlates by {worst.correlation:+.4f}.",
        if_fine=_LARGEST,
        consequence=same_noise(worst.correlation),
        measured=worst.correlation,
        claimed=0.0,
        remedy="The noise of a node must not depend on that of any other: draw it afresh.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _restarts(run: LinearRun) -> Finding:
    name, transcript = "noise after restarts", run.transcript
    if not transcript.plan.independent:
        return not_run(name, _APART)
    try:
        correlation, pairs = transcript.restart_correlation()
    except NotDefinedError:
        return not_run(name, "a tree that is restarted")
    if not run.known:
        return not_run(name, _KNOWN)
    return judged(
        name,
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


def _by_node(run: LinearRun) -> Finding:
    """Every node's noise: one that lacks it is enough to give a record away."""
    pieces = run.transcript.pieces
    return _by_group(
        run,
        "noise by node",
        pieces.square,
        np.full(pieces.square.size, float(run.absent)),
        where=lambda worst: f"node ({_place(run, worst)})",
        breach=run.breach_of_piece,
        one="one node",
    )


def _by_level(run: LinearRun) -> Finding:
    """The noise of every level: a level counts whatever its nodes are."""
    name, pieces = "noise by level", run.transcript.pieces
    levels, owner = np.unique(pieces.level, return_inverse=True)
    if not run.transcript.plan.independent or levels.size < 2:
        return not_run(name, "independent noise in the nodes of two levels")

    def breach(worst: int, scale: float) -> tuple[bool, str]:
        here = np.flatnonzero(owner == worst)
        gains = np.zeros(here.size) if pieces.gain is None else pieces.gain[here]
        return run.breach_of_piece(int(here[np.argmax(gains)]), scale)

    return _by_group(
        run,
        name,
        np.bincount(owner, pieces.square).astype(np.float64),
        run.absent * np.bincount(owner).astype(np.float64),
        where=lambda worst: f"level {int(levels[worst])}",
        breach=breach,
        one="one level",
    )


def _by_coordinate(run: LinearRun) -> Finding:
    """The noise of every coordinate, over all nodes: present canaries' too, less what they add."""
    name, transcript = "noise by coordinate", run.transcript
    if transcript.noise_square is None:
        return not_run(name, _APART)
    if not run.known:
        return not_run(name, _KNOWN)
    count = transcript.pieces.square.size
    return _by_group(
        run,
        name,
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
    run: LinearRun,
    name: str,
    square: NDArray[np.float64],
    freedom: NDArray[np.float64],
    *,
    where: Callable[[int], str],
    breach: Callable[[int, float], tuple[bool, str]],
    one: str,
    which: Callable[[int], str] = lambda _: "",
) -> Finding:
    """Groups of observations: the oddest against all others, and all of them against each other.

    Other records that are not taken off only add to the variance: then each group is held against
    the claim, and only too little counts. So it is where groups depend on each other.
    """
    apart = run.known and run.transcript.plan.independent
    if square.size < 2:
        return not_run(name, "two groups of nodes or coordinates to compare")
    if not apart and run.claimed is None:
        return not_run(name, "a claimed noise_multiplier to compare with")
    if not square.any():
        return not_run(name, "noise")
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
    # A group may be a single canary: what is told of it is no finer than chance moves it.
    told, shown = coarse_spread(spread), coarse_spread(others).scale if apart else against
    relative = told.scale / shown if shown else ratio
    interval = _of_many(told, square.size)
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
        name,
        p_value,
        f"{where(worst)} has about {relative:.3g} times the noise of the others."
        if apart
        else f"{where(worst)} has about {relative:.3g} times the noise that is claimed.",
        if_fine=", as the oddest of so many may by chance.",
        # Where to look is told only where something is wrong.
        if_wrong=f"{which(worst)}{implied}".strip(),
        consequence=consequence,
        measured=told.scale,
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


def _where_planted(run: LinearRun) -> Finding:
    """Whether values that a canary is in have the noise of all others."""
    name, pieces = "noise where planted", run.transcript.pieces
    if not run.known:
        return not_run(name, _KNOWN)
    if pieces.planted is None or pieces.planted_square is None:
        return not_run(name, _APART)
    count = int(pieces.planted.sum())
    if count < _FEWEST_PLANTINGS or not pieces.square.any():
        return not_run(name, f"{_FEWEST_PLANTINGS} plantings, and noise")
    planted, noise = Spread(float(count), float(pieces.planted_square.sum())), run.noise
    ratio = planted.scale / noise.scale
    interval = planted.interval(INTERVAL_ERROR) if planted.square else (0.0, 0.0)
    broken, implied = False, ""
    if ratio < 1.0:
        shift = run.transcript.largest_information / interval[1] if interval[1] else math.inf
        broken, implied = run.breach(shift)
    return judged(
        name,
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


def _scale(run: LinearRun) -> Finding:
    name, claimed = "noise scale", run.claimed
    if not claimed:
        return not_run(name, "a claimed noise_multiplier to compare with")
    if not run.transcript.plan.independent:
        return not_run(name, _APART)
    noise = run.noise
    if noise.square == 0.0:
        return fact(
            name,
            True,
            "there is no noise at all.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=claimed,
            remedy="Check that noise is added, and that the release is read after it.",
        )
    ratio = noise.scale / claimed
    if ratio > 1.0 and not run.known:
        return not_run(name, _KNOWN)
    interval = noise.interval(INTERVAL_ERROR)
    broken, implied = ratio < 1.0, ""
    if broken and run.claim is not None:
        broken, implied = run.breach(run.transcript.largest_information / interval[1])
    visible = _FAR / math.sqrt(2.0 * noise.freedom)
    return judged(
        name,
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


def _shape(run: LinearRun) -> Finding:
    """Whether the noise of a node is Gaussian."""
    name, rows = "noise shape", run.transcript.kept_values
    if rows.shape[0] < _FEWEST_PIECES or rows.shape[1] < _FEWEST_FOR_SHAPE:
        return not_run(name, f"{_FEWEST_PIECES} nodes of {_FEWEST_FOR_SHAPE} absent canaries")
    if not run.known or not run.transcript.plan.independent:
        return not_run(name, _APART if run.known else _KNOWN)
    rows = rows[np.ptp(rows, axis=1) > 0.0]
    if rows.shape[0] < _FEWEST_PIECES:
        return not_run(name, f"noise in {_FEWEST_PIECES} nodes")
    skewness, skewness_p, kurtosis, kurtosis_p = normality.average_shape(rows)
    return judged(
        name,
        min(1.0, 2.0 * min(skewness_p, kurtosis_p)),
        f"the noise of a node has skewness {skewness:+.3f} and excess kurtosis {kurtosis:+.3f}.",
        if_fine=", as Gaussian noise may.",
        if_wrong="Gaussian noise has neither: it is drawn from another distribution.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy="The noise is not Gaussian, so neither the accounting nor this bound applies: look "
        "at the distribution it is drawn from.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _contribution(run: LinearRun) -> Finding:
    """What a planted canary adds to its leaves, in clip norms: over the run, and in parts of it."""
    name, transcript = "contribution", run.transcript
    if not run.known or not transcript.plan.independent:
        return not_run(name, _APART if run.known else _KNOWN)
    present = transcript.member & (transcript.information > 0.0)
    count = int(np.count_nonzero(present))
    if count < _FEWEST_PLANTINGS:
        return not_run(name, f"{_FEWEST_PLANTINGS} present canaries that entered")
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
        name,
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
