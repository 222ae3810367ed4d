"""Numbers of a transcript that no run can have recorded.

A digest says that a file is as it was written, not that a run wrote it. Whoever edits numbers can
write the digests anew; what remains are relations between the sums, which were taken of the same
observations, and the sampling that the facts declare.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError
from askgauss.recording.facts import RunFacts
from askgauss.recording.transcript import DUST, LinearTranscript, Transcript
from askgauss.sampling import assumed_poisson
from askgauss.sampling.inclusion import broken_counts, broken_rule

__all__ = ["check_consistency"]

# Sums of the same numbers in another order differ by far less.
_ROUNDING = 1e-6
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14
_ONE_BY_ONE = 1 << 20


def check_consistency(transcript: Transcript | LinearTranscript) -> None:
    """Refuse a transcript whose numbers contradict each other.

    Raises:
        FileFormatError: No run recorded them.
    """
    if isinstance(transcript, Transcript):
        _check_inclusion(transcript)
        _check_stated(transcript.facts)
        _check_sampling(transcript)
        _check_schedule(transcript)
        if transcript.finite:
            _check_sums(transcript)
    else:
        _check_linear(transcript)
        if transcript.finite:
            _check_linear_sums(transcript)


def _check_inclusion(transcript: Transcript) -> None:
    """Who was inserted when is the same by canary, by step and in the kept steps."""
    member, steps, kept = transcript.member, transcript.steps, transcript.kept
    if np.any(np.diff(kept) <= 0):
        raise FileFormatError("Expected kept to name each canary once, in order.")
    if np.any(np.isfinite(steps.silent) != np.isfinite(steps.planted_silent)):
        raise FileFormatError("Expected silent and planted_silent of the same steps.")
    planted = transcript.canaries.planted
    by_tensor = np.zeros(steps.planted.shape[1])
    # In blocks: what is as large as the transcript itself takes longer to have than to count.
    for start in range(0, planted.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        if np.any(planted[block].astype(np.bool_) & ~member[block]):
            raise FileFormatError("Expected absent canaries never to be planted.")
        by_tensor += np.bincount(transcript.tensor[block], planted[block], by_tensor.size)
    if not (
        np.array_equal(by_tensor, steps.planted.sum(axis=0))
        and np.array_equal(planted[kept], transcript.kept_planted.sum(axis=0))
    ):
        raise FileFormatError(
            "Expected as many plantings over the steps as over the canaries, got other numbers."
        )


def _check_stated(facts: RunFacts) -> None:
    """The sampling is stated in several facts, which the recorder fills from one scheme."""
    scheme, rate = facts.scheme, facts.sampling_rate
    for name in ("batches", "plantings"):
        drawn = getattr(facts, name)
        # Where only a rate was declared, batches are compared with the accountant's.
        alone = scheme is None and drawn is not None and drawn.scheme.poisson_rate is not None
        if drawn is not None and drawn.scheme != scheme and not alone:
            raise _contradiction(f"facts.{name}.scheme", drawn.scheme, scheme or "a rate alone")
    if scheme is None:
        return
    if rate is not None and not math.isclose(rate, scheme.share, rel_tol=1e-6):
        raise _contradiction("facts.sampling_rate", rate, f"{scheme}: {scheme.share:g}")
    if facts.sampling == "own coin" and facts.poisson != (scheme.poisson_rate is not None):
        raise _contradiction("facts.poisson", facts.poisson, scheme)


def _contradiction(name: str, stated: object, declared: object) -> FileFormatError:
    return FileFormatError(
        f"Expected {name} to be that of the sampling it declares ({declared}), got {stated}: it "
        "was damaged or edited. Load the file that the run wrote."
    )


def _check_sampling(transcript: Transcript) -> None:
    """What was inserted can come from the sampling that the facts state.

    The recorder's own draws follow that and nothing else. A sampler of the training may be broken,
    which is for the audit to say; but what was compared with its scheme are these draws.
    """
    planted, steps, facts = (
        transcript.canaries.planted,
        transcript.number_of_steps,
        transcript.facts,
    )
    total, present = int(planted.sum()), int(np.count_nonzero(transcript.member))
    drawn, law = facts.plantings, facts.own_law
    tested = assumed_poisson(facts.scheme) or drawn is not None
    if law is None and not tested and total:
        raise FileFormatError(
            f"Expected facts.plantings beside a sampler that draws by {facts.scheme}, got none: it "
            "was damaged or edited. Load the file that the run wrote."
        )
    if drawn is not None and (drawn.steps, drawn.records, drawn.drawn) != (steps, present, total):
        raise FileFormatError(
            f"Expected facts.plantings to be the {total:,} of {present:,} "
            f"present canaries in {steps:,} steps, got {drawn.drawn:,} of {drawn.records:,} in "
            f"{drawn.steps:,}: it was damaged or edited. Load the file that the run wrote."
        )
    if law is None:
        return
    shown = transcript.kept_planted[:, transcript.member[transcript.kept]]
    broken = broken_counts(law, planted, steps, transcript.member) or broken_rule(law, shown)
    if broken:
        raise FileFormatError(
            f"Expected plantings by {law}, as the facts declare, got {broken}: it was damaged "
            "or edited. Load the file that the run wrote."
        )


def _check_schedule(transcript: Transcript) -> None:
    """Declared noise that the recorder would not have taken."""
    declared = transcript.steps.noise_multiplier
    some = declared[declared > 0.0]
    for values in (some, transcript.schedule):
        if values.size and not (
            values.min() >= _validate.SMALLEST and values.max() <= _validate.LARGEST
        ):
            raise FileFormatError(
                f"Expected steps.noise_multiplier 0 or in [{_validate.SMALLEST:g}, "
                f"{_validate.LARGEST:g}], by itself and by the first, got {some.min():g} to "
                f"{some.max():g}."
            )


def _check_sums(transcript: Transcript) -> None:
    """Sums of a finite run are finite, and agree over steps and canaries."""
    sums, steps = transcript.canaries, transcript.steps
    largest = _validate.LARGEST
    for name, values, most in (
        ("kept_values", transcript.kept_values, largest),
        ("canaries.lag", sums.lag, largest**2),
        ("steps.planted_total", steps.planted_total, largest),
        ("steps.total", steps.total, largest),
        ("steps.planted_square", steps.planted_square, largest**2),
        ("steps.square", steps.square, largest**2),
    ):
        if not _validate.is_within(values, most):
            raise FileFormatError(
                f"Expected {name} of a run that released finite numbers to be some within "
                f"{most:g}, got others."
            )
    for name in ("least", "most", "planted_least", "planted_most", "carried"):
        values = getattr(steps, name)
        if not _validate.is_within(values[~np.isnan(values)]):
            raise FileFormatError(f"Expected steps.{name} within {largest:g}, got others.")
    for low, high in (("least", "most"), ("planted_least", "planted_most")):
        if np.any(getattr(steps, low) > getattr(steps, high)):
            raise FileFormatError(f"Expected steps.{low} <= steps.{high}, got more.")
    length, count = transcript.number_of_steps, transcript.member.size
    _check_squares("canaries.planted_square", sums.planted_total, sums.planted_square, sums.planted)
    _check_squares(
        "canaries.other_square", sums.other_total, sums.other_square, sums.planted, length
    )
    _check_squares("canaries.square", sums.total, sums.square, length)
    _check_squares("steps.square", steps.total, steps.square, count)
    _check_squares("steps.planted_square", steps.planted_total, steps.planted_square, steps.planted)
    for name in ("least", "most"):
        values = getattr(steps, name)
        _check_part(f"steps.{name}", values**2, "canaries.other_square", sums.other_square.sum())
    square = float(sums.square.sum())
    planted = float(sums.planted_square.sum())
    _check_agreement("squares", float((steps.square + steps.planted_square).sum()), square, square)
    _check_agreement("planted squares", float(steps.planted_square.sum()), planted, planted)
    # Totals cancel: what is lost of them is relative to the sizes of what was summed.
    size = float(np.sqrt(square) * np.sqrt(length * count))
    total = float((steps.total + steps.planted_total).sum())
    _check_agreement("totals", total, float(sums.total.sum()), size)
    _check_agreement(
        "planted totals", float(steps.planted_total.sum()), float(sums.planted_total.sum()), size
    )


def _check_linear(transcript: LinearTranscript) -> None:
    """What is said of canaries and of the mechanism fits together."""
    if np.any(np.diff(transcript.kept) <= 0) or transcript.member[transcript.kept].any():
        raise FileFormatError("Expected kept to name absent canaries once each, in order.")
    # No record's score moves further than that of the one protected least.
    information, most = transcript.information, transcript.largest_information
    largest = float(information.max())
    if not largest <= most * (1 + 1e-9) < math.inf:
        raise FileFormatError(
            f"Expected information in [0, {most:g}], the largest one, got {information.min():g} to "
            f"{largest:g}."
        )
    present = int(np.count_nonzero(transcript.member))
    planted = transcript.pieces.planted
    if planted is not None and planted.size and planted.max() > present:
        raise FileFormatError(
            f"Expected pieces.planted in [0, {present}], got {planted.min()} to {planted.max()}."
        )


def _check_linear_sums(transcript: LinearTranscript) -> None:
    """Sums over pieces and canaries of a finite run agree."""
    pieces, absent = transcript.pieces, ~transcript.member
    _check_squares("pieces.square", pieces.total, pieces.square, int(np.count_nonzero(absent)))
    kept = np.square(transcript.kept_values)
    _check_part("kept_values", kept.sum(axis=1), "pieces.square", pieces.square)
    if transcript.leaf_square is not None:
        # No record meets more noise than all rows have together.
        _check_part("leaf_square", transcript.leaf_square, "kept_values", kept.sum())
    if pieces.signal is not None and pieces.gain is not None:
        _check_part("pieces.signal", np.square(pieces.signal), "pieces.gain", pieces.gain)
    planted, planted_square = pieces.planted, pieces.planted_square
    if planted is not None and planted_square is not None:
        nothing = np.where(planted, np.inf, 0.0)
        _check_part("pieces.planted_square", planted_square, "pieces.planted", nothing)
    if (noise := transcript.noise_square) is None:
        return
    _check_part("kept_values", kept.sum(axis=0), "noise_square", noise[transcript.kept])
    square = float(noise[absent].sum())
    _check_agreement("squares of absent canaries", float(pieces.square.sum()), square, square)
    if planted_square is not None:
        whole = noise[transcript.member].sum()
        _check_part("pieces.planted_square", planted_square.sum(), "noise_square", whole)
    # A score is what presence adds and a weighted mean of its noise, the weights of norm one.
    information = transcript.information
    off = np.square(transcript.score - information * transcript.member)
    slack = np.square(_ROUNDING * information)
    _check_part("score", off, "noise_square", np.where(information, noise + slack, 0.0))


def _check_agreement(name: str, found: float, expected: float, size: float) -> None:
    """Refuse a sum over the steps that is not the one over the canaries, but for rounding."""
    if not abs(found - expected) <= _ROUNDING * size + DUST:
        raise FileFormatError(
            f"Expected {name} over the steps to be {expected:.6g}, as over the canaries, got "
            f"{found:.6g}."
        )


def _check_part(name: str, part: Any, of: str, whole: Any) -> None:
    """Refuse squares that are more than those they are a part of."""
    if np.any(part > (1.0 + _ROUNDING) * whole + DUST):
        raise FileFormatError(f"Expected {name} to be no more than {of} allows, got more.")


def _check_squares(
    name: str, total: NDArray[Any], square: NDArray[Any], count: Any, of: int | None = None
) -> None:
    """Refuse sums of squares that are smaller than the sums themselves allow.

    Args:
        name: What the sums are called.
        total: Sums.
        square: Sums of squares.
        count: How many numbers each is the sum of; or, of so many, how many it leaves out.
        of: How many there are.
    """
    total, square = total.ravel(), square.ravel()
    if total.size > _ONE_BY_ONE:
        # All together, in a fraction of the time: one canary among so many moves nothing.
        counts = np.broadcast_to(np.ravel(count), total.size)
        counted = sum(
            float(np.dot(square[start : start + _BLOCK], counts[start : start + _BLOCK]))
            for start in range(0, total.size, _BLOCK)
        )
        most = counted if of is None else of * float(square.sum()) - counted
        few = bool(float(np.dot(total, total)) > (1.0 + _ROUNDING) * most + total.size * DUST)
    else:
        summed = np.ravel(count) if of is None else of - np.ravel(count)
        few = bool(np.any(total**2 > summed * ((1.0 + _ROUNDING) * square + DUST)))
    if few:
        raise FileFormatError(
            f"Expected {name} to be at least the square of its sum over their number, got less."
        )
