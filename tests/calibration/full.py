"""The whole calibration; writes docs/calibration.md. Run by ``make calibration``.

Whole audits first: false alarms on every kind of data, power, leaks. Then the bounds of every
method by themselves, on a grid. Every section is written to a file of its own once it is counted,
so that a call that was stopped goes on where it was: ``--resume``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import askgauss
from askgauss.auditors import GaussianEllipsoid, GaussianRectangle, GaussianShift
from askgauss.linear_transcript import TreePlan
from tests.calibration import gate, grid, leak_zoo, peers, powers, transcript_cells, verdicts
from tests.calibration.grid import Cell, Count, full_grid

ELLIPSOID_CELLS = [
    Cell(present, absent, epsilon, 0.082, 2500)
    for (present, absent), epsilon in itertools.product(((50, 50), (500, 500)), (2.0, 8.0))
]

PEER_CANARIES = (100, 1000)

TREES = {
    "nodes of 64 leaves": leak_zoo.TreeRun(),
    "few canaries": leak_zoo.TreeRun(present=2, absent=8),
    "two of each": leak_zoo.TreeRun(present=2, absent=2),
    "two leaves": leak_zoo.TreeRun(plan=TreePlan(steps=2), present=60, absent=60),
    "more present than absent": leak_zoo.TreeRun(present=300, absent=40),
    "prefixes": leak_zoo.TreeRun(plan=TreePlan(steps=40, release="prefixes"), absent=300),
    "four trees": leak_zoo.TreeRun(plan=TreePlan(steps=64, restart_every=16), absent=300),
    "delta 1e-2": leak_zoo.TreeRun(plan=TreePlan(steps=16), absent=300, delta=1e-2),
    "delta 1e-10": leak_zoo.TreeRun(plan=TreePlan(steps=16), absent=300, delta=1e-10),
}
EXAMPLES = {
    "60 / 60, sd of the background .3": leak_zoo.ExampleRun(steps=100, dimension=1000),
    "background of the noise's size": leak_zoo.ExampleRun(
        steps=100, dimension=1000, background=1.0
    ),
    "few canaries": leak_zoo.ExampleRun(steps=100, dimension=1000, present=4, absent=8),
    "few parameters": leak_zoo.ExampleRun(steps=100, dimension=100, present=30, absent=30),
}
CONFIDENCES = (0.9, 0.99, 0.999)

# Every cell of whole audits: its section, its name, the case, and the options of `tally`.
WHOLE: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    *(("scores", str(cell), cell, {}) for cell in (*verdicts.SAMPLED, *verdicts.PLAIN)),
    *(
        ("scores", f"{cell}", cell, {"confidence": confidence})
        for cell in (verdicts.SAMPLED[2], verdicts.SAMPLED[10])
        for confidence in CONFIDENCES
    ),
    *(("transcripts", cell.name, cell, {}) for cell in transcript_cells.CELLS),
    *(
        ("transcripts", cell.name, cell, {"confidence": confidence})
        for cell in transcript_cells.CELLS[:1]
        for confidence in CONFIDENCES
    ),
    *(("transcripts", str(cell), cell, {}) for cell in gate.SETTINGS if cell.canaries != "scores"),
    *(("trees", name, cell, {}) for name, cell in TREES.items()),
    *(("examples", name, cell, {}) for name, cell in EXAMPLES.items()),
)

# Audits of each cell, at a scale of 1; those that take longer than their neighbours get fewer.
AUDITS = {"scores": 400, "transcripts": 250, "trees": 800, "examples": 1000}
SLOW = {
    ("scores", str(verdicts.SAMPLED[13])): 0.25,
    ("transcripts", "noise that falls"): 0.25,
}
# Audits that print their power, and leaks that are held against it.
POWER_AUDITS, POWER_LEAKS = 200, 1000
# Audits of a leak, and how many more where one was missed.
LEAK_AUDITS, MORE_LEAKS = 40, 160


def count_whole(index: int, scale: float) -> verdicts.Tally:
    section, name, cell, options = WHOLE[index]
    audits = math.ceil(scale * AUDITS[section] * SLOW.get((section, name), 1.0))
    return verdicts.tally(cell, audits, name=name, seed=1, **options)


def count_power(index: int, scale: float) -> powers.PowerCount:
    audits, leaks = math.ceil(scale * POWER_AUDITS), math.ceil(scale * POWER_LEAKS)
    return powers.count(powers.CELLS[index], audits, leaks, seed=1)


def count_leak(index: int, scale: float) -> verdicts.Noticed:
    leak = leak_zoo.LEAKS[index]
    audits, more = math.ceil(scale * LEAK_AUDITS), math.ceil(scale * MORE_LEAKS)
    return verdicts.noticed(leak.name, leak.run, audits, more, seed=1)


def in_parallel(name: str, task: Any, items: Any, scale: float, workers: int) -> list[Any]:
    with ProcessPoolExecutor(workers) as pool:
        return told(name, pool.map(partial(task, scale=scale), items), len(items))


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


NOTES = {
    "scores": (
        "Whole audits: scores",
        "Default audits of scores: DP-SGD by Model 1, and releases of other laws handed over as "
        "two groups of fixed size without a word about their noise.",
    ),
    "transcripts": (
        "Whole audits: transcripts",
        "Default audits of transcripts, by `SubsampledGaussian`; what the run keeps exactly is the "
        "truth that its bound is held against.",
    ),
    "trees": ("Whole audits: trees", "Default audits of linear transcripts."),
    "examples": (
        "Whole audits: examples",
        "Records as canaries: gradients shorter than the clip norm along directions that are not "
        "orthogonal, in a background that is not known.",
    ),
}


def whole_section(kind: str, scale: float, workers: int) -> Iterable[str]:
    items = [index for index, (section, *_) in enumerate(WHOLE) if section == kind]
    return verdicts.section(*NOTES[kind], in_parallel(kind, count_whole, items, scale, workers))


def power_section(scale: float, workers: int) -> Iterable[str]:
    items = range(len(powers.CELLS))
    return powers.section(in_parallel("power", count_power, items, scale, workers))


def leak_section(scale: float, workers: int) -> Iterable[str]:
    items = range(len(leak_zoo.LEAKS))
    return verdicts.leak_section(in_parallel("leaks", count_leak, items, scale, workers))


def grid_section(
    title: str,
    note: str,
    auditor: object,
    audits: int,
    scale: float,
    workers: int,
    *,
    law_known: bool = True,
    cells: list[Cell] | None = None,
    full: bool = False,
) -> Iterable[str]:
    cells = full_grid() if cells is None else cells
    counts = run(auditor, cells, math.ceil(scale * audits), workers, law_known)
    return section(title, note, counts, full)


# In the order of the page; each takes the scale and the workers.
SECTIONS: dict[str, Callable[[float, int], Iterable[str]]] = {
    **{kind: partial(whole_section, kind) for kind in NOTES},
    "power": power_section,
    "leaks": leak_section,
    "shift": partial(
        grid_section,
        "GaussianShift, sampling rate and steps known",
        "The exact law of the subsampled sum from shift to epsilon.",
        GaussianShift(),
        600,
        full=True,
    ),
    "shift-law-unknown": partial(
        grid_section,
        "GaussianShift, sampling rate and steps unknown",
        "The plain Gaussian shift stands in for the exact law.",
        GaussianShift(),
        300,
        law_known=False,
    ),
    "rectangle": partial(
        grid_section,
        "GaussianRectangle",
        "Student-t and chi-square intervals with Bonferroni's correction, variances free. Where "
        "the Gaussian pair exceeds 1.01 times the exact law the result is INVALID.",
        GaussianRectangle(),
        200,
    ),
    "ellipsoid": partial(
        grid_section,
        "GaussianEllipsoid",
        "Bootstrap covariance, 2,000 resamples, variances free.",
        GaussianEllipsoid(seed=0),
        100,
        cells=ELLIPSOID_CELLS,
        full=True,
    ),
    "peers": lambda scale, workers: peers.section(run_peers(math.ceil(scale * 200), workers)),
}

HEAD = f"""# Calibration

