"""Every deliberate fault can still be made: run by ``make mutants``, checked here."""

from __future__ import annotations

import collections

import pytest

from tests.mutants import page, running
from tests.mutants.running import MutantError, Outcome, Stage
from tests.mutants.table import MUTANTS, Mutant

FIRST = MUTANTS[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_once_and_changes_the_module(mutant):
    path = running.ROOT / "src" / "askgauss" / mutant.module
    assert running.mutated(mutant, path.read_text()) != path.read_text()
    assert mutant.tests
    assert all((running.ROOT / test.split("::")[0]).exists() for test in mutant.tests)


def test_mutants_are_many_and_have_names_of_their_own():
    assert len(MUTANTS) >= 66
    assert not [n for n, count in collections.Counter(m.name for m in MUTANTS).items() if count > 1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a = 1\n", "found it 0 times"),
        ("a = 2\nb = 2\n", "found it 2 times"),
        ("a = 1  # = 2\n", "means the same"),
    ],
)
def test_a_mutant_that_cannot_be_made_is_named(source, message):
    mutant = Mutant("halved", "some.py", "= 2", "= 3", "It breaks.", ())
    with pytest.raises(MutantError, match=f"halved: .*{message}"):
        running.mutated(mutant, source)


def test_fast_tests_come_before_slow_ones_and_named_ones_before_all():
    named = (*FIRST.tests, f"src/askgauss/{FIRST.module}")
    fast, slow = Stage(named, fast=True), Stage(named, fast=False)
    snapshots = Stage((running.SNAPSHOTS,), fast=True)
    assert running.stages(FIRST) == [fast, snapshots, slow]
    every = [fast, snapshots, Stage((), fast=True), slow]
    assert running.stages(FIRST, fast=True) == every
    assert running.stages(FIRST, everything=True) == [*every, Stage((), fast=False)]


def test_the_test_that_failed_is_read_from_the_summary():
    output = "..F\n=== short test summary info ===\nFAILED tests/a.py::b[1|2] - assert 1 == 2\n"
    assert running.failed_test(output) == "tests/a.py::b[1|2]"
    with pytest.raises(MutantError, match="failed test"):
        running.failed_test("nothing\n")


def test_the_page_keeps_rows_that_did_not_run():
    first, second, third = MUTANTS[:3]
    before = page.page([Outcome(first), Outcome(second, "tests/a.py::b[1|2]", fast=True)])
    assert "1 of 2 faults are found, 1 of them by fast tests." in before
    after = page.page([Outcome(first, "tests/a.py::c"), Outcome(third)], before)
    assert "2 of 3 faults are found, 1 of them by fast tests." in after
    assert "`tests/a.py::b[1/2]` |" in after
    assert "`tests/a.py::c` (*slow*) |" in after
    assert after.count(f"| {page.SURVIVED} |") == 1
