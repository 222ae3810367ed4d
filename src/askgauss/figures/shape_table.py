"""What the noise looks like, counted: the table behind the figure of its shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript

__all__ = ["REACH", "SHAPE_BINS", "ShapeSummary", "shape_table"]

Array = NDArray[np.float64]

# Bins of a quarter of a standard deviation.
SHAPE_BINS = 48
REACH = 6.0
_ROWS, _COLUMNS = 2048, 512
_FEWEST_VALUES = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeSummary:
    """Values of the noise in standard deviations of their tensor, counted.

    Attributes:
        counts: How many lie in each bin, from minus to plus `REACH`; those further out are counted
            in the outermost bins.
        outside: How many those are.
    """

    counts: Array
    outside: int


def spread(count: int, most: int) -> NDArray[np.int64]:
    """So many indices at most, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def shape_table(transcript: Transcript | LinearTranscript) -> ShapeSummary | None:
    """How often the noise was how large; None where it cannot be told from other records."""
    if transcript.facts.background != "known":
        return None
    if isinstance(transcript, LinearTranscript):
        # Of correlated noise only pieces that are independent have one scale.
        values = transcript.kept_values if transcript.plan.independent else np.zeros((0, 0))
        rows = spread(len(values), _ROWS) if len(values) else np.zeros(0, dtype=np.int64)
        return _counted([_standard(row) for row in values[rows]])
    rows = spread(transcript.number_of_steps, _ROWS)
    absent = np.flatnonzero(~transcript.member[transcript.kept])
    watched = spread(transcript.watch_values.shape[1], _COLUMNS)
    columns = np.concatenate(
        [transcript.kept_values[rows][:, absent], transcript.watch_values[rows][:, watched]], axis=1
    )
    columns /= transcript.schedule[rows][:, None]
    tensor = np.concatenate(
        [transcript.tensor[transcript.kept][absent], transcript.watch_tensor[watched]]
    )
    return _counted([_standard(columns[:, tensor == item]) for item in np.unique(tensor)])


def _standard(values: Array) -> Array:
    scale = float(np.sqrt((values**2).mean())) if values.size else 0.0
    return np.asarray(values.ravel() / scale) if 0.0 < scale < np.inf else np.zeros(0)


def _counted(parts: list[Array]) -> ShapeSummary | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    if values.size < _FEWEST_VALUES:
        return None
    counts, _ = np.histogram(np.clip(values, -REACH, REACH), SHAPE_BINS, (-REACH, REACH))
    return ShapeSummary(
        counts=counts.astype(np.float64), outside=int(np.count_nonzero(np.abs(values) > REACH))
    )
