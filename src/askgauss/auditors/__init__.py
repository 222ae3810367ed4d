"""Auditors: one file a method, a frozen options class each."""

from __future__ import annotations

from typing import Any

from askgauss import _plain
from askgauss.auditors.base import Auditor
from askgauss.auditors.gaussian_scores import GaussianEllipsoid, GaussianRectangle, GaussianShift
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.exceptions import FileFormatError

__all__ = [
    "Auditor",
    "GaussianEllipsoid",
    "GaussianRectangle",
    "GaussianShift",
    "SubsampledGaussian",
    "auditor_from_options",
    "auditor_types",
]

_TYPES: tuple[type[Auditor[Any]], ...] = (
    GaussianShift,
    GaussianRectangle,
    GaussianEllipsoid,
    SubsampledGaussian,
)


def auditor_types() -> dict[str, type[Auditor[Any]]]:
    """Every auditor class by its kebab-case name."""
    return {kind.kebab_name(): kind for kind in _TYPES}


def auditor_from_options(name: Any, options: Any) -> Auditor[Any]:
    """The auditor a result file names.

    Raises:
        FileFormatError: There is no auditor of this name, or the options do not fit it.
    """
    types = auditor_types()
    if name not in types:
        raise FileFormatError(
            f"Expected auditor to be one of {', '.join(sorted(types))}, got {name!r}. A newer "
            "askgauss may know it."
        )
    auditor: Auditor[Any] = _plain.from_plain(types[name], options, f"auditor {name}")
    return auditor
