"""Noise that anybody can draw again: generators started from a likely seed.

Noise from ``key(0)`` has every property of good noise, and protects nothing: whoever tries zero
knows it. The first released noise is compared with what the likely seeds give. How a framework gets
from a seed to the noise of a tensor is its own, and lives with its integration; here are the seeds,
numpy's generators and the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.checks.findings import fact, not_run
from askgauss.checks.registry import NOISE_FRESHNESS, check
from askgauss.recording.facts import RunFacts, SeedProbe
from askgauss.results import Consequence, Finding

__all__ = [
    "FEWEST",
    "Candidates",
    "likely_seeds",
    "numpy_candidates",
    "predictable_noise",
    "try_seeds",
]

Candidates = tuple[str, NDArray[np.int64], NDArray[np.float64]]
"""A way to draw noise from a seed, the seeds tried, and one row of noise for each."""

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
    "between the two cannot be followed. Give the noise a generator that nobody seeds."
)


def likely_seeds(own: Iterable[int | None] = ()) -> NDArray[np.int64]:
    """Seeds that somebody would try: small numbers, customary ones, and the run's own.

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
    """Whether the first noise is one that a likely seed gives."""
    probe = facts.seed_probe
    if probe is None:
        return None
    if not probe.tried:
        return not_run(f"the first noise of a tensor at {FEWEST} places or more")
    # The way, not the seed: whoever reads a result would know all noise by it.
    way = _WITH_SEED.sub("", probe.found, count=1)
    return fact(
        bool(probe.found),
        f"the first noise is that of one of {probe.tried:,} likely seeds of {way}: whoever tries "
        "them knows all noise to come."
        if probe.found
        else f"the first noise is none that {probe.tried:,} likely seeds give in "
        f"{len(probe.ways)} ways.{_SEEDED if probe.seeded else ''}",
        consequence=Consequence.BREACH,
        measured=float(bool(probe.found)),
        claimed=0.0,
        remedy="Draw the key from the operating system (secrets.randbits(63)), and keep it secret. "
        "The transcript names the seed that was found: facts.seed_probe.found.",
    )
