"""Runs tests on copies of the package that have one fault each."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[2]
SNAPSHOTS = "tests/snapshots"
# Neither part of what is tested, nor small.
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "site", "dist")
# A fault may make a search endless: whatever takes this long was noticed.
_SECONDS = 1800.0
_FAILED, _INTERRUPTED, _NO_TESTS = 1, 2, 5


class MutantError(Exception):
    """A mutant that cannot be made, or tests that fail without one."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Args:
        mutant: The mutant.
        killed_by: The test that failed; empty if none did.
        fast: Whether that is one of the fast tests.
    """

    mutant: Mutant
    killed_by: str = ""
    fast: bool = False


@dataclass(frozen=True)
class Stage:
    """Tests to run: these files, of this cost."""

    files: tuple[str, ...]
    fast: bool


def stages(mutant: Mutant, *, fast: bool = False, everything: bool = False) -> list[Stage]:
    """What to run until a test fails, the most likely first.

    Args:
        mutant: The mutant.
        fast: Also all fast tests.
        everything: Also the whole suite.
    """
    # The examples in a module's documentation are tests of it.
    named = (*mutant.tests, f"src/askgauss/{mutant.module}")
    found = [Stage(named, fast=True), Stage((SNAPSHOTS,), fast=True)]
    if fast or everything:
        found.append(Stage((), fast=True))
    found.append(Stage(named, fast=False))
    if everything:
        found.append(Stage((), fast=False))
    return found


def mutated(mutant: Mutant, source: str) -> str:
    """The module with the fault.

    Raises:
        MutantError: The text is not found exactly once, or nothing would change.
    """
    found = source.count(mutant.before)
    if found != 1:
        raise MutantError(
            f"{mutant.name}: expected its text once in {mutant.module}, found it {found} times: "
            f"{mutant.before!r}. Adapt the mutant in tests/mutants/table.py."
        )
    changed = source.replace(mutant.before, mutant.after)
    if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
        raise MutantError(f"{mutant.name}: the module means the same with and without it.")
    return changed


class Copy:
    """A copy of the repository, in which one module at a time is another."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "copy"
        shutil.copytree(ROOT, self._root, ignore=_LEFT_OUT)

    @contextlib.contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the fault in here."""
        path = self._root / "src" / "askgauss" / mutant.module
        source = path.read_text()
        self._write(path, mutated(mutant, source))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source)
        # Compiled modules are told apart by size and second of change: a fault may share both.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def first_failure(self, stage: Stage) -> str:
        """The first test that fails; empty if none does."""
        # The check of the mutants themselves fails on every one of them.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--ignore=tests/mutants", "-m", "fast" if stage.fast else "not fast"]
        environment = os.environ | {
            "PYTHONPATH": str(self._root / "src"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(
                [*command, *stage.files],
                cwd=self._root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_SECONDS:.0f} seconds"
        if done.returncode in (0, _NO_TESTS):
            return ""
        if done.returncode not in (_FAILED, _INTERRUPTED):
            raise MutantError(f"pytest could not run {stage.files}: {done.stdout}{done.stderr}")
        return failed_test(done.stdout)


def failed_test(output: str) -> str:
    """The first test that a summary of pytest names."""
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and rest:
            return rest.split(" - ")[0].strip()
    raise MutantError(f"Expected a failed test in what pytest printed, got: {output}")


def check_without_faults(copy: Copy, mutants: Sequence[Mutant]) -> None:
    """Refuse tests that fail without any fault: they would kill every mutant."""
    named = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    failed = copy.first_failure(Stage((*named, SNAPSHOTS), fast=True))
    if failed:
        raise MutantError(f"{failed} fails without any mutant: mend that first.")


def outcome(copy: Copy, mutant: Mutant, *, fast: bool = False, everything: bool = False) -> Outcome:
    """Run tests on a copy with the fault until one fails."""
    with copy.with_fault(mutant):
        for stage in stages(mutant, fast=fast, everything=everything):
            failed = copy.first_failure(stage)
            if failed:
                return Outcome(mutant, failed, stage.fast)
    return Outcome(mutant)


@contextlib.contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """So many copies of the repository, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="askgauss-mutants-") as folder:
        made = []
        for index in range(count):
            place = Path(folder, str(index))
            place.mkdir()
            made.append(Copy(place))
        yield made
