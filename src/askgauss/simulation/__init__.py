"""The audited mechanisms, run on paper: exact draws of what a run would release."""

from askgauss.simulation.dpftrl import simulate_dpftrl
from askgauss.simulation.faults import FAULTS, INVISIBLE, TREE_FAULTS, Fault, Invisible, TreeFault
from askgauss.simulation.simulate import simulate_dpsgd, simulate_scores

__all__ = [
    "FAULTS",
    "INVISIBLE",
    "TREE_FAULTS",
    "Fault",
    "Invisible",
    "TreeFault",
    "simulate_dpftrl",
    "simulate_dpsgd",
    "simulate_scores",
]
