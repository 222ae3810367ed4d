"""The audited mechanisms, simulated: exact draws of what a run would release."""

from askgauss.simulation.faults import FAULTS, INVISIBLE, TREE_FAULTS, Fault, Invisible, TreeFault
from askgauss.simulation.simulated_runs import simulate_dpftrl, simulate_dpsgd, simulate_scores

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
