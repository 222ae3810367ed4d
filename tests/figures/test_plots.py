from __future__ import annotations

import dataclasses

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import askgauss as ag
from askgauss.exceptions import NotDefinedError
from askgauss.figures import numbers as figure_numbers
from askgauss.figures import plots
from askgauss.monitor.simulate_run import Fault
from tests.monitor.runs import watched as rehearsed
from tests.report import samples

matplotlib.use("Agg")

NUMBERS = {
    "bound_by_step": figure_numbers.course,
    "convergence": figure_numbers.convergence,
    "epsilon_axis": figure_numbers.epsilon_axis,
    "epsilon_by_canaries": figure_numbers.epsilon_by_canaries,
    "epsilon_by_steps": figure_numbers.epsilon_by_steps,
    "evidence_by_step": figure_numbers.course,
    "gram": figure_numbers.gram,
    "noise_by_step": figure_numbers.noise_by_step,
    "noise_by_tensor": figure_numbers.noise_by_tensor,
    "noise_shape": figure_numbers.noise_shape,
    "pit": figure_numbers.pit_curves,
    "score_density": figure_numbers.score_density,
    "scores": figure_numbers.score_curves,
    "tradeoff": figure_numbers.tradeoff_curves,
}


def watched():
    """A run with everything there is to draw."""
    monitor = rehearsed(np.random.default_rng(0), steps=40, fault=Fault(noise=0.9, start=20))
    return figure_numbers.with_course(samples.violation(), monitor.feed("failed"))


def drawn(ax) -> int:
    """Pixels of the picture that are not its ground."""
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[..., :3]
    return int((pixels != 255).any(axis=-1).sum())


def test_every_figure_is_a_function_and_listed():
    assert sorted(NUMBERS) == plots.__all__


@pytest.mark.parametrize("name", plots.__all__)
def test_a_figure_goes_into_the_axes_it_is_given(name):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = Figure(figsize=(5, 4), dpi=60)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    result = watched()
    assert getattr(plots, name)(result, ax) is ax
    assert drawn(ax) > 1000
    assert ax.get_xlabel()


@pytest.mark.parametrize("name", plots.__all__)
def test_a_figure_can_be_drawn_from_its_numbers(name):
    ax = Figure().add_subplot()
    numbers = NUMBERS[name](watched())
    assert dataclasses.is_dataclass(numbers)
    assert getattr(plots, name)(numbers, ax) is ax


def test_a_figure_makes_its_own_axes():
    from matplotlib import pyplot

    ax = samples.consistent().plot()
    try:
        assert ax.get_xlabel() == "epsilon at delta 1e-05"
    finally:
        pyplot.close(ax.figure)


def test_the_axis_has_the_numbers_where_they_belong():
    result = samples.violation()
    ax = plots.epsilon_axis(result, Figure().add_subplot())
    points = {float(line.get_xdata()[0]) for line in ax.lines}
    assert {result.epsilon_lower, result.epsilon_point, result.claim.epsilon} <= points
    assert ax.get_xlim()[1] > max(result.epsilon_point, result.claim.epsilon)


@pytest.mark.parametrize("lower", [0.0, 1e-12, 1e6, float("inf")])
def test_any_epsilon_has_a_place_on_the_axis(lower):
    result = dataclasses.replace(samples.no_claim(), epsilon_lower=lower, epsilon_point=lower)
    ax = plots.epsilon_axis(result, Figure().add_subplot())
    assert 0.0 < ax.get_xlim()[1] < np.inf


@pytest.mark.parametrize("name", ["gram", "noise_by_step", "noise_by_tensor"])
def test_what_is_not_there_is_not_drawn(name):
    with pytest.raises(NotDefinedError, match="transcript"):
        getattr(plots, name)(samples.consistent(), Figure().add_subplot())


def test_names_of_tensors_are_not_formulas():
    figure = Figure()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    ax = plots.noise_by_tensor(samples.hostile(), figure.add_subplot())
    figure.canvas.draw()
    labels = [item.get_text() for item in ax.get_yticklabels()]
    assert "$\\frac{" in labels
    assert max(map(len, labels)) <= 40


def test_the_claim_is_drawn_where_it_is():
    result = samples.violation()
    ax = plots.noise_by_step(result, Figure().add_subplot())
    claimed = [line for line in ax.lines if line.get_label() == "claimed"]
    assert set(claimed[0].get_ydata()) == {2.5}
    measured = next(line for line in ax.lines if line.get_label() == "measured")
    assert np.median(measured.get_ydata()) == pytest.approx(1.5, rel=0.05)


def test_one_colour_a_verdict():
    from askgauss.figures.style import ACCENTS

    assert set(ACCENTS) == {*ag.Verdict, None}
    assert len(set(ACCENTS.values())) == len(ACCENTS)
