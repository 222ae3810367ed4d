"""One of each scheme, all with a mean batch of a twentieth; and the table of who is told apart."""

from __future__ import annotations

import argparse

import numpy as np

from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    Scheme,
    SchemeSums,
    Shuffled,
    TruncatedPoisson,
)

RECORDS = 1000


def every_scheme(records: int = RECORDS) -> list[Scheme]:
    return [
        Poisson(rate=0.05),
        FixedSize(batch=records // 20, records=records),
        Shuffled(batches=20),
        Shuffled(batches=20, reshuffled=False),
        BallsInBins(bins=20),
        BallsInBins(bins=20, redrawn=False),
        CyclicPoisson(rate=0.2, cycle=4),
        TruncatedPoisson(rate=0.05, cap=records * 6 // 100, records=records),
        MinSeparation(separation=4, rate=0.05 / 0.85),
        EveryStep(),
    ]


def smallest(tests) -> float:
    """Of all p-values, corrected for their number."""
    return min(1.0, len(tests) * min(test.p_value for test in tests))


def table(runs: int, steps: int, records: int = RECORDS, canaries: int | None = None):
    """For each true and each declared scheme, in how many runs p < .001."""
    schemes = every_scheme(records)
    for true in schemes:
        found = np.zeros(len(schemes), dtype=int)
        for run in range(runs):
            batches = list(true.draw(np.random.default_rng([run, 11]), records, steps))
            if canaries is not None:
                batches = shown(batches, records)[:, :canaries]
            found += [told(declared, batches, records) for declared in schemes]
        yield true, dict(zip(map(str, schemes), found.tolist(), strict=True))


def told(declared, batches, records) -> bool:
    """Whether the declared scheme is refuted; once its rule is broken there is no need to go on."""
    if isinstance(batches, np.ndarray):
        return smallest(declared.test(batches, records=records)) < 1e-3
    sums = SchemeSums(declared, records=records)
    for batch in batches:
        sums.add(batch)
        if sums.broken is not None:
            break
    return smallest(sums.tests()) < 1e-3


def shown(batches, records):
    """Batches as a matrix, steps by records."""
    matrix = np.zeros((len(batches), records), dtype=bool)
    for row, batch in zip(matrix, batches, strict=True):
        row[batch] = True
    return matrix


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--canaries", type=int)
    options = parser.parse_args()
    for true, row in table(options.runs, options.steps, canaries=options.canaries):
        others = {name: found for name, found in row.items() if name != str(true)}
        print(
            f"{true}: called so wrongly in {row[str(true)]} of {options.runs}; "
            f"told from others in at least {min(others.values())} "
            f"({min(others, key=others.get)})",
            flush=True,
        )


if __name__ == "__main__":
    main()
