"""Audits of any mechanism, by running it on two neighbouring inputs."""

from askgauss.mechanism_audit.mechanism_auditing import audit_mechanism
from askgauss.mechanism_audit.mechanism_result import MechanismResult
from askgauss.mechanism_audit.neighbour_search import NeighbourSearch, search_neighbours
from askgauss.mechanism_audit.output_scores import Classifier
from askgauss.mechanism_audit.outputs import Mechanism, from_function
from askgauss.mechanism_audit.tradeoff_curve import MeasuredCurve, mechanism_scores, tradeoff_curve

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
