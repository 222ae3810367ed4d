"""Audits of any mechanism, by running it on two neighbouring inputs."""

from askgauss.mechanism_audit.events import Classifier
from askgauss.mechanism_audit.mechanism_auditing import audit_mechanism
from askgauss.mechanism_audit.mechanism_pairs import (
    MeasuredCurve,
    NeighbourSearch,
    mechanism_scores,
    search_neighbours,
    tradeoff_curve,
)
from askgauss.mechanism_audit.mechanism_result import MechanismResult
from askgauss.mechanism_audit.outputs import Mechanism, from_function

__all__ = [
    "Classifier",
    "MeasuredCurve",
    "Mechanism",
    "MechanismResult",
    "NeighbourSearch",
    "audit_mechanism",
    "from_function",
    "mechanism_scores",
    "search_neighbours",
    "tradeoff_curve",
]
