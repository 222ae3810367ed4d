"""Noise that is reused anywhere in the run, and noise that anybody can draw again from its seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.checks.context import Context
from askgauss.checks.registry import NOISE_FRESHNESS, check, fact, not_run
from askgauss.recording.facts import RunFacts, SeedProbe
from askgauss.recording.noise_sample import WIDTH, NoiseSample, ReuseFacts
from askgauss.results import Consequence, Finding

__all__ = [
    "FEWEST",
    "Candidates",
    "ComparedNoise",
    "compared_by_content",
    "found_again",
    "in_row",
    "in_step",
    "likely_seeds",
    "noise_reused",
    "numpy_candidates",
    "predictable_noise",
    "repeated_exactly",
    "reused_where_seen",
    "try_seeds",
]

Candidates = tuple[str, NDArray[np.int64], NDArray[np.float64]]
"""A way to draw noise from a seed, the seeds tried, and one row of noise for each."""

# Values used again of which three are kept, with all their neighbours, nearly always.
_SURELY = 16
_FEWEST = 64
# Steps that are compared where only some coordinates are seen; a few tenths of a second.
_MOST_STEPS = 4096
_SHORT = ("bfloat16", "float16")
_REMEDY = (
    "Draw fresh noise for every coordinate of every step: use one generator that is never seeded "
    "again, or a separate key for every tensor and step (split it; do not add step and layer)."
)
# Fewer readings than these may resemble a generator's by chance.
FEWEST = 16
# Rounding, and what was subtracted, leave this much likeness; unrelated noise has it about once in
# 10^12 pairs of 16 numbers.
_SAME = 0.995
_PLAIN = 1024
_WITH_SEED = re.compile(r"\(\d+\)")
_CUSTOMARY = (
    *(1234, 1337, 2000, *range(2020, 2027), 3407, 4242, 12345, 31337, 42424242),
    *(99999, 123456, 1234567, 12345678, 123456789, 1234567890, 20240101),
    *(0xC0FFEE, 0xDEADBEEF & 0x7FFFFFFF, 2**31 - 1, 2**32 - 1),
)
_SEEDED = (
    " torch.manual_seed was called in this process, and noise comes from the same generator: draws "
    "between the two cannot be followed. Use a generator for the noise that nothing seeds."
)


def compared_by_content(reuse: ReuseFacts | None) -> bool:
    """Whether all noise of the run was compared with itself."""
    return reuse is not None and reuse.kept > 0 and not reuse.coarse


def repeated_exactly(reuse: ReuseFacts | None) -> bool:
    """Whether noise came back at the same coordinates, which then needs no other test."""
    return reuse is not None and reuse.in_runs and not reuse.elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNoise:
    """Noise values that were sampled by their content and compared with each other.

    Attributes:
        reuse: What was found.
        place: Step, tensor and position in words.
    """

    reuse: ReuseFacts
    place: Callable[[Sequence[int]], str]


@check(
    "noise reused at other coordinates",
    part=NOISE_FRESHNESS,
    decides=True,
    explains="noise of related nodes, noise after restarts, serial correlation, repeated noise, "
    "whole-run correlation, noise spectrum, shared noise, common noise, noise by "
    "coordinate, noise by tensor, noise extremes, noise scale, noise shape, noise by "
    "step, values without noise, even contribution, carry-over, duplicate scores",
    after_resume=True,
)
def noise_reused(compared: ComparedNoise) -> Finding | None:
    """Whether any noise was used again; at the same coordinates it is repeated noise."""
    reuse = compared.reuse
    if reuse.coarse:
        return not_run("noise of full float precision, in which no two values are equal")
    if not reuse.kept:
        return not_run("float32 or float64 noise that is added to the clipped sum")
    if repeated_exactly(reuse):
        return None
    smallest = max(_FEWEST, math.ceil(_SURELY * reuse.values / reuse.kept))
    return found_again(
        compared,
        sees=f"{smallest:,} of {reuse.values:,} noise values reused anywhere in "
        f"{_percent(reuse.share)} of the model, or values read singly from a table of up to "
        f"{_rounded_down(reuse.table):,} entries",
    )


def found_again(
    compared: ComparedNoise, *, sees: str = "", visible: float | None = None
) -> Finding:
    """Whether noise values occur again, and where."""
    reuse = compared.reuse
    return fact(
        reuse.in_runs or reuse.by_value,
        _found(reuse, compared.place),
        consequence=Consequence.BREACH,
        measured=float(reuse.matches),
        claimed=0.0,
        remedy=_REMEDY,
        sees=sees,
        visible=visible,
    )


@noise_reused.variant
def reused_where_seen(context: Context) -> Finding | None:
    """The same where only watched coordinates and held-out canaries show the noise.

    Tensors of one size are watched at equal positions, so that noise of one that is used again in
    another, in whatever step, is the same row of numbers. Values that occur again at other places
    than these show where both places are seen.
    """
    if not context.exact:
        return None
    reuse, columns = _compared_where_seen(context)
    if repeated_exactly(reuse):
        return None
    share = min(1.0, columns / (context.facts.places or math.inf))
    # Equal values are expected on a grid, as of sums of whole numbers, or in a short format.
    short = any(name in _SHORT for name in context.facts.precision)
    reuse = replace(reuse, share=share, coarse=reuse.coarse or short or context.lattice > 0.0)
    compared = ComparedNoise(reuse=reuse, place=in_step(context.facts.tensors))
    if reuse.coarse or not reuse.kept:
        return noise_reused(compared)
    return found_again(
        compared,
        sees=f"noise reused among the {columns:,} observed coordinates"
        f"{_of_first(context.transcript.number_of_steps)}, {_percent(share)} of the model",
        visible=1.0 - share,
    )


def _compared_where_seen(context: Context) -> tuple[ReuseFacts, int]:
    """Noise of coordinates without an included canary, compared with itself, and their number."""
    values, tensor = context.quiet
    values = values[:_MOST_STEPS, np.argsort(tensor, kind="stable")]
    sizes = np.bincount(tensor, minlength=1)
    sample = NoiseSample(sizes.tolist())
    rows, tensors = _watched_rows(context)
    for step, row in enumerate(values):
        sample.add_row(row, step)
        if tensors.size:
            # One place a tensor: where its columns begin.
            place = np.cumsum([0, *sizes])[tensors]
            sample.add(rows[step], step=step, place=place, leads=tensors.size)
    return sample.facts(), values.shape[1]


def _of_first(steps: int) -> str:
    return f" in the first {_MOST_STEPS:,} steps" if steps > _MOST_STEPS else ""


def _watched_rows(context: Context) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sizes of the first eight watched values of every tensor, as windows, and their tensors."""
    transcript = context.transcript
    values = np.abs(transcript.watch_values[:_MOST_STEPS])
    values /= context.schedule[: len(values), None]
    watched = transcript.watch_tensor[: values.shape[1]]
    tensors, first, count = np.unique(watched, return_index=True, return_counts=True)
    whole = count >= WIDTH - 1
    # The middle of a window is its first value once more.
    order = np.insert(np.arange(WIDTH - 1), WIDTH // 2, 0)
    return values[:, first[whole][:, None] + order], tensors[whole]


def _found(reuse: ReuseFacts, place: Callable[[Sequence[int]], str]) -> str:
    if reuse.in_runs:
        places = [place(item) for item in (reuse.first, reuse.again)]
        where = "at other coordinates" if reuse.elsewhere else "at the same coordinates"
        return (
            f"{reuse.matches:,} of {reuse.kept:,} sampled noise values occur again {where}, with "
            f"the same neighbours: noise of {places[0]} was reused in {places[1]}."
        )
    if reuse.by_value and reuse.by_place:
        return (
            f"noise of one coordinate was reused at another {_steps(reuse.places_lag)} later, "
            f"{reuse.places_equal:,} times: values are reused in another order."
        )
    if reuse.by_value and reuse.by_lag:
        steps = f"that are {_steps(reuse.lag)} apart" if reuse.lag else "of the same step"
        return (
            f"{reuse.lag_equal:,} pairs of equal noise values {steps}, "
            f"{reuse.lag_nearly / 15.0:,.1f} expected: values are reused in another order."
        )
    if reuse.by_value:
        chance = reuse.nearly / 15.0
        return (
            f"{reuse.equal:,} pairs of equal noise values, {chance:,.0f} expected: values are "
            "reused in another order, or read from a table."
        )
    return (
        f"no noise was reused: {reuse.kept:,} of {reuse.values:,} noise values, in "
        f"{_percent(reuse.share)} of the model, were compared with each other."
    )


def in_step(tensors: Sequence[str]) -> Callable[[Sequence[int]], str]:
    """Places of a run with independent noise in every step."""

    def place(found: Sequence[int]) -> str:
        step, tensor, _ = found
        name = tensors[tensor] if 0 <= tensor < len(tensors) else f"tensor {tensor}"
        return f"step {step + 1:,} in {name}"

    return place


def in_row(found: Sequence[int]) -> str:
    """Places of correlated noise that was decorrelated."""
    return f"row {found[0]} of the strategy"


def _steps(number: int) -> str:
    return f"{number:,} step{'s' * (number != 1)}"


def _rounded_down(number: int) -> int:
    """To one digit."""
    unit = int(10 ** (len(str(number)) - 1))
    return number // unit * unit


def _percent(share: float) -> str:
    """A share rounded down, so that a part is never called the whole."""
    return f"{math.floor(100.0 * share):d} %" if share >= 0.01 else "less than 1 %"


# --- noise from a likely seed: how a framework gets from a seed to the noise of a tensor lives with
# its integration; here are the seeds, numpy's generators and the comparison


def likely_seeds(own: Iterable[int | None] = ()) -> NDArray[np.int64]:
    """Seeds that an adversary would try first: small numbers, common ones, and the run's own.

    Args:
        own: Seeds that the run uses for something else.
    """
    given = [int(seed) for seed in own if seed is not None and 0 <= int(seed) < 2**63]
    return np.array(list(dict.fromkeys([*range(_PLAIN), *_CUSTOMARY, *given])), dtype=np.int64)


def numpy_candidates(
    places: NDArray[np.int64], seeds: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64]]]:
    """What numpy's generators give from each seed, drawn as one flat array.

    Args:
        places: Positions in the array to look at.
        seeds: Seeds to try.

    Yields:
        The way, the seeds, and one row of numbers for each of them.
    """
    size = int(places.max()) + 1

    def modern(seed: int) -> NDArray[Any]:
        return np.random.default_rng(seed).standard_normal(size)

    def single(seed: int) -> NDArray[Any]:
        return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)

    def legacy(seed: int) -> NDArray[Any]:
        return np.random.RandomState(seed % 2**32).standard_normal(size)

    for way, draw in (
        ("numpy.random.default_rng", modern),
        ("numpy.random.default_rng in single precision", single),
        ("numpy.random.seed", legacy),
    ):
        rows = [draw(seed)[places] for seed in seeds.tolist()]
        yield way, seeds, np.array(rows, dtype=np.float64)


