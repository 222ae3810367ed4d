"""The page of the documentation that says which faults are found, and by what."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.mutants.running import ROOT, Outcome
from tests.mutants.table import MUTANTS

PAGE = ROOT / "docs" / "mutants.md"
SURVIVED = "survived"
_HEAD = """# Mutation check

Each row is a deliberate fault in the package, such as a one-sided test where two sides are meant.
`make mutants` puts one fault at a time into a copy of the package and runs tests until one fails.
A fault that no test notices would show that a broken statistic passes the suite.

The tests named with each fault run first, then fixed runs whose results are stored
(`tests/snapshots`), then all fast tests (`make test-fast`). Tests that train a model or start
processes come last; they are marked *slow*.

A row names the test that failed in the last run of its fault, which may have been a run of some
of these tests only. Faults are defined in `tests/mutants/table.py`.
"""


def page(outcomes: Iterable[Outcome], earlier: str = "") -> str:
    """The page, with the rows of faults that did not run now as they were.

    Args:
        outcomes: What ran.
        earlier: The page as it was.
    """
    rows = {line.split("`")[1]: line for line in earlier.splitlines() if line.startswith("| `")}
    rows |= {item.mutant.name: _row(item) for item in outcomes}
    kept = [rows[mutant.name] for mutant in MUTANTS if mutant.name in rows]
    alive = sum(row.endswith(f"| {SURVIVED} |") for row in kept)
    slow = sum(row.endswith("(*slow*) |") for row in kept)
    summary = (
        f"{len(kept) - alive} of {len(kept)} faults are found, "
        f"{len(kept) - alive - slow} of them by fast tests."
    )
    table = ["| fault | what it breaks | found by |", "|---|---|---|", *kept]
    return "\n".join([_HEAD, summary, "", *table, ""])


def _row(item: Outcome) -> str:
    found = SURVIVED
    if item.killed_by:
        # Values of a parametrized test may hold the character that ends a cell.
        test = item.killed_by.replace("|", "/")
        found = f"`{test}`{'' if item.fast else ' (*slow*)'}"
    where = f"`{item.mutant.name}` (`{item.mutant.module}`)"
    return f"| {where} | {item.mutant.breaks} | {found} |"


def write(outcomes: Iterable[Outcome], path: Path = PAGE) -> None:
    """Write the page."""
    path.write_text(page(outcomes, path.read_text() if path.exists() else ""))
