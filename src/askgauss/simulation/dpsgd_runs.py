"""Exact simulations of audited runs, without a model or data."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.checks.scope import AFTER_CLIPPING, INPUT_SPACE
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript
from askgauss.scores import CanaryScores
from askgauss.simulation.dpsgd_parts import DPSGDMechanism, SimulatedRun
from askgauss.simulation.faults import Fault, find_fault

__all__ = ["check_canaries", "check_work", "simulate_dpsgd", "simulate_scores"]

# Of one simulation: what fits into memory, and what is gone through in a minute or two.
_MOST_CANARIES = 10**7
_MOST_STEPS = 2 * 10**6
_MOST_NUMBERS = 10**9


def simulate_dpsgd(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int,
    fault: str | Fault | None = None,
    canaries: Literal["own coin", "data path", "spread"] | None = None,
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
        fault: A part of the mechanism to break, by name (`askgauss.simulation.FAULTS`) or as an
            object. The arguments above are then what the run claims.
        canaries: What canaries go through: with ``"own coin"`` the recorder samples them and adds
            them to the clipped sum; on the ``"data path"`` they are records, sampled and clipped
            by the simulated training, and ``"spread"`` ones have gradients that reach into four
            tensors. If not given, the first that meets the fault.

    Raises:
        InvalidArgumentError: An argument is out of its range, or there is no such fault.

    Examples:
        >>> simulate_dpsgd(steps=5, sampling_rate=0.5, noise_multiplier=1.0,
        ...                present=10, absent=20, seed=0)
        Transcript(steps=5, present=10, absent=20, background='known')
        >>> run = simulate_dpsgd(steps=5, sampling_rate=0.5, noise_multiplier=1.0,
        ...                      present=10, absent=20, seed=0, fault="no-noise")
        >>> float(run.canaries.square[~run.member].max())
        0.0
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    check_work(steps, present + absent, "canaries")
    broken = find_fault(fault)
    path = canaries or ("own coin" if broken is None else broken.canaries)
    _validate.one_of(("own coin", "data path", "spread"), canaries=path)
    own_draws = path == "own coin"
    several = broken is not None and broken.several_tensors
    run = SimulatedRun.begin(
        _placed(present, absent, seed, several=several, spread=path == "spread"),
        steps=steps,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        clip_norm=1.0 if broken is None else broken.clip_norm,
    )
    recorder = Recorder(
        run.canaries,
        sampling_rate=sampling_rate if own_draws else None,
        clip_norm=run.clip_norm,
        noise_multiplier=noise_multiplier,
    )
    mechanism = DPSGDMechanism() if broken is None else broken.apply(DPSGDMechanism())
    mechanism.record(run, recorder, own_draws=own_draws)
    recorded = recorder.transcript()
    facts = replace(
        recorded.facts,
        places=None,  # no model has a size here
        # The recorder cannot know how another sampler works; this run claims that it is Poisson.
        poisson=True,
        accounted_steps=min(recorded.number_of_steps, steps),
        accounted_sampling_rate=sampling_rate,
        exercised=AFTER_CLIPPING if own_draws else INPUT_SPACE,
        # No run of its own: the same seed gives the same transcript, to the byte.
        run=None,
    )
    return recorded.with_facts(facts)


def _placed(
    present: int, absent: int, seed: int, *, several: bool, spread: bool
) -> DiracCanaries | BlockCanaries:
    """Canaries with a little room around them, in one tensor or in as many as are needed."""
    count = present + absent
    if spread:
        quarter = count + 32
        return BlockCanaries(
            present=present, absent=absent, tensors=(quarter,) * 4, block=4, seed=seed
        )
    if several:
        half = count // 2 + 32
        return DiracCanaries(present=present, absent=absent, tensors=(half, half, 32), seed=seed)
    return DiracCanaries(present=present, absent=absent, dimension=count + 32, seed=seed)


def simulate_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int | np.random.Generator,
) -> CanaryScores:
    """Only the scores of such a run, one draw per canary: the same distribution, far faster.

    Examples:
        >>> simulate_scores(steps=2500, sampling_rate=0.08, noise_multiplier=2.6,
        ...                 present=50, absent=70, seed=0)
        CanaryScores(present=50, absent=70)
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    if not isinstance(seed, np.random.Generator):
        _validate.integer(0, seed=seed)
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
    _validate.count(steps=steps)
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    check_canaries(present, absent)


def check_canaries(present: int, absent: int) -> None:
    """Refuse numbers of canaries that no simulation has memory for."""
    _validate.count(1, maximum=_MOST_CANARIES, present=present)
    _validate.count(2, maximum=_MOST_CANARIES, absent=absent)


def check_work(steps: int, numbers: int, name: str) -> None:
    """Refuse runs that would take hours to simulate."""
    hint = "Simulate a shorter or a smaller run; simulate_scores draws the scores alone."
    _validate.count(maximum=_MOST_STEPS, hint=hint, steps=steps)
    _validate.count(maximum=_MOST_NUMBERS, hint=hint, **{f"steps * {name}": steps * numbers})
