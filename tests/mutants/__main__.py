"""Which deliberate faults the tests find: ``python -m tests.mutants [--fast | --all] [names]``."""

from __future__ import annotations

import argparse
import functools
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants import page, running
from tests.mutants.table import MUTANTS, Mutant

# The share of mutants that fast tests have to kill.
WANTED = 0.9


def main() -> int:
    """Run the mutants, print and keep what became of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all if none is named")
    parser.add_argument("--fast", action="store_true", help="run all fast tests on survivors")
    parser.add_argument("--all", action="store_true", help="run the whole suite on survivors")
    parser.add_argument("--workers", type=int, default=1, help="mutants to run at a time")
    options = parser.parse_args()
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [item for item in MUTANTS if not options.names or item.name in options.names]
    with running.copies(options.workers) as copies:
        idle: queue.Queue[running.Copy] = queue.Queue()
        for copy in copies:
            idle.put(copy)
        run = functools.partial(_run, idle, fast=options.fast, everything=options.all)
        running.check_without_faults(copies[0], chosen)
        with ThreadPoolExecutor(options.workers) as pool:
            outcomes = []
            for item in pool.map(run, chosen):
                outcomes.append(item)
                found = f"killed by {item.killed_by}" if item.killed_by else "SURVIVED"
                print(f"{item.mutant.name}: {found}", flush=True)
                page.write([item])
    killed = sum(bool(item.killed_by) for item in outcomes)
    fast = sum(item.fast for item in outcomes)
    print(f"{killed} of {len(outcomes)} killed, {fast} of them by fast tests")
    return int(fast < WANTED * len(outcomes))


def _run(
    idle: queue.Queue[running.Copy], mutant: Mutant, *, fast: bool, everything: bool
) -> running.Outcome:
    copy = idle.get()
    try:
        return running.outcome(copy, mutant, fast=fast, everything=everything)
    finally:
        idle.put(copy)


if __name__ == "__main__":
    sys.exit(main())
