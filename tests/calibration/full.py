"""The whole calibration grid; writes docs/calibration.md. Run by ``make calibration``."""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import askgauss
from askgauss.auditors import GaussianEllipsoid, GaussianRectangle, GaussianShift
from tests.calibration import grid, peers
from tests.calibration.grid import Cell, Count, full_grid

ELLIPSOID_CELLS = [
    Cell(present, absent, epsilon, 0.082, steps)
    for (present, absent), epsilon, steps in itertools.product(
        ((50, 50), (500, 500), (2500, 2500)), (2.0, 8.0), (50, 2500)
    )
]

PEER_CANARIES = (100, 1000, 5000)


def run(
    auditor: object, cells: list[Cell], audits: int, workers: int, law_known: bool = True
) -> list[Count]:
    task = partial(grid.count, auditor, audits=audits, seed=1, law_known=law_known)
    with ProcessPoolExecutor(workers) as pool:
        return told(type(auditor).__name__, pool.map(task, cells), len(cells))


def run_peers(audits: int, workers: int) -> list[peers.PeerCount]:
    task = partial(peers.count, audits=audits, seed=1)
    cells = list(peers.cells(PEER_CANARIES))
    with ProcessPoolExecutor(workers) as pool:
        return told("peers", pool.map(task, cells, chunksize=4), len(cells))


def told(name: str, counts: Iterable[Any], of: int) -> list[Any]:
    """All counts, saying on stderr how far it is."""
    found = []
    for number, item in enumerate(counts, 1):
        found.append(item)
        if 10 * number // of > 10 * (number - 1) // of:
            print(f"{time.strftime('%H:%M:%S')} {name}: {number} of {of}", file=sys.stderr)
    return found


def section(title: str, note: str, counts: list[Count], full: bool) -> Iterable[str]:
    cells = len(counts)
    allowed = counts[0].allowed_among(cells)
    worst = max(counts, key=lambda item: item.above)
    over = [item for item in counts if item.above > allowed]
    audits = sum(item.audits for item in counts)
    above = sum(item.above for item in counts)
    yield f"## {title}"
    yield ""
    yield note
    yield ""
    yield f"- {cells} cells, {counts[0].audits:,} audits each; above the truth in {above:,} of "
    yield f"  {audits:,} audits ({above / audits:.2%}; nominal {1 - grid.CONFIDENCE:.0%})."
    yield f"- Worst cell: {worst.above} of {worst.audits} ({worst.above / worst.audits:.2%}) at "
    yield f"  {worst.cell}. Chance allows {allowed} in some cell at a family-wise error of "
    yield f"  {grid.FAMILY_ERROR:g}. Cells beyond it: **{len(over)}**."
    refused = [item for item in counts if item.invalid]
    if refused:
        yield f"- {len(refused)} cells were called INVALID in at least one audit; an INVALID bound"
        yield "  is not counted as above the truth, since the result says not to use it."
    yield ""
    shown = counts if full else [item for item in counts if item.cell.steps == 2500]
    yield "| present / absent | epsilon | q | T | above the truth | INVALID | mean bound |"
    yield "|---|---|---|---|---|---|---|"
    for item in shown:
        cell = item.cell
        yield (
            f"| {cell.present} / {cell.absent} | {cell.epsilon:g} | {cell.sampling_rate:g} | "
            f"{cell.steps} | {item.above / item.audits:.1%} | {item.invalid:.0%} | "
            f"{item.mean_bound:.3f} |"
        )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--ellipsoid-audits", type=int, default=200)
    parser.add_argument("--peer-audits", type=int, default=500)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    started = time.time()
    cells = full_grid()
    parts = [
        section(
            "GaussianShift, sampling rate and steps known",
            "The exact law of the subsampled sum from shift to epsilon.",
            run(GaussianShift(), cells, options.audits, options.workers),
            full=True,
        ),
        section(
            "GaussianShift, sampling rate and steps unknown",
            "The plain Gaussian shift stands in for the exact law.",
            run(GaussianShift(), cells, options.audits, options.workers, law_known=False),
            full=True,
        ),
        section(
            "GaussianRectangle",
            "Student-t and chi-square intervals with Bonferroni's correction, variances free. "
            "Where the Gaussian pair exceeds 1.01 times the exact law the result is INVALID.",
            run(GaussianRectangle(), cells, options.audits, options.workers),
            full=True,
        ),
        section(
            "GaussianEllipsoid",
            "Bootstrap covariance, 2,000 resamples, variances free.",
            run(
                GaussianEllipsoid(seed=0),
                ELLIPSOID_CELLS,
                options.ellipsoid_audits,
                options.workers,
            ),
            full=True,
        ),
        peers.section(run_peers(options.peer_audits, options.workers)),
    ]
    lines = [
        "# Calibration",
        "",
        "How often each bound lies above the true epsilon of the score pair, by its exact law, on",
        "a grid of simulated audits: confidence "
        f"{grid.CONFIDENCE:g}, delta {grid.DELTA:g}. Written by `make calibration`.",
        "",
        *itertools.chain(*parts),
        f"askgauss {askgauss.__version__}, Python {platform.python_version()}, seed 1, "
        f"{(time.time() - started) / 60:.0f} minutes on {options.workers} workers.",
        "",
    ]
    options.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
