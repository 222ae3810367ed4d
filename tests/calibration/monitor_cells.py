"""How often a monitor alarms on correct runs, judged after every step, and how soon on broken ones.

``python -m tests.calibration.monitor_cells`` prints the tables of docs/monitor.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np

from askgauss.monitor.rehearsal import Fault
from tests.monitor.runs import NOISE, watched

ERRORS = (0.001, 0.01, 0.05, 0.1)
# More noise, less contribution and a lower rate than claimed are correct as well.
CLEAN = {
    "as claimed, 250 / 4,750": {},
    "as claimed, 100 / 100": {"present": 100, "absent": 100},
    "noise x1.3, 100 / 100": {"present": 100, "absent": 100, "fault": Fault(noise=1.3)},
    "contribution 0.7, rate x0.8, 100 / 100": {
        "present": 100,
        "absent": 100,
        "fault": Fault(contribution=0.7, rate=0.8),
    },
    "noise by a schedule, 100 / 100": {
        "present": 100,
        "absent": 100,
        "schedule": lambda step: NOISE * (1.0 + 0.5 * math.cos(step / 50.0)),
    },
}
FAULTS = {
    "noise x0.9": ({"fault": Fault(noise=0.9)}, 1),
    "noise x0.95": ({"fault": Fault(noise=0.95)}, None),
    "noise x0.99": ({"fault": Fault(noise=0.99)}, 40),
    "contribution 1.5": ({"fault": Fault(contribution=1.5)}, 40),
    "rate x1.5": ({"fault": Fault(rate=1.5)}, 10),
    "rate x1.1": ({"fault": Fault(rate=1.1)}, None),
    "the same noise in every step": ({"fault": Fault(period=1)}, None),
    "noise comes back after 50 steps": ({"fault": Fault(period=50)}, None),
    "noise x0.9 from step 300 on": ({"fault": Fault(noise=0.9, start=300)}, None),
    "noise x0.99 from step 300 on": ({"fault": Fault(noise=0.99, start=300)}, None),
    "200 canaries, 100 present: noise x0.9": (
        {"fault": Fault(noise=0.9), "present": 100, "absent": 100},
        10,
    ),
}


def largest_evidence(name: str, runs: int, steps: int, seed: int = 0) -> list[float]:
    """The largest joint evidence of each of so many clean runs, in decimal logarithms."""
    found = []
    for run in range(runs):
        generator = np.random.default_rng([seed, run, *name.encode()])
        monitor = watched(generator, steps=steps, to_the_end=True, **CLEAN[name])
        found.append(max(monitor.course().evidence))
    return found


def alarm_steps(name: str, runs: int, steps: int = 600, seed: int = 1) -> list[float]:
    """The step of the alarm in each of so many broken runs; infinite where there was none."""
    found = []
    for run in range(runs):
        generator = np.random.default_rng([seed, run, *name.encode()])
        alarm = watched(generator, steps=steps, **FAULTS[name][0]).alarm
        found.append(math.inf if alarm is None else alarm.step)
    return found


def rows(runs: int, small: int, steps: int) -> Iterator[str]:
    """Both tables, line by line."""
    yield "| clean runs | runs | " + " | ".join(f"alarms at {e:g}" for e in ERRORS) + " |"
    for index, name in enumerate(CLEAN):
        count = runs if index == 0 else small
        peaks = np.array(largest_evidence(name, count, steps))
        alarms = [int(np.count_nonzero(peaks >= -math.log10(error))) for error in ERRORS]
        yield f"| {name} | {count:,} | " + " | ".join(map(str, alarms)) + " |"
    yield "| fault | median step | 80 % by step | must reach |"
    for name, (_, target) in FAULTS.items():
        found = alarm_steps(name, 100)
        median, most = np.median(found), np.quantile(found, 0.8, method="higher")
        yield f"| {name} | {median:g} | {most:g} | {target or ''} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="clean runs of the first cell")
    parser.add_argument("--small", type=int, default=300, help="clean runs of each other cell")
    parser.add_argument("--steps", type=int, default=2500)
    given = parser.parse_args()
    for row in rows(given.runs, given.small, given.steps):
        print(row, flush=True)


if __name__ == "__main__":
    main()
