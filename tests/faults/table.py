"""Every fault, many runs each; writes docs/faults.md. Run by ``make faults``."""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import askgauss
from askgauss._text import number
from askgauss.auditing import audit
from askgauss.auditors import GaussianEllipsoid
from askgauss.exceptions import AskGaussError
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.simulation import FAULTS, INVISIBLE, TREE_FAULTS, Fault, TreeFault
from tests.calibration import gate
from tests.faults import runs

# Runs in which the paper's score audit is made as well: it is the slow one.
_SCORE_AUDITS = 5


@dataclass(frozen=True)
class Row:
    """What happened to one fault, or to none."""

    found: int
    led: int
    runs: int
    verdicts: Counter[str]
    others: Counter[str]
    bound: float
    score_audit: float | None

    @property
    def verdict(self) -> str:
        (name, count), *_ = self.verdicts.most_common(1)
        return name if count == self.runs else f"{name} ({count})"


def row(fault: Fault | TreeFault | None, repeats: int, tree: bool = False) -> Row:
    """Simulate, audit and count."""
    seen, led, verdicts, others = 0, 0, Counter[str](), Counter[str]()
    bounds, scores = [], []
    for seed in range(repeats):
        if tree:
            result, data = runs.audited_tree(fault, seed), None
        else:
            data = runs.simulated(fault, seed)
            result = audit(data, claim=runs.claim_of(fault))
        flagged = runs.found(result)
        seen += fault is not None and fault.finding in flagged
        led += fault is not None and runs.names(result, fault)
        verdicts[result.verdict.value] += 1
        others.update(flagged - {"" if fault is None else fault.finding})
        bounds.append(result.epsilon_lower)
        if seed < _SCORE_AUDITS:
            scores.append(
                score_audit(data if data is not None else runs.simulated_tree(fault, seed))
            )
    known = [value for value in scores if value is not None]
    return Row(
        found=seen,
        led=led,
        runs=repeats,
        verdicts=verdicts,
        others=others,
        bound=float(np.median(bounds)),
        score_audit=float(np.median(known)) if known else None,
    )


def score_audit(data: Transcript | LinearTranscript) -> float | None:
    """The paper's bound: a pooled bootstrap ellipsoid over sum scores; None where it refuses."""
    try:
        scores = data.scores()
        auditor = GaussianEllipsoid(pooled=True, resamples=500)
        return audit(scores, delta=runs.DELTA, auditor=auditor, diagnostics=False).epsilon_lower
    except AskGaussError:
        return None


def shown(value: float | None) -> str:
    if value is None:
        return "refused"
    return number(value) if math.isinf(value) or value < 1e4 else f"{value:.0e}"


