"""The noise by itself, at coordinates nobody is planted at, where the rest of the run hides it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from askgauss.canaries import DiracCanaries
from askgauss.checks.findings import fact
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript
from askgauss.results import Consequence, Finding

__all__ = ["noise_by_itself", "watched_coordinates"]


def noise_by_itself(transcript: Transcript) -> Transcript:
    """The transcript that checks of the noise shall read: of watched coordinates, if need be.

    Along the gradients of examples, and wherever the background is unknown, other records hide the
    noise. Watched coordinates may be free of them all the same: what a step released there, less
    the sum that the noise was added to. They are read like absent canaries.
    """
    facts, values = transcript.facts, transcript.watch_values
    if facts.background == "known" or facts.watch_background != "known" or values.shape[1] < 2:
        return transcript
    tensors, sizes = np.unique(transcript.watch_tensor, return_counts=True)
    places = DiracCanaries(
        present=0, absent=values.shape[1], tensors=tuple(sizes.tolist()), seed=facts.seed or 0
    )
    # Canaries lie at all of these coordinates, and the coordinates come tensor by tensor.
    columns = np.argsort(transcript.watch_tensor, kind="stable")[places.coordinates]
    recorder = Recorder(places, sampling_rate=1.0)
    for row, clip_norm, noise in zip(
        values, transcript.steps.clip_norm, transcript.steps.noise_multiplier, strict=True
    ):
        recorder.sample()
        recorder.observe(
            row[columns] * clip_norm,
            background=0.0,
            clip_norm=float(clip_norm),
            noise_multiplier=None if np.isnan(noise) else float(noise),
        )
    names = facts.tensors
    seen = tuple(names[index] if index < len(names) else f"tensor {index}" for index in tensors)
    return recorder.transcript().with_facts(
        replace(facts, background="known", sampling="own coin", tensors=seen)
    )


def watched_coordinates(transcript: Transcript) -> Finding | None:
    """Whether watched coordinates read zero while canaries do not: the reading is at fault, too."""
    values, absent = transcript.watch_values, ~transcript.member
    silent = values.size > 0 and not values.any()
    noisy = absent.any() and bool((transcript.canaries.square[absent] > 0.0).all())
    if not (silent and noisy and transcript.facts.background == "known"):
        return None
    return fact(
        "watched coordinates",
        True,
        f"all {values.shape[1]:,} watched coordinates read exactly zero in every step, and "
        "canaries do not.",
        consequence=Consequence.INVALIDATES,
        measured=0.0,
        remedy="Copy the clean values before the noise is added: noise added in place changes "
        "both. Or noise is added at the canaries only.",
    )
