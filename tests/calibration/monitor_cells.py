"""How often a monitor alarms on correct runs, judged after every step, and how soon on broken ones.

``python -m tests.calibration.monitor_cells`` prints the tables of docs/monitor.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

import askgauss as ag
from askgauss.monitor.eprocess import (
    CONTRIBUTION,
    CORRELATION,
    ODDS,
    PARTS,
    EProcesses,
    ObservedStep,
    WatchedCanaries,
)
from askgauss.monitor.eprocess import (
    NOISE as NOISE_BETS,
)
from askgauss.monitor.simulate_run import RunFault, _WithoutImplied
from askgauss.stats import betting
from tests.monitor.runs import NOISE, RATE, watched

ERRORS = (0.001, 0.01, 0.05, 0.1)
# More noise, less contribution and a lower rate than claimed are correct as well.
CLEAN = {
    "as claimed, 250 / 4,750": {},
    "as claimed, 100 / 100": {"present": 100, "absent": 100},
    "noise x1.3, 100 / 100": {"present": 100, "absent": 100, "noise": 1.3},
    "contribution 0.7, rate x0.8, 100 / 100": {
        "present": 100,
        "absent": 100,
        "contribution": 0.7,
        "rate": 0.8,
    },
    "noise by a schedule, 100 / 100": {
        "present": 100,
        "absent": 100,
        "schedule": lambda step: NOISE * (1.0 + 0.5 * math.cos(step / 50.0)),
    },
}


def every_step(generator: np.random.Generator, runs: int, present: int, step: int) -> NDArray:
    """How many are planted where every record is in every step."""
    return np.full(runs, present)


def cyclic(generator: np.random.Generator, runs: int, present: int, step: int) -> NDArray:
    """Of one of four groups of the same size, by a coin of .32."""
    return generator.binomial(present // 4, 0.32, runs)


class BinsOfTwelve:
    """Balls in twelve bins, thrown anew in every epoch."""

    def __call__(
        self, generator: np.random.Generator, runs: int, present: int, step: int
    ) -> NDArray:
        place = (step - 1) % 12
        if place == 0:
            self._counts = generator.multinomial(present, np.full(12, 1 / 12), runs)
        return self._counts[:, place]


# Other declared schemes, whose rate is not watched.
SCHEMES = {
    "every record in every step, 100 / 100": {"present": 100, "absent": 100, "drawn": every_step},
    "cyclic Poisson in 4 groups, 100 / 100": {"present": 100, "absent": 100, "drawn": cyclic},
    "balls in 12 bins, 100 / 100": {"present": 100, "absent": 100, "drawn": BinsOfTwelve()},
}
CLEAN |= SCHEMES
# Runs that are judged side by side.
_BATCH = 250
FAULTS = {
    "noise x0.9": ({"fault": RunFault(noise=0.9)}, 1),
    "noise x0.95": ({"fault": RunFault(noise=0.95)}, None),
    "noise x0.99": ({"fault": RunFault(noise=0.99)}, 40),
    "contribution 1.5": ({"fault": RunFault(contribution=1.5)}, 40),
    "rate x1.5": ({"fault": RunFault(rate=1.5)}, 10),
    "rate x1.1": ({"fault": RunFault(rate=1.1)}, None),
    "the same noise in every step": ({"fault": RunFault(period=1)}, None),
    "noise comes back after 50 steps": ({"fault": RunFault(period=50)}, None),
    "noise x0.9 from step 300 on": ({"fault": RunFault(noise=0.9, start=300)}, None),
    "noise x0.99 from step 300 on": ({"fault": RunFault(noise=0.99, start=300)}, None),
    "200 canaries, 100 present: noise x0.9": (
        {"fault": RunFault(noise=0.9), "present": 100, "absent": 100},
        10,
    ),
}


def largest_evidence(
    generator: np.random.Generator,
    runs: int,
    steps: int,
    *,
    present: int = 250,
    absent: int = 4750,
    noise: float = 1.0,
    contribution: float = 1.0,
    rate: float = 1.0,
    schedule: Callable[[int], float] = lambda step: NOISE,
    drawn: Callable[[np.random.Generator, int, int, int], NDArray] | None = None,
    show: Callable[[ObservedStep], None] | None = None,
) -> NDArray[np.float64]:
    """The largest joint evidence of each of so many runs, judged after every step, in logarithms.

    The same bets as the monitor's, written for many runs at once; ``show`` is handed the first
    run's steps, for a monitor to judge as well. ``drawn`` says how many canaries a step plants,
    where that is not by Poisson coins.
    """
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=0)
    size = canaries.size
    layout = WatchedCanaries(canaries, np.arange(min(256, size)))
    quiet = layout.quiet.size
    parts = tuple(name for name in PARTS if drawn is None or name != "sampling rate")
    log_weight = EProcesses(layout, parts, RATE)._log_weight[:, np.newaxis]
    wealth = np.full((log_weight.size, runs), -np.inf)
    peak = np.full(runs, -np.inf)
    earlier: dict[int, NDArray[np.float64]] = {}
    previous = None
    column = np.newaxis
    for step in range(1, steps + 1):
        declared = schedule(step)
        scale = noise * declared
        if drawn is None:
            count = generator.binomial(present, RATE * rate, runs)
        else:
            count = drawn(generator, runs, present, step)
        values = scale * generator.normal(size=(runs, quiet))
        others = size - count - quiet
        # Where every absent canary is kept and every present one planted, nobody is left.
        rest = scale**2 * np.where(others > 0, generator.chisquare(np.maximum(others, 1)), 0.0)
        square = (values**2).sum(axis=1) + rest
        total = contribution * count + scale * np.sqrt(count) * generator.normal(size=runs)
        # About their own mean, and then about 0.
        spread = scale**2 * np.where(count > 1, generator.chisquare(np.maximum(count - 1, 1)), 0.0)
        planted_square = spread + total**2 / np.maximum(count, 1)
        row = values * math.sqrt(quiet) / np.sqrt((values**2).sum(axis=1))[:, column]
        excess = (total - count) / declared
        about_one = (planted_square - 2.0 * total + count) / declared**2
        like = np.zeros((2, CORRELATION.size, runs))
        rho = CORRELATION[:, column]

        def alike(old, row=row, rho=rho):
            product = row * old
            return betting.sign_log_e(product.sum(axis=1), (product**2).sum(axis=1), rho)

        if previous is not None:
            like[0] = alike(previous)
        if earlier:
            each = [alike(old) for old in earlier.values()]
            like[1] = np.logaddexp.reduce(each) - math.log(len(each))
        logs = [
            betting.noise_log_e(size - count, square / declared**2, NOISE_BETS[:, column]),
            betting.sign_log_e(excess, about_one, CONTRIBUTION[:, column]),
            betting.rate_log_e(count, present, RATE, ODDS[:, column]),
            like.reshape(-1, runs),
        ]
        if drawn is not None:
            del logs[2]
        wealth = betting.advance(wealth, log_weight, step, np.concatenate(logs))
        joint = np.logaddexp.reduce(wealth, axis=0)
        peak = np.maximum(peak, np.logaddexp(joint, -math.log(step + 1.0)))
        previous = row
        earlier[-1 if step == 1 else min((step & -step).bit_length() - 1, 7)] = row
        if show is not None:
            kept = np.zeros(min(256, size))
            kept[layout.quiet] = values[0]
            one = [np.array([item[0]]) for item in (count, total, planted_square, square)]
            own = drawn is not None
            show(ObservedStep(*one[:3], np.zeros(1), one[3], kept, declared, True, own))
    return peak


def alarm_steps(name: str, runs: int, steps: int = 600, seed: int = 1) -> list[float]:
    """The step each of so many broken runs was stopped in; infinite where none was."""
    found = []
    for run in range(runs):
        generator = np.random.default_rng([seed, run, *name.encode()])
        monitor = watched(generator, steps=steps, kind=_WithoutImplied, **FAULTS[name][0])
        found.append(math.inf if monitor.alarm is None else monitor.steps)
    return found


def clean_rows(runs: int, small: int, steps: int) -> Iterator[str]:
    """How many clean runs ever reach the evidence of an alarm."""
    yield "| clean runs | runs | " + " | ".join(f"alarms at {e:g}" for e in ERRORS) + " |"
    for index, (name, cell) in enumerate(CLEAN.items()):
        count = runs if index == 0 else small
        sizes = [min(_BATCH, count - start) for start in range(0, count, _BATCH)]
        streams = np.random.default_rng(index).spawn(len(sizes))
        peaks = np.concatenate(
            [
                largest_evidence(stream, size, steps, **cell)
                for stream, size in zip(streams, sizes, strict=True)
            ]
        )
        alarms = [int(np.count_nonzero(peaks >= -math.log(error))) for error in ERRORS]
        yield f"| {name} | {count:,} | " + " | ".join(map(str, alarms)) + " |"


def fault_rows(runs: int) -> Iterator[str]:
    """By which step half, and 80 %, of broken runs alarm."""
    yield "| fault | median step | 80 % by step | must reach |"
    for name, (_, target) in FAULTS.items():
        found = alarm_steps(name, runs)
        median, most = np.median(found), np.quantile(found, 0.8, method="higher")
        yield f"| {name} | {median:g} | {most:g} | {target or ''} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="clean runs of the first cell")
    parser.add_argument("--small", type=int, default=2000, help="clean runs of each other cell")
    parser.add_argument("--steps", type=int, default=2500)
    given = parser.parse_args()
    for row in chain(fault_rows(100), clean_rows(given.runs, given.small, given.steps)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
