"""The audited mechanisms, simulated: exact draws of what a run would release."""

from askgauss.simulation.dpftrl_runs import simulate_dpftrl
from askgauss.simulation.dpsgd_runs import simulate_dpsgd, simulate_scores
from askgauss.simulation.faults import FAULTS, INVISIBLE, TREE_FAULTS, Fault, Invisible, TreeFault

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
