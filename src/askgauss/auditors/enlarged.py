"""The evidence an audit of more canaries would gather, were they like those that were seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from askgauss.auditors.gaussian_scores import PairEvidence
from askgauss.auditors.subsampled_gaussian import StepEvidence, Stratum
from askgauss.exceptions import NotDefinedError
from askgauss.scores import GroupMoments
from askgauss.stats.shift import SlopeTest

__all__ = ["enlarged"]

# What grows with the number of canaries; everything else of an evidence stays.
_GROWING: dict[type, tuple[str, ...]] = {
    GroupMoments: ("count", "sum_of_squares"),
    SlopeTest: ("count", "spread", "residual"),
    Stratum: ("planted", "other"),
    PairEvidence: ("present", "absent", "slope"),
    StepEvidence: ("strata", "within", "counts", "plantings", "opportunities", "weighted"),
}


def enlarged(evidence: Any, factor: float) -> Any:
    """Evidence of so many times the canaries, present and absent alike.

    Args:
        evidence: What an auditor gathered.
        factor: How many times.

    Raises:
        NotDefinedError: It is not known how evidence of this kind grows.
    """
    if isinstance(evidence, tuple):
        return tuple(enlarged(item, factor) for item in evidence)
    if isinstance(evidence, bool) or evidence is None:
        return evidence
    if isinstance(evidence, int):
        return round(evidence * factor)
    if isinstance(evidence, float):
        return evidence * factor
    names = _GROWING.get(type(evidence))
    if names is None:
        raise NotDefinedError(f"How evidence of kind {type(evidence).__name__} grows is not known.")
    grown = {name: enlarged(getattr(evidence, name), factor) for name in names}
    return replace(evidence, **grown)
