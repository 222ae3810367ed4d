"""Evidence as an audit of another size would have gathered it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from askgauss.scores import GroupMoments
from askgauss.stats.shift import SlopeTest

__all__ = ["resized"]

# Fields that hold the observations canaries are compared with.
_OTHERS = ("absent", "other")


def resized(value: Any, factor: float, others: float | None = None) -> Any:
    """The evidence of so many times the observations, with the same means and variances.

    Args:
        value: The evidence.
        factor: How many times the observations of present canaries.
        others: How many times those they are compared with; as many if not given.
    """
    others = factor if others is None else others
    if isinstance(value, GroupMoments):
        count = max(round(value.count * factor), 2)
        return replace(value, count=count, sum_of_squares=value.variance * (count - 1))
    if isinstance(value, SlopeTest):
        count = max(round(value.count * others), 3)
        return replace(
            value,
            count=count,
            spread=value.spread * factor,
            residual=value.residual * (count - 2) / max(value.count - 2, 1),
        )
    if isinstance(value, tuple):
        return tuple(resized(item, factor, others) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            here = others if field.name in _OTHERS else factor
            changes[field.name] = resized(getattr(value, field.name), here, others)
        for name in ("plantings", "opportunities"):
            if name in changes:
                changes[name] = max(round(changes[name] * factor), 1)
        return replace(value, **changes)
    return value
