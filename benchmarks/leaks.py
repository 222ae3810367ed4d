"""Leaks of real training loops: how often each is found, and under which name.

python -m benchmarks.leaks --output docs/leaks.md
python -m benchmarks.leaks --runs 5 Steps Sampler

Every group of leaks is a section of the page; names choose groups by how they begin. A leak counts
as found where the verdict is VIOLATION or INVALID, and as named where the check that leads the
result is one of those that describe it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from askgauss.results import AuditResult, Verdict
from benchmarks.clean_runs import EXACT, with_section
from benchmarks.loops import Leak, Outcome, Run, opacus, opacus_more, outcome, recorders

LEAKS: dict[str, dict[str, Leak]] = {**opacus.LEAKS, **opacus_more.LEAKS, **recorders.LEAKS}
CORRECT: dict[str, dict[str, Run]] = {
    "Correct loops beside them": opacus.CORRECT,
    "More correct loops": opacus_more.CORRECT,
    "Correct recorders": recorders.CORRECT,
}
SAMPLERS = "Correct samplers"
# The code that this process has loaded, whatever is checked out while it counts.
_COMMIT = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()
_FOUND = (Verdict.VIOLATION.value, Verdict.INVALID.value)
_SAMPLER_CHECKS = (
    "sampling rate",
    "sampling scheme",
    "sampling of pairs",
    "sampling in time",
    "batch sizes",
    "single records",
)


def leak_section(group: str, runs: int) -> tuple[str, int]:
    """The section of a group of leaks, and how many of them were found or named too rarely."""
    lines = [
        f"## {group}",
        "",
        f"{_state()}",
        "",
        "| leak | runs | VIOLATION or INVALID | named first | else its part not tested | by |",
        "|---|---|---|---|---|---|",
    ]
    wrong = 0
    for name, leak in LEAKS[group].items():
        results = [_outcome(leak.run, seed) for seed in range(runs)]
        called = [item for item in results if item.verdict in _FOUND]
        named = sum(item.lead in leak.checks for item in called)
        said = sum(item.verdict not in _FOUND and leak.part in item.untested for item in results)
        by = collections.Counter(item.lead or "nothing" for item in results)
        row = f"| {name} | {runs} | {len(called)} | {named} | {said} | {_listed(by)} |"
        print(row, flush=True)
        lines.append(row)
        wrong += int(20 * (named + said) < 19 * runs)
    return "\n".join(lines) + "\n", wrong


def _outcome(run: Callable[[int], AuditResult | Outcome], seed: int) -> Outcome:
    """What came of a run; one that raises is counted as such."""
    try:
        return outcome(run(seed))
    except Exception as error:  # noqa: BLE001
        print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        return Outcome(f"raised {type(error).__name__}", (), (), type(error).__name__)


def correct_section(group: str, runs: int) -> tuple[str, int]:
    """The section of correct loops, and how many of their runs had an alarm."""
    lines = [
        f"## {group}",
        "",
        f"{_state()} Nothing may be found here.",
        "",
        "| correct loop | runs | failed an exact check | VIOLATION or INVALID | other failures | "
        "parts not tested |",
        "|---|---|---|---|---|---|",
    ]
    wrong = 0
    for name, run in CORRECT[group].items():
        exact = called = 0
        others: collections.Counter[str] = collections.Counter()
        untested: collections.Counter[str] = collections.Counter()
        for seed in range(runs):
            found = _outcome(run, seed)
            exact += bool(EXACT & {*found.failed})
            called += found.verdict in _FOUND
            others.update({*found.failed} - EXACT)
            untested.update(found.untested)
            called += found.verdict.startswith("raised")
            if found.failed:
                print(f"{name}, seed {seed}: {found}", flush=True)
        row = f"| {name} | {runs} | {exact} | {called} | {_listed(others)} | {_listed(untested)} |"
        print(row, flush=True)
        lines.append(row)
        wrong += exact + called
    return "\n".join(lines) + "\n", wrong


def sampler_section(runs: int) -> tuple[str, int]:
    """Batches of correct samplers: how often each check of them fails at the default gate."""
    failed: collections.Counter[str] = collections.Counter()
    called = 0
    for seed in range(runs):
        found = outcome(recorders.sampled_correctly(seed))
        failed.update({*found.failed} & {*_SAMPLER_CHECKS})
        called += found.verdict in _FOUND
    text = (
        f"## {SAMPLERS}\n\n{_state()} {runs} runs of {len(recorders.SAMPLERS)} kinds (rate, "
        f"records and steps), default false-alarm rate of the gate (0.001 for all checks "
        f"together): VIOLATION or INVALID in {called}; failures of sampler checks: "
        f"{_listed(failed) or 'none'}.\n"
    )
    print(text, flush=True)
    return text, int(called > 1 + np.ceil(0.001 * runs))


def _listed(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _state() -> str:
    """When, and on which code."""
    return f"Counted on {time.strftime('%Y-%m-%d')}, at {_COMMIT or 'an unknown commit'}."


def main() -> int:
    """Count the groups that were asked for; how many cells were wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups", nargs="*", help="how groups begin, in the order to count them; all without one"
    )
    parser.add_argument("--runs", type=int, default=20, help="runs of every loop")
    parser.add_argument("--samplers", type=int, default=300, help="runs of correct samplers")
    parser.add_argument("--output", type=Path, help="a page whose sections are written")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    wrong = 0
    every = (*LEAKS, *CORRECT, SAMPLERS)
    for group in [
        name for begin in given.groups or [""] for name in every if name.startswith(begin)
    ]:
        print(f"## {group}", flush=True)
        with contextlib.redirect_stderr(io.StringIO()):
            if group == SAMPLERS:
                section, missed = sampler_section(given.samplers)
            elif group in LEAKS:
                section, missed = leak_section(group, given.runs)
            else:
                section, missed = correct_section(group, given.runs)
        wrong += missed
        if given.output is not None:
            before = given.output.read_text(encoding="utf-8")
            given.output.write_text(with_section(before, section), encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
