"""Streaming tree noise against fresh Gaussian noise of the same size, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from askgauss.mechanisms.tree import TreeNoise, numpy_draw

PARAMETERS = 1_000_000
BLOCK = 16
ROUNDS = 8
LONG_RUN = 10_000


def rows() -> Iterator[tuple[str, str]]:
    fresh_draw = numpy_draw(np.random.default_rng(0), PARAMETERS)
    buffer = fresh_draw(None)
    trees = {
        name: TreeNoise(
            numpy_draw(np.random.default_rng(1), PARAMETERS), steps=ROUNDS * BLOCK, estimator=name
        )
        for name in ("plain", "honaker")
    }
    fresh: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in trees}
    # Rounds in turn, so that a busy moment of the machine meets all three alike.
    for _ in range(ROUNDS):
        fresh.append(_seconds(lambda: fresh_draw(buffer)))
        for name, noise in trees.items():
            spent[name].append(_seconds(noise.next))
    base = statistics.median(fresh)
    yield f"fresh noise, {PARAMETERS:,} parameters", f"{1e3 * base:.2f} ms a step"
    for name, target in (("plain", 2.2), ("honaker", 3.5)):
        ratios = [tree / plain for tree, plain in zip(spent[name], fresh, strict=True)]
        measured = f"{statistics.median(ratios):.2f} x fresh noise (target <= {target})"
        yield f"{name} tree noise, amortised", measured
    limit = np.log2(LONG_RUN) + 2.0
    for name in ("plain", "honaker"):
        measured = f"{_most_buffers(name)} (target <= {limit:.1f})"
        yield f"{name} tree, live buffers in {LONG_RUN:,} steps", measured


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - start) / BLOCK


def _most_buffers(estimator: str) -> int:
    """The most arrays ever alive at once, counted where they are made."""
    made = 0
    draw = numpy_draw(np.random.default_rng(2), 1)

    def counting(out: object) -> object:
        nonlocal made
        made += out is None
        return draw(out)

    noise = TreeNoise(counting, steps=LONG_RUN, estimator=estimator)
    for _ in range(LONG_RUN):
        noise.next()
    return made


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what:50} {measured}")
