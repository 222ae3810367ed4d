"""Whole audits of correct aggregators: bounds above the truth, and alarms.

Canary clients point either way, and a claim of replaced users is bounded by a law of its own: both
are counted here. ``python -m tests.calibration.federated_cells`` prints the table of
docs/federated.md; `make test` counts a share of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

import askgauss as ag
from askgauss.federated import simulate_federated
from askgauss.sampling import EveryStep, Poisson, ReplaceOne, Scheme

CONFIDENCE, DELTA, GATE = 0.95, 1e-5, 0.01


@dataclass(frozen=True)
class FederatedCell:
    """A correct aggregator, and whose neighbours its claim is about."""

    sampling: Scheme
    replaced: bool
    noise_multiplier: float
    rounds: int = 20
    present: int = 30
    absent: int = 60

    def __str__(self) -> str:
        neighbours = "replaced" if self.replaced else "left out"
        return f"{self.sampling}, users {neighbours}, T={self.rounds}"

    @property
    def law(self) -> Scheme:
        return ReplaceOne(of=self.sampling) if self.replaced else self.sampling

    def claim(self) -> ag.PrivacyClaim:
        """What the run keeps, to the last digit of its law's lower bound."""
        epsilon = self.law.epsilon_lower(
            noise_multiplier=self.noise_multiplier, steps=self.rounds, delta=DELTA
        )
        return ag.PrivacyClaim(
            epsilon=epsilon,
            delta=DELTA,
            noise_multiplier=self.noise_multiplier,
            steps=self.rounds,
            sampling=self.sampling,
            unit="user",
            adjacency="replace" if self.replaced else "add-remove",
        )

    def draw(self, seed: int) -> ag.Transcript:
        found = simulate_federated(
            rounds=self.rounds,
            clients=4,
            dimension=self.present + self.absent,
            present=self.present,
            absent=self.absent,
            noise_multiplier=self.noise_multiplier,
            sampling=self.sampling,
            seed=seed,
        )
        assert isinstance(found, ag.Transcript)
        return found


CELLS = (
    FederatedCell(EveryStep(), False, 2.0),
    FederatedCell(EveryStep(), True, 4.0),
    FederatedCell(Poisson(rate=0.3), False, 1.0),
    FederatedCell(Poisson(rate=0.3), True, 2.0),
)


@dataclass(frozen=True)
class FederatedCount:
    """What was counted of one cell."""

    cell: FederatedCell
    audits: int
    above: int
    alarms: int
    mean_bound: float

    @property
    def allowed(self) -> int:
        """Bounds above the truth that chance allows once in 10,000 cells."""
        return int(stats.binom.isf(1e-4, self.audits, 1.0 - CONFIDENCE))


def count(cell: FederatedCell, audits: int, seed: int = 0) -> FederatedCount:
    """Audit so many correct runs."""
    claim, bounds, alarms = cell.claim(), [], 0
    for index in range(audits):
        result = ag.audit(
            cell.draw(seed + index), claim=claim, confidence=CONFIDENCE, gate_error=GATE
        )
        bounds.append(result.epsilon_lower)
        alarms += result.verdict in (ag.Verdict.VIOLATION, ag.Verdict.INVALID)
    above = int(np.count_nonzero(np.array(bounds) > claim.epsilon))
    return FederatedCount(cell, audits, above, alarms, float(np.mean(bounds) / claim.epsilon))


def table(audits: int) -> Iterator[str]:
    """The counts as Markdown."""
    yield f"| cell | audits | above the truth | alarms at {GATE:g} | mean bound over the truth |"
    yield "|---|---:|---:|---:|---:|"
    for number, cell in enumerate(CELLS):
        # Cells must not share the noise that seeds draw.
        found = count(cell, audits, seed=1_000_000 * number)
        yield (
            f"| {cell} | {found.audits:,} | {found.above / found.audits:.1%} | {found.alarms} | "
            f"{found.mean_bound:.3f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=1000)
    for line in table(parser.parse_args().audits):
        print(line, flush=True)
