"""Exact simulations of audited runs, without a model or data."""

from __future__ import annotations

import numpy as np

from askgauss import _validate
from askgauss.canaries import DiracCanaries, Stream, random_stream
from askgauss.recorder import Recorder
from askgauss.scores import CanaryScores
from askgauss.transcript import Transcript

__all__ = ["simulate_dpsgd", "simulate_scores"]


def simulate_dpsgd(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int,
) -> Transcript:
    """A DP-SGD run with canaries, step by step through the recorder.

    Each step plants every present canary with probability ``sampling_rate`` and adds Gaussian noise
    of standard deviation ``noise_multiplier`` to every coordinate; there are no other records.

    Args:
        steps: Number of steps.
        sampling_rate: Poisson sampling rate.
        noise_multiplier: Noise standard deviation, in units of the clip norm.
        present: Number of present canaries.
        absent: Number of absent canaries.
        seed: Root of every random choice.

    Example:
        >>> simulate_dpsgd(steps=5, sampling_rate=0.5, noise_multiplier=1.0,
        ...                present=10, absent=20, seed=0)
        Transcript(steps=5, present=10, absent=20, background='known')
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    canaries = DiracCanaries(
        present=present, absent=absent, dimension=present + absent + 32, seed=seed
    )
    recorder = Recorder(
        canaries, sampling_rate=sampling_rate, clip_norm=1.0, noise_multiplier=noise_multiplier
    )
    noise = random_stream(seed, Stream.NOISE)
    nothing = np.zeros(canaries.size)
    for _ in range(steps):
        vector = noise.standard_normal(canaries.total_dimension)
        vector *= noise_multiplier
        canaries.plant(vector, recorder.sample(), clip_norm=1.0)
        recorder.observe(canaries.project(vector), background=nothing, watch=vector[canaries.watch])
    return recorder.transcript()


def simulate_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int | np.random.Generator,
) -> CanaryScores:
    """Only the scores of such a run, in one draw a canary: the same law, thousands of times faster.

    Example:
        >>> simulate_scores(steps=2500, sampling_rate=0.08, noise_multiplier=2.6,
        ...                 present=50, absent=70, seed=0)
        CanaryScores(present=50, absent=70)
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    generator = np.random.default_rng(seed)
    planted = generator.binomial(steps, sampling_rate, size=present) / np.sqrt(steps)
    return CanaryScores.from_groups(
        present=planted + noise_multiplier * generator.standard_normal(present),
        absent=noise_multiplier * generator.standard_normal(absent),
        steps=steps,
        sampling_rate=sampling_rate,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        background="known",
    )


def _check(
    steps: int, sampling_rate: float, noise_multiplier: float, present: int, absent: int
) -> None:
    _validate.integer(1, steps=steps)
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.integer(1, present=present)
    _validate.integer(2, absent=absent)
