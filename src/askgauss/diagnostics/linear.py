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
_APART = "nodes, or prefixes of trees that are not filled up"
_FEWEST_COLUMNS = 32


def linear_checks(transcript: LinearTranscript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check that the transcript of a tree mechanism allows."""
    yield _step_count(transcript, claim)
    yield _silent_nodes(transcript)
    yield _repeated(transcript)
    yield _scale(transcript, claim)
    yield _by_level(transcript)
    yield _restarts(transcript)


def _step_count(transcript: LinearTranscript, claim: PrivacyClaim | None) -> Finding:
    accounted = transcript.plan.steps if claim is None else claim.steps or transcript.plan.steps
    taken = transcript.number_of_steps
    missing = int(np.count_nonzero(transcript.information == 0.0))
    unseen = f" {missing:,} canaries never entered and have no score." if missing else ""
    broken, implied = False, ""
    if taken > accounted and (noise := _claimed_noise(transcript, claim)):
        broken, implied = _breach(transcript, claim, noise)
    return fact(
        "step count",
        taken != accounted,
        f"{taken:,} steps were released and {accounted:,} accounted for.{unseen}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=float(taken),
        claimed=float(accounted),
        remedy="Account for every leaf of the tree."
        if taken > accounted
        else "The bound speaks of the run so far: audit the whole run for the whole claim.",
    )


def _claimed_noise(transcript: LinearTranscript, claim: PrivacyClaim | None) -> float | None:
    claimed = claim.noise_multiplier if claim is not None else None
    return claimed or transcript.facts.noise_multiplier


def _breach(
    transcript: LinearTranscript, claim: PrivacyClaim | None, noise: float
) -> tuple[bool, str]:
    """Whether a node's noise is too little for the claim, and the sentence that says so."""
    if claim is None:
        return False, ""
    epsilon = gaussian.gdp_epsilon(claim.delta, transcript.largest_information / noise)
    broken = epsilon > (1.0 + TOLERANCE) * claim.epsilon
    return broken, f" It implies epsilon {epsilon:.3g} where {claim.epsilon:g} is claimed." * broken


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
    if not transcript.plan.independent:
        return not_run(name, _APART)
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
    if not (claimed := _claimed_noise(transcript, claim)):
        return not_run(name, "a claimed noise_multiplier to compare with")
    if not transcript.plan.independent:
        return not_run(name, _APART)
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
        broken, implied = _breach(transcript, claim, interval[1])
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
    if not transcript.plan.independent or levels.size < 2 or not (pieces.square > 0.0).all():
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
    if not transcript.plan.independent:
        return not_run(name, _APART)
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
