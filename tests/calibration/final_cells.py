"""How often bounds from snapshots of the weights, and from scores of mechanisms, are too high.

``python -m tests.calibration.final_cells`` prints both tables. Scores of snapshots are drawn from
their own law: a present canary's is the filtered sum of its coins and of the noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

import askgauss as ag
from askgauss.final import LinearFilter, joined_snapshots, sgd_filter, weight_scores
from askgauss.mechanism_audit import mechanism_scores
from tests.mechanism_audit.exam import CORRECT

DELTA = 1e-5
COSINE = 0.5 * (1.0 + np.cos(np.pi * np.arange(300) / 300))
DROP = np.where(np.arange(300) < 150, 1.0, 0.1)


@dataclass(frozen=True)
class Snapshots:
    """Runs of one schedule, seen by their snapshots."""

    name: str
    rates: np.ndarray
    ends: tuple[int, ...] = (300,)
    momentum: float = 0.0
    noise: float = 1.5
    rate: float = 0.1
    present: int = 150
    absent: int = 150

    @property
    def filter(self) -> LinearFilter:
        """What the snapshots make of the releases."""
        filters = [sgd_filter(self.rates[:end], momentum=self.momentum) for end in self.ends]
        return joined_snapshots(filters, [[0.0]] * len(filters))[0]

    def scores(self, generator: np.random.Generator) -> ag.CanaryScores:
        """The scores of one run."""
        canaries = ag.DiracCanaries(
            present=self.present,
            absent=self.absent,
            dimension=400,
            seed=generator.integers(1 << 31),
        )
        linear = self.filter
        moved = self.noise * linear.length * generator.normal(size=400)
        coins = generator.random((self.present, linear.weights.size)) < self.rate
        moved[canaries.coordinates[canaries.member]] += coins @ linear.weights
        return weight_scores(
            np.zeros(400),
            -moved,
            canaries,
            filter=linear,
            clip_norm=1.0,
            sampling_rate=self.rate,
            noise_multiplier=self.noise,
            background=np.zeros(self.present + self.absent),
        )


SNAPSHOTS = (
    Snapshots("two, plain", np.ones(300)),
    Snapshots("two, momentum 0.9", np.ones(300), momentum=0.9),
    Snapshots("two, a tenth from the middle on", DROP, momentum=0.9),
    Snapshots("three, a tenth from the middle on", DROP, (150, 300), momentum=0.9),
    Snapshots("two, cosine", COSINE),
    Snapshots("five, cosine", COSINE, (100, 180, 250, 300)),
    Snapshots("two, cosine, little noise", COSINE, noise=0.7, rate=0.02),
    Snapshots("five, cosine, few canaries", COSINE, (100, 180, 250, 300), present=10, absent=10),
)
AUDITORS = (ag.ClopperPearson(), ag.OneRun())


def above(cell: Snapshots, audits: int, seed: int = 0) -> tuple[int, float]:
    """Audits whose bound is above what the snapshots carry, and the mean share of it."""
    truth = cell.filter.epsilon_at(
        delta=DELTA, noise_multiplier=cell.noise, sampling_rate=cell.rate
    )
    streams = np.random.default_rng(seed).spawn(audits)
    bounds = [
        ag.audit(
            cell.scores(stream), delta=DELTA, auditor=ag.GaussianShift(), diagnostics=False
        ).epsilon_lower
        for stream in streams
    ]
    return int(np.count_nonzero(np.array(bounds) > truth)), float(np.mean(bounds) / truth)


def snapshot_rows(audits: int, cells: Iterable[Snapshots] = SNAPSHOTS) -> Iterator[str]:
    """A row a schedule."""
    yield f"| snapshots, {audits:,} audits | bound above the truth | mean share of it |"
    yield "|---|---|---|"
    for cell in cells:
        wrong, share = above(cell, audits)
        yield f"| {cell.name} | {wrong} | {share:.3f} |"


def mechanism_rows(audits: int, samples: int) -> Iterator[str]:
    """A row a mechanism: its outputs as scores, read by auditors that assume no law."""
    names = " | ".join(auditor.name for auditor in AUDITORS)
    yield f"| mechanism, {audits:,} audits of {samples:,} outputs, bound above | {names} |"
    yield "|---" * (1 + len(AUDITORS)) + "|"
    for case in CORRECT:
        wrong = [0] * len(AUDITORS)
        for seed in range(audits):
            scores = mechanism_scores(
                case.mechanism, case.data, case.neighbour, samples=samples, seed=seed
            )
            for place, auditor in enumerate(AUDITORS):
                bound = ag.audit(
                    scores, delta=case.claim.delta, auditor=auditor, diagnostics=False
                ).epsilon_lower
                wrong[place] += bound > case.epsilon
        yield f"| {case.name} | " + " | ".join(map(str, wrong)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=400, help="audits of each schedule")
    parser.add_argument("--mechanisms", type=int, default=100, help="audits of each mechanism")
    given = parser.parse_args()
    for row in snapshot_rows(given.audits):
        print(row, flush=True)
    for row in mechanism_rows(given.mechanisms, 900):
        print(row, flush=True)


if __name__ == "__main__":
    main()
