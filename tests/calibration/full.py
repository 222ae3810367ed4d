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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import askgauss
from askgauss.auditors import GaussianEllipsoid, GaussianRectangle, GaussianShift
from askgauss.mechanisms.plans import TreePlan
from tests.calibration import (
    banded,
    dependent,
    gate,
    grid,
    leak_zoo,
    monitor_cells,
    peers,
    powers,
    sampling_cells,
    steered,
    transcript_cells,
    verdicts,
)
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
    *(("schemes", str(cell), cell, {}) for cell in sampling_cells.RUNS),
    *(("schemes", str(cell), cell, {}) for cell in banded.RUNS),
)

# Audits of each cell, at a scale of 1; those that take longer than their neighbours get fewer.
AUDITS = {"scores": 4000, "transcripts": 1000, "trees": 1000, "examples": 1000, "schemes": 1000}
SLOW = {
    ("scores", str(verdicts.SAMPLED[13])): 0.25,
    ("transcripts", "noise that falls"): 0.25,
}
# Audits that print their power, and leaks that are held against it.
POWER_AUDITS, POWER_LEAKS = 400, 1000
# Audits of a leak, and how many more where one was missed.
LEAK_AUDITS, MORE_LEAKS = 40, 160


def count_whole(index: int, scale: float, seed: int = 1) -> verdicts.Tally:
    section, name, cell, options = WHOLE[index]
    audits = math.ceil(scale * AUDITS[section] * SLOW.get((section, name), 1.0))
    return verdicts.tally(cell, audits, name=name, seed=seed, **options)


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
    auditor: object,
    cells: list[Cell],
    audits: int,
    workers: int,
    law_known: bool = True,
    seed: int = 1,
) -> list[Count]:
    task = partial(grid.count, auditor, audits=audits, seed=seed, law_known=law_known)
    with ProcessPoolExecutor(workers) as pool:
        return told(type(auditor).__name__, pool.map(task, cells), len(cells))


def peer_section(scale: float, workers: int) -> Iterable[str]:
    cells = list(peers.cells(PEER_CANARIES))
    audits = math.ceil(scale * 4000)
    with ProcessPoolExecutor(workers) as pool:
        first = partial(peers.count, audits=audits, seed=1)
        counts = told("peers", pool.map(first, cells, chunksize=4), len(cells))
        places = [place for place, item in enumerate(counts) if item.suspicious]
        second = partial(peers.count, audits=audits, seed=2)
        again = pool.map(second, [cells[place] for place in places])
        return peers.section(counts, dict(zip(places, again, strict=True)))


def rate_section(
    title: str, note: str, cells: Sequence[Any], audits: int, scale: float, workers: int
) -> Iterable[str]:
    """Cells that only count rejections of a claim that is kept."""
    each = math.ceil(scale * audits)
    with ProcessPoolExecutor(workers) as pool:
        counts = told(title, pool.map(_rejections, cells, repeat(each), repeat(1)), len(cells))
        error = 1.0 - grid.CONFIDENCE
        places = [i for i, found in enumerate(counts) if grid.suspicious(found, each, error)]
        fresh = pool.map(_rejections, [cells[i] for i in places], repeat(each), repeat(2))
        again = dict(zip(places, fresh, strict=True))
    over = [
        i
        for i, found in enumerate(counts)
        if grid.beyond(again.get(i, found), each, error, len(cells))
    ]
    worst = max(range(len(cells)), key=counts.__getitem__)
    yield f"## {title}"
    yield ""
    yield note
    yield ""
    yield f"- {len(cells)} cells, {each:,} audits each, at a nominal error of {error:.0%}."
    yield f"- Worst cell: {counts[worst]} of {each:,}, {cells[worst]}."
    yield f"- Cells beyond what chance allows at a family-wise error of {grid.PAGE_ERROR:g}:"
    yield f"  **{len(over)}**."
    yield ""
    yield "| cell | claim rejected | share | again |"
    yield "|---|---|---|---|"
    for place, (cell, found) in enumerate(zip(cells, counts, strict=True)):
        yield f"| {cell} | {found:,} | {found / each:.2%} | {again.get(place, '')} |"
    yield ""


def _rejections(cell: Any, audits: int, seed: int) -> int:
    return cell.count(audits, seed)


def monitor_section(scale: float, workers: int) -> Iterable[str]:
    yield "## Monitor, judged after every step"
    yield ""
    yield "Correct runs of 600 steps; an alarm in any step counts, so that this is the error under"
    yield "whatever rule stops the run. The error that is allowed stands above each column."
    yield ""
    rows = list(monitor_cells.clean_rows(*(2 * [math.ceil(scale * 4000)]), 600))
    yield rows[0]
    yield "|" + "---|" * (rows[0].count("|") - 1)
    yield from rows[1:]
    yield ""


