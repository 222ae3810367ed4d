"""Checks of a mechanism with correlated noise: every node's noise, and none of it used twice."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from askgauss.claims import PrivacyClaim
from askgauss.diagnostics.alike import most_alike, same_noise
from askgauss.diagnostics.context import INTERVAL_ERROR, TOLERANCE, around
from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.diagnostics.tails import Spread, equal_variances_p_value
from askgauss.exceptions import NotDefinedError
from askgauss.linear_transcript import LinearTranscript
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats import gaussian

__all__ = ["linear_checks"]

_KNOWN = "a known background, to tell noise from other records"
_FEWEST_COLUMNS = 32


def linear_checks(transcript: LinearTranscript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check that the transcript of a tree mechanism allows."""
    yield _silent_nodes(transcript)
    yield _repeated(transcript)
    yield _scale(transcript, claim)
    yield _by_level(transcript)
    yield _restarts(transcript)


def _silent_nodes(transcript: LinearTranscript) -> Finding:
    silent = int(np.count_nonzero(transcript.pieces.square == 0.0))
    return fact(
        "nodes without noise",
        silent > 0,
        f"{silent:,} of {transcript.pieces.square.size:,} nodes were released without noise."
        if silent
        else "every node was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(silent),
        claimed=0.0,
        remedy="A record is in one node of every level: each of them needs noise, left and right.",
    )


def _repeated(transcript: LinearTranscript) -> Finding:
    """Whether the noise of one node comes back in another."""
    name, rows = "repeated noise", transcript.kept_values
    if rows.shape[0] < 2 or rows.shape[1] < _FEWEST_COLUMNS:
        return not_run(name, f"two nodes, and {_FEWEST_COLUMNS} absent canaries that are kept")
    if transcript.facts.background == "unknown":
        return not_run(name, _KNOWN)
    if not _independent(transcript):
        return not_run(name, "nodes, or prefixes of trees that are not completed")
    found = most_alike(rows)
    if found is None:
        return not_run(name, "noise in two nodes")
    correlation, first, second, p_value = found
    pieces = transcript.pieces
    places = [
        f"tree {pieces.tree[row]}, level {pieces.level[row]}, index {pieces.index[row]}"
        for row in (first, second)
    ]
    return judged(
        name,
        p_value,
        f"the most alike noise of two nodes ({places[0]}; {places[1]}) correlates by "
        f"{correlation:+.3f}.",
        consequence=same_noise(correlation),
        measured=correlation,
        claimed=0.0,
        remedy="Every node needs noise of its own: split the random key, and never seed it again.",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _scale(transcript: LinearTranscript, claim: PrivacyClaim | None) -> Finding:
    name = "noise scale"
    claimed = claim.noise_multiplier if claim is not None else None
    claimed = claimed or transcript.facts.noise_multiplier
    if not claimed:
        return not_run(name, "a claimed noise_multiplier to compare with")
    if not _independent(transcript):
        return not_run(name, "nodes, or prefixes of trees that are not completed")
    scale, count = transcript.measured_noise()
    if scale == 0.0:
        return fact(
            name,
            True,
            "there is no noise at all.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=claimed,
            remedy="Check that noise is added, and that the release is read after it.",
        )
    noise, ratio = Spread(float(count), count * scale**2), scale / claimed
    if ratio > 1.0 and transcript.facts.background == "unknown":
        return not_run(name, _KNOWN)
    interval = noise.interval(INTERVAL_ERROR)
    broken, implied = ratio < 1.0, ""
    if broken and claim is not None:
        epsilon = gaussian.gdp_epsilon(claim.delta, transcript.largest_information / interval[1])
        broken = epsilon > (1.0 + TOLERANCE) * claim.epsilon
        implied = f" It implies epsilon {epsilon:.3g} where {claim.epsilon:g} is claimed." * broken
    return judged(
        name,
        noise.p_value(claimed),
        f"the noise of a node is {ratio:.3f} times what is claimed.{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=scale,
        interval=interval,
        claimed=claimed,
        remedy="Noise must be calibrated to the root of the number of levels a leaf is in."
        if ratio < 1.0
        else "More noise than claimed costs accuracy for nothing.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
    )


def _by_level(transcript: LinearTranscript) -> Finding:
    name, pieces = "noise by level", transcript.pieces
    levels = np.unique(pieces.level)
    if transcript.facts.background == "unknown":
        return not_run(name, _KNOWN)
    if not _independent(transcript) or levels.size < 2 or not (pieces.square > 0.0).all():
        return not_run(name, "noise in the nodes of two levels")
    absent = int(np.count_nonzero(~transcript.member))
    square = np.array([pieces.square[pieces.level == level].sum() for level in levels])
    freedom = absent * np.array([np.count_nonzero(pieces.level == level) for level in levels])
    scale = np.sqrt(square / freedom)
    worst = int(np.argmax(np.abs(np.log(scale / np.median(scale)))))
    spread = float(scale[worst] / np.median(scale))
    return judged(
        name,
        equal_variances_p_value(square, freedom.astype(np.float64)),
        f"level {int(levels[worst])} has {spread:.3f} times the noise of the others.",
        consequence=Consequence.INVALIDATES,
        measured=spread,
        claimed=1.0,
        remedy="Every level of the tree must get the same noise.",
        tolerable=abs(spread - 1.0) < TOLERANCE,
    )


def _restarts(transcript: LinearTranscript) -> Finding:
    name = "noise after restarts"
    try:
        correlation, pairs = transcript.restart_correlation()
    except NotDefinedError:
        return not_run(name, "a tree that is restarted")
    if transcript.facts.background == "unknown":
        return not_run(name, _KNOWN)
    return judged(
        name,
        2.0 * float(ndtr(-abs(correlation) * math.sqrt(pairs))),
        f"a node's noise correlates by {correlation:+.3f} with that of the tree before.",
        consequence=Consequence.BREACH if correlation > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="A restarted tree needs fresh noise: do not seed its generator again.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _independent(transcript: LinearTranscript) -> bool:
    """Whether the pieces' noise is independent, so that their squares add up to a chi-square."""
    plan = transcript.plan
    return plan.release == "nodes" or not (plan.completion or plan.estimator == "full")
