"""How often audits of correct mechanisms end in an alarm, and of broken ones in none.

    python -m tests.calibration.mechanism_cells --audits 1000 --samples 1000 --only Laplace

prints one line a cell, and ``--table 30 100 300`` one row a mechanism for these numbers of
outputs. ``make mechanisms`` prints the tables of docs/any-mechanism.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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


def table(cases: Iterable[Case], audits: int, sizes: Sequence[int]) -> Iterator[str]:
    """Alarms, and bounds above the claim, among so many audits of each size; a row each."""
    titles = [f"{size:,} outputs: alarms, bound above" for size in sizes]
    yield f"| mechanism, {audits:,} audits | " + " | ".join(titles) + " |"
    yield "|---" * (len(sizes) + 1) + "|"
    for case in cases:
        found = [count(case, audits, size) for size in sizes]
        cells = [f"{item.alarms}, {item.above}" for item in found]
        yield f"| {case.name} | " + " | ".join(cells) + " |"


def broken_table(cases: Iterable[Case], audits: int, samples: int) -> Iterator[str]:
    """How many audits of each broken mechanism found it, and after how many outputs."""
    yield "| broken mechanism | violations | outputs a side, median | most |"
    yield "|---|---|---|---|"
    for case in cases:
        found = count(case, audits, samples)
        hits = found.verdicts[Verdict.VIOLATION.value]
        middle, most = np.median(found.samples), max(found.samples)
        yield f"| {case.name} | {hits} of {audits} | {middle:,.0f} | {most:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--table", type=int, nargs="*", metavar="OUTPUTS", help="rows of a table")
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--only", default="", help="part of a mechanism's name")
    parser.add_argument("--exact", action="store_true", help="the whole name")
    options = parser.parse_args()
    cases = [
        case
        for case in (BROKEN if options.broken else CORRECT)
        if options.only == case.name or (not options.exact and options.only in case.name)
    ]
    lines: Iterable[object] = (count(case, options.audits, options.samples) for case in cases)
    if options.table is not None and options.broken:
        lines = broken_table(cases, options.audits, options.samples)
    elif options.table is not None:
        lines = table(cases, options.audits, options.table)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
