"""The audited mechanisms, run on paper: exact draws of what a run would release."""

from askgauss.simulation.dpftrl import simulate_dpftrl
from askgauss.simulation.faults import FAULTS, INVISIBLE, Fault, Invisible
from askgauss.simulation.simulate import simulate_dpsgd, simulate_scores

__all__ = [
    "FAULTS",
    "INVISIBLE",
    "Fault",
    "Invisible",
    "simulate_dpftrl",
    "simulate_dpsgd",
    "simulate_scores",
]
