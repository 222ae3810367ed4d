"""The audited mechanisms, run on paper: exact draws of what a run would release."""

from askgauss.simulation.simulate import simulate_dpsgd, simulate_scores

__all__ = ["simulate_dpsgd", "simulate_scores"]