def try_seeds(noise: NDArray[np.float64], candidates: Iterable[Candidates]) -> SeedProbe:
    """Compare the first released noise with what seeds give, in any scale.

    Args:
        noise: Released noise at some places.
        candidates: Ways, seeds and the noise each of these gives at the same places.

    Examples:
        >>> places = np.arange(0, 100, 3)
        >>> noise = 7.0 * np.random.default_rng(42).standard_normal(100)[places]
        >>> try_seeds(noise, numpy_candidates(places, likely_seeds())).found
        'numpy.random.default_rng(42)'
    """
    if noise.size < FEWEST or not np.isfinite(noise).all() or not np.ptp(noise) > 0.0:
        return SeedProbe(tried=0)
    unit = noise / np.linalg.norm(noise)
    tried, ways = 0, []
    for way, seeds, noises in candidates:
        ways.append(way)
        tried = max(tried, seeds.size)
        lengths = np.linalg.norm(noises, axis=1)
        same = np.flatnonzero((noises @ unit > _SAME * lengths) & (lengths > 0.0))
        if same.size:
            name = way.partition(":")[0]
            rest = way[len(name) :].replace(":", ",", 1)
            found = f"{name}({seeds[same[0]]}){rest}"
            return SeedProbe(tried=tried, ways=tuple(ways), found=found)
    return SeedProbe(tried=tried, ways=tuple(ways))


@check("predictable noise", part=NOISE_FRESHNESS)
def predictable_noise(facts: RunFacts) -> Finding | None:
    """Whether the first noise comes from a common seed."""
    probe = facts.seed_probe
    if probe is None:
        return None
    if not probe.tried:
        return not_run(f"the first noise of a tensor at {FEWEST} places or more")
    # The way, not the seed, which would give every reader of the result the noise.
    way = _WITH_SEED.sub("", probe.found, count=1)
    return fact(
        bool(probe.found),
        f"the noise comes from one of {probe.tried:,} common seeds of {way}: an adversary who "
        "tries them knows all noise."
        if probe.found
        else f"the noise does not come from any of {probe.tried:,} common seeds, tried in "
        f"{len(probe.ways)} ways.{_SEEDED if probe.seeded else ''}",
        consequence=Consequence.BREACH,
        measured=float(bool(probe.found)),
        claimed=0.0,
        remedy="Draw the key from the operating system (secrets.randbits(63)), and keep it secret. "
        "The transcript states the seed that was found: facts.seed_probe.found.",
    )
