"""Rows of a table, and writing them as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

__all__ = ["Row", "csv_text"]

Row = dict[str, Any]
"""One row: values by the name of their column."""


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV; columns in the order they first appear.

    Examples:
        >>> csv_text([{"steps": 5, "bound": 1.25}, {"steps": 6, "method": "x"}]).splitlines()
        ['steps,bound,method', '5,1.25,', '6,,x']
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _short(value) for name, value in row.items()})
    return stream.getvalue()


def _short(value: Any) -> Any:
    return f"{value:.10g}" if isinstance(value, float) else value
