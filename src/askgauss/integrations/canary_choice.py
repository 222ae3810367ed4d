"""Which canaries an audit plants when its user leaves the choice, or part of it, open."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError, UnsupportedError

__all__ = ["choose_canaries", "default_numbers", "warn_of_few_canaries"]

_CANARIES = 5000
_PRESENT = 1000
_PRESENT_ROWS = 32
_BLOCK = 16
# Where nobody says how many steps are planned, so many are taken for granted: as many as epsilon 8
# lasts for, within these.
_SHORT_RUN, _LONG_RUN = 100, 350
# Two unit Gaussians this far apart have epsilon 8 at delta 1e-5.
_DISTANCE = 1.6
# Plantings, in units of the squared noise multiplier, that notice 1.25 times the claim with
# probability .9: from 1,400 to 3,000 give .8 over claims of 1 to 8 and rates of .01 to .1.
_PLANTINGS = 3500.0
_MOST_PRESENT = 2000
# Fewer present canaries than these cannot be compared with absent ones.
_FEWEST = 2


def choose_canaries(
    given: int | DiracCanaries | BlockCanaries | None,
    *,
    sizes: tuple[int, ...],
    records: float,
    rows: bool,
    spread: bool,
    seed: int | None,
    draw_seed: Callable[[], int | None],
    present: int | None = None,
    absent: int | None = None,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    planned_steps: int | None = None,
) -> DiracCanaries | BlockCanaries:
    """The canaries given, checked against the model, or canaries that suit it.

    Args:
        given: Canaries, their number, or None.
        sizes: Sizes of the model's tensors.
        records: About how many records the run trains on.
        rows: Whether each included canary is a whole row of per-example gradients.
        spread: Whether canaries have to reach into several tensors.
        seed: The seed the user gave.
        draw_seed: Where a seed comes from otherwise.
        present: How many are present, where their user says so.
        absent: How many are absent, where their user says so.
        sampling_rate: As for `default_numbers`, like the two that follow.
        noise_multiplier: The noise of a step.
        planned_steps: How many steps the run will take.
    """
    if planned_steps is not None:
        _validate.integer(1, planned_steps=planned_steps)
    if given is not None and (present is not None or absent is not None):
        raise InvalidArgumentError(
            "Expected canaries= or present= and absent=, got both. Say how many in one way."
        )
    if isinstance(given, (DiracCanaries, BlockCanaries)):
        if seed is not None:
            raise _validate.fail("seed", seed, "to be None", "The canaries bring their own.")
        if given.tensor_sizes != sizes:
            raise InvalidArgumentError(
                f"Expected canaries with tensors={list(sizes)}, the sizes of the parameters, got "
                f"{list(given.tensor_sizes)}."
            )
        if spread and not isinstance(given, BlockCanaries):
            raise UnsupportedError(
                "Clipping layer by layer lets through more of a gradient spread over the layers "
                "than of a single coordinate: use BlockCanaries, which are spread, or a number."
            )
        return given
    if given is not None:
        _validate.integer(4, canaries=given)
    if given is None:
        places = sum(sizes) // (_BLOCK if spread else 1)
        usual = default_numbers(
            places,
            records,
            rows=rows,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            planned_steps=planned_steps,
        )
        chosen = present is None and absent is None
        present = usual[0] if present is None else present
        absent = usual[1] if absent is None else absent
        if not chosen:
            _validate.integer(_FEWEST, present=present, absent=absent)
            if present + absent > places:
                raise InvalidArgumentError(
                    f"Expected present + absent to be at most {places:,}, the places for canaries "
                    f"in {sum(sizes):,} trainable parameters, got {present:,} + {absent:,}. Take "
                    "fewer, or use ExampleCanaries."
                )
        if present < _FEWEST:
            raise InvalidArgumentError(
                f"Expected a model with at least {_FEWEST * 4} places for canaries, got {places} "
                f"in {sum(sizes)} trainable parameters: {present} canaries would be present, and "
                f"an audit needs {_FEWEST}. Say how many with canaries=DiracCanaries(present=..., "
                "absent=..., tensors=...), use ExampleCanaries, or audit a larger model."
            )
    root = draw_seed() if seed is None else seed
    if spread:
        return BlockCanaries(
            count=given, present=present, absent=absent, tensors=sizes, seed=root, block=_BLOCK
        )
    return DiracCanaries(count=given, present=present, absent=absent, tensors=sizes, seed=root)


def default_numbers(
    places: int,
    records: float,
    *,
    rows: bool = False,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    planned_steps: int | None = None,
) -> tuple[int, int]:
    """How many present and how many absent canaries.

    A present canary is one more record whose clipped gradient is a single direction: no more than
    a twentieth of the records are. Over a run of epsilon 8, a canary moves a coordinate about one
    and a half standard deviations of what the noise does to it; in a sixteenth of the
    places, canaries move the weights as 8 % more noise would. Beyond a thousand the bound hardly
    gains. Where the planned steps need more of them for a verdict, more are present, up to a
    quarter of the records and a sixth of the places. Absent canaries change nothing; they fill up
    to five thousand, in half of the places at most, which leaves some to watch.

    Args:
        places: How many canaries there is room for.
        records: About how many records the run trains on.
        rows: Whether each included canary costs a whole row of per-example gradients. A twentieth
            of the records is then a twentieth more rows to clip; of an unknown number it is few.
        sampling_rate: Probability that an inserted one is included in a step.
        noise_multiplier: The noise of a step, in clip norms.
        planned_steps: How many steps the run will take; from 100 to 350 where nobody says.

    Examples:
        >>> default_numbers(2_750_000, 50_000), default_numbers(4_810, 1_437)
        ((1000, 4000), (71, 2405))
        >>> run = {"sampling_rate": 0.125, "noise_multiplier": 1.0}
        >>> [default_numbers(4_810, 1_437, **run, planned_steps=steps) for steps in (None, 1000)]
        [(280, 2405), (71, 2405)]
    """
    known = int(min(records, 1e9))
    few = rows and math.isinf(records)
    limit = _PRESENT_ROWS if few else min(_PRESENT, max(8, known // 20))
    present = min(limit, max(8, places // 16), places // 4)
    if not few and sampling_rate and noise_multiplier:
        steps = planned_steps or _steps_taken_for_granted(sampling_rate, noise_multiplier)
        needed = _present_needed(sampling_rate, noise_multiplier, steps)
        present = max(present, min(needed, _MOST_PRESENT, known // 4, places // 6))
    return present, max(min(_CANARIES - present, places // 2), 2)


def _present_needed(sampling_rate: float, noise_multiplier: float, steps: int) -> int:
    """How many present canaries notice 1.25 times the claim, mostly, in so many steps."""
    return math.ceil(_PLANTINGS * noise_multiplier**2 / (sampling_rate * steps))


def _steps_taken_for_granted(sampling_rate: float, noise_multiplier: float) -> int:
    """About how many steps epsilon 8 lasts for, by the central limit theorem, within bounds."""
    spent = math.expm1(min(noise_multiplier**-2, 50.0))
    return int(min(max((_DISTANCE / sampling_rate) ** 2 / spent, _SHORT_RUN), _LONG_RUN))


def warn_of_few_canaries(
    present: int, sampling_rate: float, noise_multiplier: float, planned_steps: int
) -> None:
    """Warn where the planned steps are too few for a verdict with these inserted canaries."""
    needed = _present_needed(sampling_rate, noise_multiplier, planned_steps)
    # A third of what is advised has a power of about one half.
    if noise_multiplier <= 0.0 or present >= math.ceil(needed / 3):
        return
    warnings.warn(
        f"{present:,} inserted canaries are too few for a verdict after {planned_steps:,} steps: "
        f"about {needed:,} are needed. Pass present={needed}, or leave the number to the audit.",
        AskGaussWarning,
        stacklevel=3,
    )