def told(name: str, counts: Iterable[Any], of: int) -> list[Any]:
    """All counts, saying on stderr how far it is."""
    found = []
    for number, item in enumerate(counts, 1):
        found.append(item)
        if 10 * number // of > 10 * (number - 1) // of:
            print(f"{time.strftime('%H:%M:%S')} {name}: {number} of {of}", file=sys.stderr)
    return found


def section(
    title: str, note: str, counts: list[Count], again: dict[int, Count], full: bool
) -> Iterable[str]:
    cells = len(counts)
    worst = max(counts, key=lambda item: item.above)
    judged = [again.get(place, item) for place, item in enumerate(counts)]
    error = 1 - grid.CONFIDENCE
    over = [item for item in judged if grid.beyond(item.above, item.audits, error, cells)]
    audits = sum(item.audits for item in counts)
    above = sum(item.above for item in counts)
    yield f"## {title}"
    yield ""
    yield note
    yield ""
    yield f"- {cells} cells, {counts[0].audits:,} audits each; above the truth in {above:,} of "
    yield f"  {audits:,} audits ({above / audits:.2%}; nominal {1 - grid.CONFIDENCE:.0%})."
    yield f"- Worst cell: {worst.above} of {worst.audits} ({worst.above / worst.audits:.2%}) at "
    yield f"  {worst.cell}. Cells beyond what chance allows at a family-wise error of "
    yield f"  {grid.PAGE_ERROR:g}: **{len(over)}**."
    for place, second in again.items():
        first = counts[place]
        yield f"- Unlikely by itself, counted again from fresh seeds: {first.cell}: {first.above},"
        yield f"  then {second.above} of {second.audits:,}."
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
        "two groups of fixed size with randomised membership and nothing said of their noise.",
    ),
    "transcripts": (
        "Whole audits: transcripts",
        "Default audits of transcripts, by `SubsampledGaussian`; what the run keeps exactly is the "
        "truth that its bound is held against.",
    ),
    "trees": ("Whole audits: trees", "Default audits of linear transcripts."),
    "schemes": (
        "Whole audits: sampling schemes, and BandMF with sampling",
        "Recorded runs of every sampling scheme with their batches handed in, and of correlated "
        "noise with cyclic Poisson sampling, each claiming the epsilon of its canaries.",
    ),
    "examples": (
        "Whole audits: examples",
        "Records as canaries: gradients shorter than the clip norm along directions that are not "
        "orthogonal, in a background that is not known.",
    ),
}


def whole_section(kind: str, scale: float, workers: int) -> Iterable[str]:
    items = [index for index, (section, *_) in enumerate(WHOLE) if section == kind]
    counts = in_parallel(kind, count_whole, items, scale, workers)
    places = [place for place, item in enumerate(counts) if item.suspicious]
    task = partial(count_whole, seed=2)
    fresh = in_parallel(f"{kind} again", task, [items[i] for i in places], scale, workers)
    return verdicts.section(*NOTES[kind], counts, dict(zip(places, fresh, strict=True)))


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
    each, error = math.ceil(scale * audits), 1 - grid.CONFIDENCE
    counts = run(auditor, cells, each, workers, law_known)
    places = [i for i, item in enumerate(counts) if grid.suspicious(item.above, each, error)]
    fresh = run(auditor, [cells[i] for i in places], each, workers, law_known, seed=2)
    return section(title, note, counts, dict(zip(places, fresh, strict=True)), full)


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
        4000,
        full=True,
    ),
    "shift-law-unknown": partial(
        grid_section,
        "GaussianShift, sampling rate and steps unknown",
        "The plain Gaussian shift stands in for the exact law.",
        GaussianShift(),
        4000,
        law_known=False,
    ),
    "rectangle": partial(
        grid_section,
        "GaussianRectangle",
        "Student-t and chi-square intervals with Bonferroni's correction, variances free. Where "
        "the Gaussian pair exceeds 1.01 times the exact law the result is INVALID.",
        GaussianRectangle(),
        1000,
    ),
    "ellipsoid": partial(
        grid_section,
        "GaussianEllipsoid",
        "Bootstrap covariance, 2,000 resamples, variances free.",
        GaussianEllipsoid(seed=0),
        1000,
        cells=ELLIPSOID_CELLS,
        full=True,
    ),
    "steered": partial(
        rate_section,
        "Mechanisms that steer the number of guesses",
        "Randomised response that knows how many guesses will be made, and where they are few "
        "reveals all of them as often as delta allows.",
        steered.CELLS,
        4000,
    ),
    "dependent": partial(
        rate_section,
        "Guessing under dependent canaries",
        "A mechanism that answers for all canaries at once, in a small share of runs, and says "
        "nothing in the others. Methods that take canaries for independent are not meant for it.",
        dependent.CELLS,
        4000,
    ),
    "monitor": monitor_section,
    "peers": peer_section,
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
        "--scale", type=float, default=1.0, help="of the audits; 1 takes some hours of CPU"
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