What audits say of simulated runs whose truth is known. First whole verdicts: how often
correct runs alarm and by which check, whether the power that is printed is the power
there is, and what becomes of leaks. Then how often the bound of every method lies above
the true epsilon of its pair of scores, by the exact law, at confidence {grid.CONFIDENCE:g} and
delta {grid.DELTA:g}. Written by `make calibration`; each section says at which scale it was
counted.
"""


def cpu_seconds() -> float:
    return sum(
        getattr(resource.getrusage(who), field)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        for field in ("ru_utime", "ru_stime")
    )


def write_section(name: str, folder: Path, scale: float, workers: int) -> None:
    """Count one section and write it, complete or not at all."""
    before = cpu_seconds()
    lines = list(SECTIONS[name](scale, workers))
    used = cpu_seconds() - before
    lines += [
        f"askgauss {askgauss.__version__}, Python {platform.python_version()}, seed 1, scale "
        f"{scale:g}; {used / 60:.1f} minutes of CPU time.",
        "",
    ]
    part = folder / f"{name}.md.part"
    part.write_text("\n".join(lines))
    part.replace(folder / f"{name}.md")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the audits; 1 takes an hour of CPU"
    )
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--folder", type=Path, default=Path("build/calibration"))
    parser.add_argument("--resume", action="store_true", help="keep sections counted before")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.sections:
        if not (options.resume and (options.folder / f"{name}.md").exists()):
            write_section(name, options.folder, options.scale, options.workers)
    files = [options.folder / f"{name}.md" for name in SECTIONS]
    missing = [file.stem for file in files if not file.exists()]
    if missing:
        print(f"{options.output} waits for: {', '.join(missing)}", file=sys.stderr)
        return
    options.output.write_text("\n".join([HEAD, *(file.read_text() for file in files)]))


if __name__ == "__main__":
    main()
