"""Many audits: every auditor on simulated or trained runs, over epsilons and seeds, here or on Ray.

A sweep is a grid of cells, a cell a few audits of one run. Each finished cell is a file, so that an
interrupted sweep resumes, on one machine or on many that share the folder; at the end all cells are
written to one table.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from askgauss import _validate, accounting
from askgauss.auditing import audit
from askgauss.auditors import auditor_types
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError, MissingExtraError
from askgauss.files import atomic, codec
from askgauss.files.run_folder import RunFolder
from askgauss.final import workers
from askgauss.recording.transcript import Transcript
from askgauss.simulation import simulate_dpsgd
from askgauss.simulation.simulated_runs import check_canaries, check_work
from paper.csv_rows import Row, csv_text

__all__ = ["Cell", "Grid", "SweepWorkerError", "coverage", "find_table", "read_table", "run"]

Progress = Callable[[int, int], None]
RunKind = Literal["simulated", "full", "smoke"]

_TABLES = ("results.parquet", "results.csv")
_CELL_KIND = "askgauss-sweep-cell"
_SCHEMA = 2
# What a row holds.
_ROW = {"epsilon": float, "seed": int, "auditor": str, "bound": float, "above": bool}
_MOST_ROWS = 10**7


SweepWorkerError = workers.WorkerError
"""The machines of a sweep cannot be reached, or fail at one cell again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A sweep: every epsilon with every seed.

    Args:
        run: ``simulated`` draws what a run would have released; ``full`` and ``smoke`` train
            ScatterLinear on the image set of that scale, from the data cache of the machine that
            does it, and have as many canaries as present and absent ones together, by coin.
        epsilons: Epsilons the runs are calibrated to.
        seeds: How many runs of each.
        auditors: Kebab-case names; those that read scores or transcripts of DP-SGD.
        sampling_rate: Poisson sampling rate.
        steps: Number of steps.
        present: Present canaries of each run.
        absent: Absent canaries of each run.
        delta: Delta of the bounds.
        confidence: Confidence of the bounds.

    Examples:
        >>> grid = Grid(epsilons=(1.0, 8.0), seeds=3, auditors=("gaussian-shift",), steps=10)
        >>> [cell.name for cell in grid.cells()][:2]
        ['epsilon-1-seed-0', 'epsilon-1-seed-1']
    """

    run: RunKind = "simulated"
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    seeds: int = 100
    auditors: tuple[str, ...] = ("subsampled-gaussian", "gaussian-shift", "one-run-fdp", "one-run")
    sampling_rate: float = 4096 / 50_000
    steps: int = 2500
    present: int = 2500
    absent: int = 2500
    delta: float = 1e-5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _validate.one_of(get_args(RunKind), run=self.run)
        _validate.count(maximum=_MOST_ROWS, seeds=self.seeds)
        check_canaries(self.present, self.absent)
        check_work(self.steps, self.present + self.absent, "canaries")
        _validate.within(0.5, 1, confidence=self.confidence)
        for epsilon in self.epsilons:
            PrivacyClaim(epsilon=epsilon, delta=self.delta, sampling_rate=self.sampling_rate)
        for name in self.auditors:
            _validate.one_of(tuple(auditor_types()), auditors=name)

    def cells(self) -> Iterator[Cell]:
        """Every cell; the noise of an epsilon is calibrated once."""
        for epsilon in self.epsilons:
            noise = accounting.dpsgd_noise_multiplier(
                epsilon=epsilon,
                delta=self.delta,
                sampling_rate=self.sampling_rate,
                steps=self.steps,
            )
            for seed in range(self.seeds):
                yield Cell(grid=self, epsilon=epsilon, seed=seed, noise_multiplier=noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a grid, to be audited by each of its auditors.

    Args:
        grid: The sweep it is part of.
        epsilon: The epsilon its noise is calibrated to.
        seed: Root of its random choices.
        noise_multiplier: That noise.
    """

    grid: Grid
    epsilon: float
    seed: int
    noise_multiplier: float

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"epsilon-{self.epsilon:g}-seed-{self.seed}"

    def transcript(self) -> Transcript:
        """Simulate or train the run."""
        grid = self.grid
        if grid.run == "simulated":
            return simulate_dpsgd(
                steps=grid.steps,
                sampling_rate=grid.sampling_rate,
                noise_multiplier=self.noise_multiplier,
                present=grid.present,
                absent=grid.absent,
                seed=self.seed,
            )
        from paper.reproduce import SCALES, train_once

        return train_once(
            SCALES[grid.run],
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=grid.sampling_rate,
            steps=grid.steps,
            canaries=grid.present + grid.absent,
            seed=self.seed,
        )


