"""How often audits of correct mechanisms end in an alarm, and of broken ones in none.

    python -m tests.calibration.mechanism_cells --audits 1000 --samples 1000 --only Laplace

prints one line a cell. The numbers in docs/any-mechanism.md are from this command.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import stats

from askgauss.mechanism_audit import audit_mechanism
from askgauss.results import Verdict
from tests.mechanism_audit.exam import BROKEN, CORRECT, Case

ALARMS = (Verdict.VIOLATION, Verdict.INVALID)


@dataclass(frozen=True)
class Count:
    """What happened in so many audits of one mechanism."""

    case: Case
    audits: int
    verdicts: Counter
    above: int
    mean_bound: float
    samples: tuple[int, ...]

    @property
    def alarms(self) -> int:
        return sum(self.verdicts[item.value] for item in ALARMS)

    def allowed(self, error: float, family_error: float = 1e-4) -> int:
        """The most that chance allows, were the error exactly that."""
        return int(stats.binom.isf(family_error, self.audits, error))

    def __str__(self) -> str:
        verdicts = ", ".join(f"{name} {number}" for name, number in sorted(self.verdicts.items()))
        return (
            f"{self.case.name:46} {verdicts}; bound above the claim in {self.above} of "
            f"{self.audits}, mean {self.mean_bound:.2f}; samples {np.median(self.samples):.0f} in "
            f"the middle, {max(self.samples)} at most"
        )


def count(case: Case, audits: int, samples: int, gate_error: float = 0.001, seed: int = 0) -> Count:
    """Audit one mechanism many times."""
    results = [
        audit_mechanism(
            case.mechanism,
            case.data,
            case.neighbour,
            claim=case.claim,
            max_samples=samples,
            gate_error=gate_error,
            seed=seed + index,
        )
        for index in range(audits)
    ]
    return Count(
        case=case,
        audits=audits,
        verdicts=Counter(result.verdict.value for result in results),
        above=sum(result.epsilon_lower > case.epsilon for result in results),
        mean_bound=float(np.mean([result.epsilon_lower for result in results])),
        samples=tuple(result.samples for result in results),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--only", default="", help="part of a mechanism's name")
    parser.add_argument("--exact", action="store_true", help="the whole name")
    options = parser.parse_args()
    for case in BROKEN if options.broken else CORRECT:
        if options.only == case.name or (not options.exact and options.only in case.name):
            print(count(case, options.audits, options.samples), flush=True)


if __name__ == "__main__":
    main()
