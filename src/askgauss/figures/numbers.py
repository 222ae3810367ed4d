"""The numbers behind every figure of a report, computed from a result alone.

Each function takes a result and returns what its figure shows, or `Missing` with the reason why
there is nothing to show. Drawing and rendering compute nothing of their own.
"""

from askgauss.figures.course_numbers import RunCourse, course, with_course
from askgauss.figures.leak_numbers import (
    Bound,
    Comparable,
    EpsilonAxis,
    EpsilonCurve,
    Meaning,
    TradeOffCurves,
    epsilon_axis,
    epsilon_by_canaries,
    epsilon_by_steps,
    tradeoff_curves,
)
from askgauss.figures.missing import Missing, usable
from askgauss.figures.noise_numbers import (
    Gram,
    NoiseBySteps,
    NoiseByTensor,
    NoiseShape,
    gram,
    noise_by_step,
    noise_by_tensor,
    noise_shape,
)
from askgauss.figures.score_numbers import (
    Convergence,
    PitCurves,
    ScoreCurves,
    ScoreDensity,
    convergence,
    pit_curves,
    score_curves,
    score_density,
)

__all__ = [
    "Bound",
    "Comparable",
    "Convergence",
    "EpsilonAxis",
    "EpsilonCurve",
    "Gram",
    "Meaning",
    "Missing",
    "NoiseBySteps",
    "NoiseByTensor",
    "NoiseShape",
    "PitCurves",
    "RunCourse",
    "ScoreCurves",
    "ScoreDensity",
    "TradeOffCurves",
    "convergence",
    "course",
    "epsilon_axis",
    "epsilon_by_canaries",
    "epsilon_by_steps",
    "gram",
    "noise_by_step",
    "noise_by_tensor",
    "noise_shape",
    "pit_curves",
    "score_curves",
    "score_density",
    "tradeoff_curves",
    "usable",
    "with_course",
]
