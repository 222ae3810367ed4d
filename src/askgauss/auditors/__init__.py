"""Auditors: a frozen options class for each method, all listed here."""

from __future__ import annotations

import functools
import importlib
import warnings
from dataclasses import is_dataclass
from importlib import metadata
from typing import Any

from askgauss.auditors.adaptive_one_run import AdaptiveOneRun
from askgauss.auditors.auditor import Auditor
from askgauss.auditors.gaussian_regions import GaussianEllipsoid, GaussianRectangle
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.auditors.guessing import OneRun
from askgauss.auditors.max_cosine import MaxCosine
from askgauss.auditors.one_run_fdp import (
    EpsilonDeltaFamily,
    GaussianFamily,
    OneRunFDP,
    SubsampledFamily,
)
from askgauss.auditors.order_statistics import OrderStatistics
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.auditors.thresholding import Bayesian, ClopperPearson, GaussianDP
from askgauss.exceptions import AskGaussWarning, FileFormatError, InvalidArgumentError
from askgauss.files import codec

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
    "as_auditor",
    "auditor_from_options",
    "auditor_types",
    "imported_auditor",
    "register_auditor",
]

_GROUP = "askgauss.auditors"

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


_registered: dict[str, type[Auditor[Any]]] = {}


def pure_auditors() -> list[str]:
    """Our auditors that have something to say at delta 0, as they are written."""
    return [f"{kind.__name__}()" for kind in _TYPES if kind.pure]


def auditor_types() -> dict[str, type[Auditor[Any]]]:
    """Every auditor class by its kebab-case name: ours, those of installed packages, and yours.

    A package offers one by an entry point of the group ``askgauss.auditors``.
    """
    own = {kind.kebab_name(): kind for kind in _TYPES}
    return {**_offered(), **_registered, **own}


@functools.cache
def _offered() -> dict[str, type[Auditor[Any]]]:
    """Auditors of other packages; one that cannot be loaded is left out with a warning."""
    found = {}
    for entry in metadata.entry_points(group=_GROUP):
        try:
            kind = entry.load()
            _check_type(kind)
        except (ImportError, AttributeError, InvalidArgumentError) as error:
            warnings.warn(
                f"The auditor {entry.value!r} of an installed package is left out: {error}",
                AskGaussWarning,
                stacklevel=2,
            )
            continue
        found[kind.kebab_name()] = kind
    return found


def _check_type(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Auditor) and is_dataclass(kind)):
        raise InvalidArgumentError(
            f"Expected a subclass of askgauss.auditors.Auditor that is a frozen dataclass, got "
            f"{kind!r}."
        )
    for name in ("assumption", "evidence_type"):
        if not hasattr(kind, name):
            raise InvalidArgumentError(
                f"Expected the class variable {name} in the auditor {kind.__name__}, it has none."
            )


def register_auditor(kind: type[Auditor[Any]]) -> type[Auditor[Any]]:
    """Make an auditor of your own known by its name, in this process; usable as a decorator.

    Its name is that of the class in kebab-case. It is then accepted wherever a name is, and results
    of it can be read back from JSON.

    Raises:
        InvalidArgumentError: It is no auditor, or its name is one of ours.
    """
    _check_type(kind)
    name = kind.kebab_name()
    if name in {item.kebab_name() for item in _TYPES}:
        raise InvalidArgumentError(f"Expected a name of its own for an auditor, {name!r} is ours.")
    _registered[name] = kind
    return kind


def as_auditor(given: Any) -> Auditor[Any]:
    """An auditor, or the one of a name such as ``"one-run"`` with its default options.

    Raises:
        InvalidArgumentError: It is neither; the message lists the names.
    """
    if isinstance(given, Auditor):
        return given
    types = auditor_types()
    if isinstance(given, str) and given in types:
        return types[given]()
    hint = f" Call it: {given.__name__}()." if isinstance(given, type) else ""
    raise InvalidArgumentError(
        f"Expected auditor to be an auditor such as OneRun(), or one of {', '.join(sorted(types))},"
        f" got {str(given)[:80]!r}.{hint}"
    )


def imported_auditor(place: str) -> Auditor[Any]:
    """The auditor of a class named as ``module:Class``, registered in this process.

    Raises:
        InvalidArgumentError: There is no such module or class, or it is no auditor.
    """
    module, _, name = place.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"Expected {place!r} to name a class as module:Class, which can be imported from here: "
            f"{error}."
        ) from error
    _check_type(kind)
    if kind not in _TYPES:
        register_auditor(kind)
    try:
        auditor: Auditor[Any] = kind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"Expected {place!r} to have a default for each of its options: {error}."
        ) from error
    return auditor


def auditor_from_options(name: Any, options: Any) -> Auditor[Any]:
    """The auditor a result file names.

    Raises:
        FileFormatError: There is no auditor of this name, or the options do not fit it.
    """
    types = auditor_types()
    if not isinstance(name, str) or name not in types:
        raise FileFormatError(
            f"Expected auditor to be one of {', '.join(sorted(types))}, got {str(name)[:80]!r}. A "
            "newer askgauss may know it; one of your own is made known by register_auditor()."
        )
    auditor: Auditor[Any] = codec.from_plain(types[name], options, f"auditor {name}")
    return auditor
