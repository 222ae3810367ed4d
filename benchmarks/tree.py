"""Streaming correlated noise against fresh Gaussian noise of the same size, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from askgauss.mechanisms.strategies import BufferedToeplitz
from askgauss.mechanisms.strategy import NoiseStream, numpy_draw
from askgauss.mechanisms.tree import Estimator, TreeNoise

PARAMETERS = 1_000_000
BLOCK = 16
ROUNDS = 8
LONG_RUN = 10_000
ESTIMATORS: tuple[Estimator, ...] = ("plain", "honaker")
BUFFERED = BufferedToeplitz(
    decay=[0.999, 0.97, 0.8, 0.3], scale=[0.02, 0.06, 0.15, 0.25], steps=ROUNDS * BLOCK
)


def rows() -> Iterator[tuple[str, str]]:
    fresh_draw = numpy_draw(np.random.default_rng(0), PARAMETERS)
    buffer = fresh_draw(None)
    streams: dict[str, NoiseStream] = {
        f"{name} tree": TreeNoise(
            numpy_draw(np.random.default_rng(1), PARAMETERS), steps=ROUNDS * BLOCK, estimator=name
        )
        for name in ESTIMATORS
    }
    streams["4 buffers (BLT)"] = BUFFERED.stream(numpy_draw(np.random.default_rng(1), PARAMETERS))
    fresh: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in streams}
    # Rounds in turn, so that a busy moment of the machine meets all alike.
    for _ in range(ROUNDS):
        fresh.append(_seconds(lambda: fresh_draw(buffer)))
        for name, noise in streams.items():
            spent[name].append(_seconds(noise.next))
    base = statistics.median(fresh)
    yield f"fresh noise, {PARAMETERS:,} parameters", f"{1e3 * base:.2f} ms a step"
    targets = {"plain tree": " (target <= 2.2)", "honaker tree": " (target <= 3.5)"}
    for name, seconds in spent.items():
        ratios = [stream / plain for stream, plain in zip(seconds, fresh, strict=True)]
        measured = f"{statistics.median(ratios):.2f} x fresh noise{targets.get(name, '')}"
        yield f"{name} noise, amortised", measured
    limit = np.log2(LONG_RUN) + 2.0
    for name in ESTIMATORS:
        measured = f"{_most_buffers(name)} (target <= {limit:.1f})"
        yield f"{name} tree, live buffers in {LONG_RUN:,} steps", measured


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - start) / BLOCK


def _most_buffers(estimator: Estimator) -> int:
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
