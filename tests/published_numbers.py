"""How much of a canary's noise published numbers explain to somebody who knows the seed.

    python -m tests.published_numbers --seeds 200            # exact sums alone
    python -m tests.published_numbers --seeds 8 --findings   # and the numbers of all checks

The attacker has the released weights and the seed, and so knows the noise of every observation up
to what it hides: here to a third of its deviation (`KNOWN`). They regress what is hidden at one
canary on everything that is published. How each number moves with each noise is measured: the noise
is moved, and the run recorded and audited again. Numbers of checks are published with four digits
and p-values with two; what is lost by that is noise to the attacker. Whole numbers, and those that
a check itself rounds, move by jumps and are left out.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.publish.disclosure import reveals_individuals
from tests.test_single_plantings import CLAIM, NOISE, least_left, published_sums, recorded

# Sampling rate and steps.
CELLS = (
    *((0.2, 20), (0.05, 40), (0.9, 15), (0.5, 20)),
    *((0.1, 30), (0.3, 60), (0.7, 30), (0.1, 100)),
)
KNOWN = 0.316
# Noise is moved by so many deviations; directions that stand for those of single observations.
_MOVED, _DIRECTIONS = 1e-4, 60
# Checks that round to a grid or count.
_JUMPS = (
    *("values without noise", "noise precision", "noise extremes", "single plantings"),
    *("shared noise", "noise by coordinate", "noise by tensor", "repeated noise"),
)


def again(planted, noise, *, seed, rate, count):
    """The same run with other noise."""
    canaries = ag.DiracCanaries(present=count, absent=count, dimension=2000, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=rate, clip_norm=1.0)
    for there, row in zip(planted, noise, strict=True):
        assert np.array_equal(recorder.sample(), there)
        values = row.copy()
        values[there] += 1.0
        recorder.observe(values, background=np.zeros(canaries.size), noise_multiplier=NOISE)
    return recorder.transcript()


def numbers(transcript):
    """Every number of the findings that moves smoothly, before it is rounded."""
    found = {}
    for item in diagnose(transcript, claim=CLAIM):
        low, high = item.interval or (None, None)
        named = {"measured": item.measured, "low": low, "high": high, "p": item.p_value}
        for name, value in named.items():
            smooth = value is not None and math.isfinite(value) and not float(value).is_integer()
            if smooth and item.check not in _JUMPS:
                found[item.check, name] = float(value)
    return found


def rounding(name, value):
    """The width of what is published of a number."""
    return 0.05 * value if name == "p" else 10.0 ** (math.floor(math.log10(abs(value))) - 3)


def left(seed, *, rate, steps, count):
    """What is left of the best known canary's noise by all numbers; None where it is private."""
    recorder, planted, noise = recorded(
        rate=rate, steps=steps, present=count, absent=count, seed=seed
    )
    if reveals_individuals(recorder.transcript()):
        return None
    there = np.zeros(noise.shape, dtype=bool)
    for step, rows in enumerate(planted):
        there[step, rows] = True
    base_sums = published_sums(recorder.transcript())
    base = numbers(recorder.transcript())

    def gradient(direction):
        moved = noise + _MOVED * NOISE * direction
        run = again(planted, moved, seed=seed, rate=rate, count=count)
        found = numbers(run)
        change = [found.get(key, value) - value for key, value in base.items()]
        return np.concatenate([published_sums(run) - base_sums, change]) / _MOVED

    blocks = [(j, where[:, j]) for j in range(2 * count) for where in (there, ~there)]
    weights = []
    for canary, where in blocks:
        direction = np.zeros(noise.shape)
        direction[where, canary] = 1.0 / math.sqrt(max(np.count_nonzero(where), 1))
        weights.append(gradient(direction))
    generator, others = np.random.default_rng(seed), []
    for _ in range(_DIRECTIONS):
        direction = generator.normal(size=noise.shape)
        for canary, where in blocks:
            if where.any():
                direction[where, canary] -= direction[where, canary].mean()
        others.append(gradient(direction))
    blur = [0.0] * base_sums.size + [rounding(key[1], value) for key, value in base.items()]
    return _left(KNOWN * np.array(weights), KNOWN * np.array(others), np.array(blur))


def _left(weights, others, blur):
    gram = weights.T @ weights + others.T @ others / len(others) + np.diag(blur**2 / 12.0)
    size = np.sqrt(np.diag(gram))
    known = size > 0.0
    inverse = np.linalg.pinv((gram / np.outer(size, size))[np.ix_(known, known)], rcond=1e-11)
    blocks = (weights[:, known] / size[known]).reshape(-1, 2, np.count_nonzero(known))
    explained = np.linalg.eigvalsh(blocks @ inverse @ blocks.transpose(0, 2, 1))[:, -1]
    return math.sqrt(max(1.0 - float(explained.max()), 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--canaries", type=int, default=30, help="of each kind")
    parser.add_argument("--findings", action="store_true", help="the numbers of checks as well")
    options = parser.parse_args()
    found = []
    for seed in range(options.first, options.first + options.seeds):
        rate, steps = CELLS[seed % len(CELLS)]
        if options.findings:
            value = left(seed, rate=rate, steps=steps, count=options.canaries)
        else:
            count = options.canaries
            run = recorded(rate=rate, steps=steps, present=count, absent=count, seed=seed)[0]
            transcript = run.transcript()
            value = None if reveals_individuals(transcript) else least_left(transcript)
        found += [] if value is None else [value]
        print(seed, rate, steps, "private" if value is None else f"{value:.4f}", flush=True)
    values = np.array(found)
    print(
        f"{values.size} of {options.seeds} may be published; left {values.min():.4f} to "
        f"{values.max():.4f}, mean {values.mean():.4f}; {np.count_nonzero(values < 0.95)} below .95"
    )


if __name__ == "__main__":
    main()
