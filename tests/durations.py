"""CPU time of every folder of tests: ``python -m pytest -p tests.durations`` (``make durations``).

Processor time of a test and of the processes it waited for, not time on the clock: it hardly
depends on how busy the machine is. What fixtures of a module or of the whole run cost counts for
the test that came first; imports while tests are collected are a row of their own.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests import forks

COLLECTING = "imports and collection"
# Files that cost at least this much are shown below the folders.
_SHOWN_SECONDS = 5.0

_spent: collections.Counter[str] = collections.Counter()
_since = 0.0
_file: Path | None = None


def _now() -> float:
    return sum(os.times()[:4]) + forks.cpu_seconds()


def _lap() -> float:
    global _since
    before, _since = _since, _now()
    return _since - before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write the seconds of every test."""
    parser.addoption(
        "--durations-file", help="write the CPU seconds of every test to this file as it ends"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin the file; workers of one run leave it to their controller."""
    global _file
    path = config.getoption("--durations-file")
    if path and not hasattr(config, "workerinput"):
        _file = Path(path)
        _file.write_text("")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests begin here."""
    _spent[COLLECTING] += _lap()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Measure a phase; workers send it with the report."""
    report = yield
    report.cpu_seconds = _lap()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a phase to its test."""
    _spent[report.nodeid] += getattr(report, "cpu_seconds", 0.0)
    if report.when == "teardown" and _file is not None:
        with _file.open("a") as stream:
            stream.write(f"{_spent[report.nodeid]:.3f} {report.nodeid}\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over what a worker spent on collection."""
    _spent[COLLECTING] += getattr(node, "workeroutput", {}).get(COLLECTING, 0.0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the controller of several workers what only a worker knows."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[COLLECTING] = _spent[COLLECTING]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a table of folders, with their costly files."""
    files: collections.Counter[str] = collections.Counter()
    folders: collections.Counter[str] = collections.Counter()
    for test, seconds in _spent.items():
        file = test.split("::")[0]
        files[file] += seconds
        folders[str(PurePosixPath(*PurePosixPath(file).parts[:2]).with_suffix(""))] += seconds
    write = terminalreporter.write_line
    write("")
    write("| CPU seconds | where |")
    write("|---|---|")
    for folder, seconds in folders.most_common():
        write(f"| {seconds:.0f} | {folder} |")
    write(f"| {sum(folders.values()):.0f} | all |")
    write("")
    for file, seconds in files.most_common():
        if seconds >= _SHOWN_SECONDS:
            write(f"{seconds:7.1f}  {file}")
