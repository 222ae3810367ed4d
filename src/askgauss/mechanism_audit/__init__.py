"""Audits of any mechanism, by running it on two neighbouring inputs."""

from askgauss.mechanism_audit.auditing import audit_mechanism
from askgauss.mechanism_audit.curve import MeasuredCurve, mechanism_scores, tradeoff_curve
from askgauss.mechanism_audit.neighbours import NeighbourSearch, search_neighbours
from askgauss.mechanism_audit.outputs import Mechanism, from_function
from askgauss.mechanism_audit.result import MechanismResult
from askgauss.mechanism_audit.scores import Classifier

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
