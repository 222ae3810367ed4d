"""How often the bound of each sampling scheme lies above the truth.

    python -m tests.calibration.sampling_cells --audits 2000

A canary is seen in every step: noise, plus 1 where the scheme drew it. The ratio of the two is
fitted within each canary, as in `SubsampledGaussian` with a background of its own, and the scheme
composes it. The truth is the scheme's epsilon at the true noise.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    Scheme,
    Shuffled,
    TruncatedPoisson,
)
from askgauss.stats.shift import SlopeTest

DELTA = 1e-5
CONFIDENCE = 0.95
FAMILY_ERROR = 1e-4


@dataclass(frozen=True)
class SamplingCell:
    """A run that is audited again and again: its first records are the canaries."""

    scheme: Scheme
    noise_multiplier: float
    records: int = 200
    steps: int = 40
    canaries: int = 20

    @property
    def truth(self) -> float:
        return self.scheme.epsilon_lower(
            noise_multiplier=self.noise_multiplier, steps=self.steps, delta=DELTA
        )

    def __str__(self) -> str:
        return f"{self.scheme}, noise {self.noise_multiplier:g}, {self.steps} steps"


@dataclass(frozen=True)
class SamplingCount:
    """What happened in a cell."""

    cell: SamplingCell
    audits: int
    above: int
    mean_share: float

    def allowed_among(self, cells: int) -> int:
        """The most that chance allows, were the bound exactly nominal."""
        return int(stats.binom.isf(FAMILY_ERROR / cells, self.audits, 1 - CONFIDENCE))


SCHEMES = (
    Poisson(rate=0.1),
    FixedSize(batch=20, records=200),
    Shuffled(batches=10),
    Shuffled(batches=10, reshuffled=False),
    BallsInBins(bins=10),
    CyclicPoisson(rate=0.4, cycle=4),
    CyclicPoisson(rate=0.4, cycle=4, groups="secret"),
    TruncatedPoisson(rate=0.1, cap=22, records=200),
    MinSeparation(separation=4, rate=0.15),
    EveryStep(),
)
CELLS = tuple(SamplingCell(scheme, noise) for scheme in SCHEMES for noise in (0.7, 2.0))


def lower_signal(cell: SamplingCell, rng: np.random.Generator, error: float) -> float:
    """The exact lower limit of the signal-to-noise ratio from one simulated run."""
    planted = np.zeros((cell.steps, cell.canaries))
    for row, batch in zip(planted, cell.scheme.draw(rng, cell.records, cell.steps), strict=True):
        row[batch[batch < cell.canaries]] = 1.0
    seen = planted + cell.noise_multiplier * rng.standard_normal(planted.shape)
    levels = not isinstance(cell.scheme, EveryStep)  # where all is planted there is no other level
    if levels:
        planted, seen = planted - planted.mean(axis=0), seen - seen.mean(axis=0)
    spread = float((planted**2).sum())
    slope = float((planted * seen).sum()) / spread
    return SlopeTest(
        count=cell.canaries * (cell.steps - levels) + 1,
        slope=slope,
        spread=spread,
        residual=float((seen**2).sum()) - slope**2 * spread,
    ).lower(error)


def count(cell: SamplingCell, audits: int, seed: int, *, composed: int = 5) -> SamplingCount:
    """Audit a cell many times.

    The law grows with the signal, so a bound is above the truth where the signal's limit is; some
    of the audits are composed all the same, and both must agree.
    """
    rng = np.random.default_rng([seed, *str(cell).encode()])
    truth, above, shares = cell.truth, 0, []
    for audit in range(audits):
        signal = lower_signal(cell, rng, 1 - CONFIDENCE)
        exceeds = signal * cell.noise_multiplier > 1.0
        if audit < composed:
            noise = 1 / signal if signal > 0 else math.inf
            run = {"steps": cell.steps, "delta": DELTA}
            bound = cell.scheme.epsilon_lower(noise_multiplier=noise, **run)
            if (bound > truth) != exceeds and abs(bound - truth) > 1e-3 * truth:
                raise AssertionError(f"bound {bound} and signal disagree about {truth} in {cell}")
            shares.append(bound / truth)
        above += exceeds
    return SamplingCount(cell, audits, above, float(np.mean(shares)) if shares else math.nan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| scheme, noise multiplier | epsilon | above the truth | mean bound over truth |")
    print("|---|---|---|---|")
    counts = []
    for cell in CELLS:
        counts.append(count(cell, options.audits, options.seed, composed=20))
        result = counts[-1]
        print(
            f"| {cell} | {cell.truth:.3f} | {result.above / result.audits:.1%} | "
            f"{result.mean_share:.3f} |",
            flush=True,
        )
    allowed = counts[0].allowed_among(len(counts))
    beyond = sum(result.above > allowed for result in counts)
    print(
        f"\n{options.audits} audits a cell, nominal {1 - CONFIDENCE:.0%}; chance allows {allowed} "
        f"in some cell at {FAMILY_ERROR:g}. Cells beyond it: {beyond}."
    )


if __name__ == "__main__":
    main()