def table(faults: Iterable[Fault | TreeFault], rows: Iterable[Row]) -> Iterator[str]:
    yield (
        "| fault | what is wrong | finding | found in | named first in | verdict | our bound "
        "| score audit |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for fault, item in zip(faults, rows, strict=True):
        yield (
            f"| `{fault.name}` | {fault.description} | {fault.finding} | "
            f"{item.found} of {item.runs} | {item.led} of {item.runs} | {item.verdict} | "
            f"{shown(item.bound)} | {shown(item.score_audit)} |"
        )
    yield ""


def clean(name: str, item: Row) -> Iterator[str]:
    flagged = ", ".join(f"{check} in {count}" for check, count in item.others.items())
    yield (
        f"- {name}: {', '.join(f'{key} {value}' for key, value in item.verdicts.items())} of "
        f"{item.runs} runs; flagged: {flagged or 'nothing'}; median bound {shown(item.bound)}."
    )


def gate_section(counts: list[tuple[gate.Setting, float, gate.Alarms]]) -> Iterator[str]:
    yield "| correct run | gate error | audits | VIOLATION or INVALID | flagged checks |"
    yield "|---|---|---|---|---|"
    for setting, error, alarms in counts:
        checks = ", ".join(f"{name} {count}" for name, count in alarms.checks.most_common(3))
        yield f"| {setting} | {error:g} | {alarms.audits} | {alarms.false} | {checks} |"
    for error in dict.fromkeys(error for _, error, _ in counts):
        chosen = [alarms for _, other, alarms in counts if other == error]
        audits, false = sum(a.audits for a in chosen), sum(a.false for a in chosen)
        yield f"| **all** | {error:g} | {audits} | **{false}** ({false / audits:.2%}) | |"
    yield ""


def lines(options: argparse.Namespace) -> Iterator[str]:
    started = time.time()
    size = runs.DEFAULT
    claim = runs.claim_of(None)
    with ProcessPoolExecutor(options.workers) as pool:
        dpsgd = pool.map(partial(row, repeats=options.runs), FAULTS.values())
        trees = pool.map(partial(row, repeats=options.runs, tree=True), TREE_FAULTS.values())
        unbroken = [
            pool.submit(row, None, options.runs),
            pool.submit(row, None, options.runs, True),
        ]
        settings = list(itertools.product(gate.SETTINGS, (0.001, 0.05)))
        alarms = pool.map(
            gate.count_alarms,
            [setting for setting, _ in settings],
            itertools.repeat(options.audits),
            [error for _, error in settings],
        )
        yield "# Faults"
        yield ""
        yield from paragraph(
            "What goes wrong in private training, broken on purpose in the simulator, and what an "
            "audit says of it. A fault replaces one part of the mechanism and never the statistic. "
            "Written by `make faults`."
        )
        yield from paragraph(
            f"Every run has {size.present} present and {size.absent} absent canaries, "
            f"{size.steps} steps, sampling rate {runs.SAMPLING_RATE:g}, noise multiplier "
            f"{runs.NOISE_MULTIPLIER:g}, and claims epsilon {claim.epsilon:.2f} at delta "
            f"{claim.delta:g}; those with empty batches have one record a batch. *Found in*: runs "
            "in which the named finding failed or warned. *Named first in*: runs whose headline is "
            "that finding, or one that names the fault as well; where nothing failed, whose first "
            "warning is. *Verdict*: the most common one, and how often where not always. *Our "
            "bound*: the median epsilon from the transcript. *Score "
            "audit*: what the paper's pooled ellipsoid reports from the sum scores of the same "
            "runs (a median of five), without any of these checks."
        )
        yield from table(FAULTS.values(), dpsgd)
        yield from paragraph(
            "Where the score audit stays below the claim, it does not see the fault; noise that is "
            "used again even makes a run look more private. A verdict of CONSISTENT belongs to "
            "faults that cost accuracy and not privacy: they are warned of."
        )
        yield "## DP-FTRL"
        yield ""
        yield from paragraph(
            f"Trees of {runs.TREE_STEPS} leaves, {runs.TREE_CANARIES} canaries of each kind, every "
            f"node released, epsilon {runs.TREE_EPSILON:g} at delta {runs.DELTA:g}."
        )
        yield from table(TREE_FAULTS.values(), trees)
        yield "## Correct runs"
        yield ""
        for name, future in zip(("DP-SGD", "DP-FTRL"), unbroken, strict=True):
            yield from clean(name, future.result())
        yield ""
        yield from paragraph(
            "A correct run ends in VIOLATION or INVALID at most at the gate error, however small "
            "the run is. These claim exactly what they do, with nothing to spare."
        )
        yield from gate_section(
            [(*pair, count) for pair, count in zip(settings, alarms, strict=True)]
        )
        yield "## What one run does not show"
        yield ""
        yield "| | what is wrong | why it does not show | what shows it |"
        yield "|---|---|---|---|"
        for item in INVISIBLE:
            yield f"| `{item.name}` | {item.description} | {item.reason} | {item.instead} |"
        yield ""
        yield from paragraph(
            f"askgauss {askgauss.__version__}, Python {platform.python_version()}, seeds 0 to "
            f"{options.runs - 1}, {(time.time() - started) / 60:.0f} minutes on "
            f"{options.workers} workers."
        )


def paragraph(text: str) -> Iterator[str]:
    yield textwrap.fill(text, 100)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--audits", type=int, default=300)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_text("\n".join(lines(options)))


if __name__ == "__main__":
    main()
