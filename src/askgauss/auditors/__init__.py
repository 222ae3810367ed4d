"""Auditors: one file a method, a frozen options class each."""

from __future__ import annotations

from typing import Any

from askgauss import _plain
from askgauss.auditors.adaptive_one_run import AdaptiveOneRun
from askgauss.auditors.base import Auditor
from askgauss.auditors.bayesian import Bayesian
from askgauss.auditors.calibrated_scores import calibrate
from askgauss.auditors.clopper_pearson import ClopperPearson
from askgauss.auditors.gaussian_dp import GaussianDP
from askgauss.auditors.gaussian_scores import GaussianEllipsoid, GaussianRectangle, GaussianShift
from askgauss.auditors.max_cosine import MaxCosine
from askgauss.auditors.one_run import OneRun
from askgauss.auditors.one_run_fdp import (
    EpsilonDeltaFamily,
    GaussianFamily,
    OneRunFDP,
    SubsampledFamily,
)
from askgauss.auditors.order_statistics import OrderStatistics
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.exceptions import FileFormatError

__all__ = [
    "AdaptiveOneRun",
    "Auditor",
    "Bayesian",
    "ClopperPearson",
    "EpsilonDeltaFamily",
    "GaussianDP",
    "GaussianEllipsoid",
    "GaussianFamily",
    "GaussianRectangle",
    "GaussianShift",
    "MaxCosine",
    "OneRun",
    "OneRunFDP",
    "OrderStatistics",
    "SubsampledFamily",
    "SubsampledGaussian",
    "auditor_from_options",
    "auditor_types",
    "calibrate",
]

_TYPES: tuple[type[Auditor[Any]], ...] = (
    GaussianShift,
    GaussianRectangle,
    GaussianEllipsoid,
    SubsampledGaussian,
    OneRun,
    OneRunFDP,
    AdaptiveOneRun,
    OrderStatistics,
    ClopperPearson,
    GaussianDP,
    Bayesian,
    MaxCosine,
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
    if not isinstance(name, str) or name not in types:
        raise FileFormatError(
            f"Expected auditor to be one of {', '.join(sorted(types))}, got {str(name)[:80]!r}. A "
            "newer askgauss may know it."
        )
    auditor: Auditor[Any] = _plain.from_plain(types[name], options, f"auditor {name}")
    return auditor
