"""``make kills``: runs of every kind killed where they touch files, two hundred times in all."""

from __future__ import annotations

import argparse
import sys

from tests.kills.engine import kill_again_and_again
from tests.kills.runs import RUNS


def main() -> int:
    """All kinds of runs, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=204, help="kills over all kinds of runs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills, failed = 0, 0
    for name in RUNS:
        outcome = kill_again_and_again(name, -(-arguments.kills // len(RUNS)), arguments.seed)
        kills, failed = kills + outcome.kills, failed + len(outcome.failures)
        lives = ", ".join(f"{count} {what}" for what, count in sorted(outcome.lives.items()))
        print(f"{name:20} {outcome.kills:4} kills: {lives}", flush=True)
        for failure in outcome.failures[:5]:
            print("  FAILED", failure)
    print(f"{kills} kills over {len(RUNS)} kinds of runs: {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
