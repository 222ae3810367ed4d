"""Figures of an audit: a result in, matplotlib axes out.

Every function takes a result, or the numbers of `askgauss.figures.numbers`, and axes to draw
in; without axes it makes its own. matplotlib is imported when the first figure is drawn.
"""

from askgauss.figures.course_plots import bound_by_step, evidence_by_step
from askgauss.figures.leak_plots import (
    epsilon_axis,
    epsilon_by_canaries,
    epsilon_by_steps,
    tradeoff,
)
from askgauss.figures.noise_plots import gram, noise_by_step, noise_by_tensor, noise_shape
from askgauss.figures.score_plots import convergence, pit, score_density, scores

__all__ = [
    "bound_by_step",
    "convergence",
    "epsilon_axis",
    "epsilon_by_canaries",
    "epsilon_by_steps",
    "evidence_by_step",
    "gram",
    "noise_by_step",
    "noise_by_tensor",
    "noise_shape",
    "pit",
    "score_density",
    "scores",
    "tradeoff",
]
