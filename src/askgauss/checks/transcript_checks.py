"""Checks that read the transcript: every part of the mechanism, next to what was claimed."""

from __future__ import annotations

from collections.abc import Iterator

from askgauss.checks.accountant import committed_claim, declared_checks
from askgauss.checks.adaptive_clipping import clip_count_checks
from askgauss.checks.context import Context
from askgauss.checks.federated_rounds import round_checks
from askgauss.checks.findings import fact
from askgauss.checks.noise_reuse import in_row, in_step, reused_noise, reused_where_seen
from askgauss.checks.noise_scale import noise_checks
from askgauss.checks.predictable_noise import predictable_noise
from askgauss.checks.record_mixing import mixed_records
from askgauss.checks.released_rows import noise_row_checks
from askgauss.checks.signal import signal_checks
from askgauss.checks.step_invariants import recording_checks, step_checks, weight_checks
from askgauss.checks.trained_rows import row_checks
from askgauss.checks.watched_coordinates import noise_by_itself, watched_coordinates
from askgauss.claims import PrivacyClaim
from askgauss.recording.transcript import Transcript
from askgauss.results import Consequence, Finding

__all__ = ["transcript_checks"]


def transcript_checks(transcript: Transcript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check that a transcript allows."""
    yield fact(
        "finite gradients",
        not transcript.finite,
        "every released number was finite."
        if transcript.finite
        else "nan, infinite or larger than 1e140: such values were released.",
        consequence=Consequence.INVALIDATES,
        remedy="Find where they come from: nothing can be said of such a run.",
    )
    if transcript.facts.rows is not None:
        yield from row_checks(Context(transcript, claim), transcript.facts.rows)
    if transcript.facts.mixing is not None:
        yield mixed_records(transcript.facts.mixing)
    if transcript.facts.noise_rows is not None:
        yield from noise_row_checks(transcript.facts.noise_rows)
    if transcript.facts.reuse is not None:
        apart = transcript.facts.noise_rows is not None
        place = in_row if apart else in_step(transcript.facts.tensors)
        yield reused_noise(transcript.facts.reuse, place)
    if transcript.finite:
        if (misread := watched_coordinates(transcript)) is not None:
            yield misread
        context = Context(noise_by_itself(transcript), claim)
        of_noise = tuple(noise_checks(context))
        if transcript.facts.reuse is None:
            found = reused_where_seen(context, of_noise)
            yield from () if found is None else (found,)
        yield from of_noise
        yield from signal_checks(Context(transcript, claim))
    yield from predictable_noise(transcript.facts.seed_probe)
    yield from declared_checks(transcript.facts, claim)
    yield from committed_claim(transcript.facts, claim)
    if transcript.facts.weights is not None:
        yield from weight_checks(transcript.facts.weights)
    if transcript.facts.witness is not None:
        costs = Context(transcript, claim).epsilon_by_sensitivity if transcript.finite else None
        yield from step_checks(transcript.facts.witness, transcript.facts.settings, costs)
    yield from recording_checks(transcript.facts)
    if transcript.facts.clip_count is not None and transcript.finite:
        yield from clip_count_checks(Context(transcript, claim), transcript.facts.clip_count)
    if transcript.facts.rounds is not None:
        yield from round_checks(transcript.facts.rounds, claim, Context(transcript, claim))
