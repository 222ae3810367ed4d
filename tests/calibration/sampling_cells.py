"""How often the bound of each sampling scheme lies above the truth, and how often it alarms.

    python -m tests.calibration.sampling_cells --audits 2000 --folder counts

(Cells are kept in the folder as they are counted, and a call that was stopped goes on from there.)

First whole audits: a run is recorded, its batches are handed in, and ``audit`` holds it to the
epsilon that it has. Then the bounds by themselves, of more runs than could be audited: a canary is
seen in every step, noise, plus 1 where the scheme drew it. The ratio of the two is fitted within
each canary, as in `SubsampledGaussian` with a background of its own, and the scheme composes it.
The truth is the scheme's epsilon at the true noise.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from scipy import stats

import askgauss as ag
from askgauss.recording.transcript import Transcript
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
from tests.calibration import verdicts

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


@dataclass(frozen=True)
class SchemeRun:
    """A correct run of a scheme, recorded as a user would, that claims the epsilon it has.

    Attributes:
        scheme: How batches are drawn, by declaration and in fact.
        steps: Number of steps.
        noise_multiplier: Noise of every step.
        by_sampler: Whether the run's own sampler draws the canaries, its first records, and not
            the recorder.
        records: Number of records.
        present: Present canaries.
        absent: Absent canaries.
    """

    scheme: Scheme
    steps: int
    noise_multiplier: float
    by_sampler: bool = False
    records: int = 60
    present: int = 20
    absent: int = 20

    @functools.cached_property
    def truth(self) -> float:
        """The epsilon of the canary's pair of worlds."""
        return self.scheme.epsilon_lower(
            noise_multiplier=self.noise_multiplier, steps=self.steps, delta=DELTA
        )

    @functools.cached_property
    def claim(self) -> ag.PrivacyClaim:
        """What it has, and no more."""
        return ag.PrivacyClaim(
            epsilon=self.truth,
            delta=DELTA,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            sampling=self.scheme,
        )

    @property
    def leaking(self) -> None:
        """Power is counted elsewhere."""
        return None

    def __str__(self) -> str:
        who = ", canaries drawn by it" if self.by_sampler else ""
        return f"{self.scheme}{who}; noise {self.noise_multiplier:g}, {self.steps} steps"

    def draw(self, generator: np.random.Generator) -> Transcript:
        """One run."""
        size = self.present + self.absent
        canaries = ag.DiracCanaries(
            present=self.present,
            absent=self.absent,
            dimension=size,
            seed=int(generator.integers(1 << 60)),
        )
        recorder = ag.Recorder(
            canaries,
            sampling=self.scheme,
            noise_multiplier=self.noise_multiplier,
            records=self.records,
        )
        members = np.flatnonzero(canaries.member)
        for batch in self.scheme.draw(generator, self.records, self.steps):
            drawn = members[batch[batch < self.present]] if self.by_sampler else recorder.sample()
            released = self.noise_multiplier * generator.standard_normal(size)
            released[drawn] += 1.0
            recorder.observe(
                released,
                background=0 if self.scheme.known_background else None,
                planted=drawn if self.by_sampler else None,
                batch=batch,
            )
        return recorder.transcript()


RUNS = (
    SchemeRun(Poisson(rate=0.3), 8, 1.2),
    SchemeRun(FixedSize(batch=18, records=60), 8, 1.2),
    SchemeRun(FixedSize(batch=18, records=60), 8, 1.2, by_sampler=True),
    SchemeRun(Shuffled(batches=2), 2, 1.0, present=30),
    SchemeRun(BallsInBins(bins=2), 2, 1.0, present=30),
    SchemeRun(CyclicPoisson(rate=0.6, cycle=2), 8, 1.2),
    SchemeRun(TruncatedPoisson(rate=0.3, cap=20, records=60), 8, 1.2),
    SchemeRun(MinSeparation(separation=3, rate=0.4), 8, 1.2),
    SchemeRun(EveryStep(), 8, 2.5),
)


def whole_audits(
    audits: int, seed: int, folder: Path | None, schemes: list[str] | None = None
) -> Iterator[verdicts.Tally]:
    """Whole audits of every run, or of some schemes; what the folder holds is not counted again."""
    for run in RUNS:
        if schemes is not None and run.scheme.tag not in schemes:
            continue
        name = f"{audits} {seed} {run}"
        kept = None if folder is None else folder / f"{sha256(name.encode()).hexdigest()[:16]}.json"
        if kept is not None and kept.exists():
            found = json.loads(kept.read_text())
            counters = {key: Counter(item) for key, item in found.items() if type(item) is dict}
            yield verdicts.Tally(**found | counters)
            continue
        began = time.process_time()
        result = verdicts.tally(run, audits, seed=seed)
        spent = time.process_time() - began
        print(f"{time.strftime('%H:%M:%S')} {run}: {spent:.0f} s", file=sys.stderr, flush=True)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(vars(result), default=lambda number: number.item()))
        yield result


def whole_section(
    audits: int, seed: int, folder: Path | None, schemes: list[str] | None
) -> Iterator[str]:
    """Whole audits as Markdown."""
    note = (
        "Recorded runs of every scheme with their batches handed in, each held to the epsilon of "
        "its canary's pair of worlds."
    )
    tallies = list(whole_audits(audits, seed, folder, schemes))
    yield from verdicts.section("Whole audits of every scheme", note, tallies)


def bounds_section(audits: int, seed: int) -> Iterator[str]:
    """Bounds by themselves as Markdown."""
    yield "| scheme, noise multiplier | epsilon | above the truth | mean bound over truth |"
    yield "|---|---|---|---|"
    counts = []
    for cell in CELLS:
        result = count(cell, audits, seed, composed=20)
        counts.append(result)
        yield (
            f"| {cell} | {cell.truth:.3f} | {result.above / result.audits:.1%} | "
            f"{result.mean_share:.3f} |"
        )
    allowed = counts[0].allowed_among(len(counts))
    beyond = sum(result.above > allowed for result in counts)
    yield ""
    yield (
        f"{audits:,} audits a cell, nominal {1 - CONFIDENCE:.0%}; chance allows {allowed} in some "
        f"cell at {FAMILY_ERROR:g}. Cells beyond it: {beyond}."
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where cells are kept as they are counted")
    parser.add_argument("--only", choices=("whole", "bounds"))
    tags = [*dict.fromkeys(run.scheme.tag for run in RUNS)]
    parser.add_argument("--schemes", nargs="*", choices=tags, help="of whole audits; all if absent")
    options = parser.parse_args()
    if options.only != "bounds":
        for line in whole_section(options.audits, options.seed, options.folder, options.schemes):
            print(line)
    if options.only != "whole":
        for line in bounds_section(options.audits, options.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