def audit_cell(cell: Cell) -> list[Row]:
    """Make the run of a cell and audit it; one row an auditor."""
    transcript = cell.transcript()
    rows = []
    for name in cell.grid.auditors:
        auditor = auditor_types()[name]()
        result = audit(
            transcript if auditor.reads == "transcript" else transcript.scores(),
            delta=cell.grid.delta,
            auditor=auditor,
            confidence=cell.grid.confidence,
            diagnostics=False,
        )
        rows.append(
            {
                "epsilon": cell.epsilon,
                "seed": cell.seed,
                "auditor": name,
                "bound": result.epsilon_lower,
                "above": result.epsilon_lower > cell.epsilon,
            }
        )
    return rows


def run(
    grid: Grid,
    *,
    folder: str | os.PathLike[str],
    ray: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Run what is missing of a sweep, and gather all of it into one table.

    Args:
        grid: The sweep.
        folder: Where cells and the table go; machines of a Ray cluster need not see it.
        ray: Address of a Ray cluster, ``"local"`` for one on this machine; None runs the cells one
            after another in this process.
        progress: Told how many cells are done, of how many.

    Returns:
        The table: ``results.parquet``, or ``results.csv`` where pyarrow is not installed.

    Raises:
        MissingExtraError: Ray is not installed.
        SweepWorkerError: The cluster does not answer, or a cell kills its workers.
        RunFolderBusyError: Another process runs a sweep in the folder.
    """
    with RunFolder(folder, {"sweep": grid}, command="sweep") as place:
        cells = list(grid.cells())
        parts = place.path / "results" / "cells"
        parts.mkdir(exist_ok=True)
        missing = [cell for cell in cells if not (parts / f"{cell.name}.json").exists()]
        finished = len(cells) - len(missing)
        tell = progress or (lambda done, of: None)
        tell(finished, len(cells))
        for cell, rows in _audited(missing, ray):
            text = codec.dumps(_CELL_KIND, _SCHEMA, {"rows": codec.to_plain(rows)}, None)
            atomic.write_text(parts / f"{cell.name}.json", text)
            finished += 1
            tell(finished, len(cells))
        rows = [row for cell in cells for row in _read_cell(parts / f"{cell.name}.json", cell)]
        return _gather(place.path / "results", rows)


def _audited(cells: Sequence[Cell], ray: str | None) -> Iterator[tuple[Cell, list[Row]]]:
    """Each cell with its rows, one after another here or as they finish on Ray."""
    if ray is None:
        return ((cell, audit_cell(cell)) for cell in cells)
    return workers.as_finished(audit_cell, cells, ray, name=lambda cell: cell.name)


def _gather(folder: Path, rows: list[Row]) -> Path:
    """Write the table, and beside it its SHA-256 as ``sha256sum --check`` reads it."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        path, content = folder / _TABLES[1], csv_text(rows).encode("utf-8")
    else:
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
        path, content = folder / _TABLES[0], buffer.getvalue()
    atomic.write_with_digest(path, content)
    return path


def find_table(folder: str | os.PathLike[str]) -> Path | None:
    """The table of a sweep's folder, if it has one."""
    for name in _TABLES:
        path = Path(folder) / "results" / name
        if path.is_file():
            return path
    return None


def read_table(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a table that `run` wrote, Parquet or CSV.

    Raises:
        FileFormatError: It is damaged, or no such table.
        MissingExtraError: It is Parquet, and pyarrow is not installed.
    """
    source = Path(path)
    atomic.check_digest(
        source, "sweep table", "Run the sweep again: finished cells are not done twice."
    )
    content = source.read_bytes()
    try:
        rows = _parquet_rows(content) if source.suffix == ".parquet" else _csv_rows(content)
        return _plain_rows(rows)
    except (FileFormatError, ValueError, TypeError, LookupError, OSError, csv.Error) as error:
        raise FileFormatError(
            f"{str(source)!r} is no table of a sweep, or damaged: {error}"
        ) from error


def _parquet_rows(content: bytes) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: install askgauss[ray].") from error
    try:
        table = parquet.ParquetFile(
            pyarrow.BufferReader(content), thrift_container_size_limit=1 << 20
        )
        if table.metadata.num_rows > _MOST_ROWS:
            raise FileFormatError(f"it has {table.metadata.num_rows} rows.")
        rows: list[Row] = table.read(columns=list(_ROW), use_threads=False).to_pylist()
    except (pyarrow.ArrowException, MemoryError) as error:
        raise FileFormatError(f"it is no Parquet file ({error}).") from error
    return rows


def _csv_rows(content: bytes) -> list[Row]:
    lines = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
    return [
        {
            "epsilon": float(row["epsilon"]),
            "seed": int(row["seed"]),
            "auditor": row["auditor"],
            "bound": float(row["bound"]),
            "above": {"True": True, "False": False}[row["above"]],
        }
        for row in lines
    ]


def _plain_rows(found: Any) -> list[Row]:
    """Rows of a table or a cell, each with all of its columns, within their ranges."""
    if not isinstance(found, list):
        raise FileFormatError("Expected a list of rows.")
    rows = []
    for number, item in enumerate(found):
        if not isinstance(item, dict) or item.keys() != _ROW.keys():
            raise FileFormatError(f"Expected the columns {', '.join(_ROW)} in row {number}.")
        row = {
            name: codec.from_plain(hint, item[name], f"{name} of row {number}")
            for name, hint in _ROW.items()
        }
        if not (row["epsilon"] > 0.0 and row["bound"] >= 0.0 and row["seed"] >= 0):
            raise FileFormatError(f"Expected numbers of an audit in row {number}, got {row}.")
        # Within rounding of the epsilon a table of few digits does not say which it was.
        close = math.isclose(row["bound"], row["epsilon"], rel_tol=1e-9)
        if not close and row["above"] != (row["bound"] > row["epsilon"]):
            raise FileFormatError(f"Expected above to say whether the bound is, in row {number}.")
        rows.append(row)
    return rows


def _read_cell(part: Path, cell: Cell) -> list[Row]:
    try:
        content = codec.loads(atomic.read_bytes(part, regular=True), _CELL_KIND, _SCHEMA)
        rows = _plain_rows(content.get("rows"))
        if [(row["epsilon"], row["seed"], row["auditor"]) for row in rows] != [
            (cell.epsilon, cell.seed, name) for name in cell.grid.auditors
        ]:
            raise FileFormatError("Expected a row for each auditor of its cell.")
    except FileFormatError as error:
        raise FileFormatError(f"{str(part)!r} is damaged: {error} Delete it.") from error
    return rows


def coverage(rows: Sequence[Row]) -> list[Row]:
    """Mean bound and share of bounds above the truth, by epsilon and auditor.

    Examples:
        >>> coverage([{"epsilon": 1.0, "auditor": "a", "bound": 0.5, "above": False},
        ...           {"epsilon": 1.0, "auditor": "a", "bound": 1.5, "above": True}])
        [{'epsilon': 1.0, 'auditor': 'a', 'audits': 2, 'mean bound': 1.0, 'above': 0.5}]
    """
    found: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["epsilon"], row["auditor"]), []).append(row)
    return [
        {
            "epsilon": epsilon,
            "auditor": auditor,
            "audits": len(own),
            "mean bound": sum(row["bound"] for row in own) / len(own),
            "above": sum(bool(row["above"]) for row in own) / len(own),
        }
        for (epsilon, auditor), own in found.items()
    ]
