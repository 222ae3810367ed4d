from __future__ import annotations

import dataclasses
import inspect

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import askgauss as ag
from askgauss.exceptions import NotDefinedError
from askgauss.figures.leak_figures import EpsilonAxis
from askgauss.figures.run_figures import NoiseByStep, NoiseByTensor, with_course
from askgauss.figures.style import ACCENTS, AuditFigure
from askgauss.monitor.simulate_run import RunFault
from tests.figures.kinds import KINDS
from tests.monitor.runs import watched as rehearsed
from tests.report import samples

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def watched():
    """A run with everything there is to draw."""
    monitor = rehearsed(np.random.default_rng(0), steps=40, fault=RunFault(noise=0.9, start=20))
    return with_course(samples.violation(), monitor.feed("failed"))


def drawn(ax) -> int:
    """Pixels of the picture that are not its ground."""
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[..., :3]
    return int((pixels != 255).any(axis=-1).sum())


def test_every_figure_is_in_the_report():
    kinds = {AuditFigure}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    whole = {kind.__name__ for kind in kinds if not inspect.isabstract(kind)}
    assert whole == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_goes_into_the_axes_it_is_given(name, watched):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = Figure(figsize=(5, 4), dpi=60)
    FigureCanvasAgg(canvas)
    ax = canvas.add_subplot()
    figure = KINDS[name].from_result(watched)
    assert figure.plot(ax) is ax
    assert drawn(ax) > 1000
    assert ax.get_xlabel()
    assert figure.caption.endswith(".")
    assert figure.label.endswith(".")
    assert figure.verdict is watched.verdict


def test_a_figure_makes_its_own_axes():
    from matplotlib import pyplot

    ax = samples.consistent().plot()
    try:
        assert ax.get_xlabel() == "epsilon at delta 1e-05"
    finally:
        pyplot.close(ax.figure)


def test_the_axis_has_the_numbers_where_they_belong():
    result = samples.violation()
    ax = EpsilonAxis.from_result(result).plot(Figure().add_subplot())
    points = {float(line.get_xdata()[0]) for line in ax.lines}
    assert {result.epsilon_lower, result.epsilon_point, result.claim.epsilon} <= points
    assert ax.get_xlim()[1] > max(result.epsilon_point, result.claim.epsilon)


@pytest.mark.parametrize("lower", [0.0, 1e-12, 1e6, float("inf")])
def test_any_epsilon_has_a_place_on_the_axis(lower):
    result = dataclasses.replace(samples.no_claim(), epsilon_lower=lower, epsilon_point=lower)
    ax = EpsilonAxis.from_result(result).plot(Figure().add_subplot())
    assert 0.0 < ax.get_xlim()[1] < np.inf


@pytest.mark.parametrize("name", ["GramMatrix", "NoiseByStep", "NoiseByTensor"])
def test_what_is_not_there_is_not_drawn(name):
    with pytest.raises(NotDefinedError, match="needs a transcript"):
        KINDS[name].from_result(samples.consistent())


def test_names_of_tensors_are_not_formulas():
    figure = Figure()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    ax = NoiseByTensor.from_result(samples.hostile()).plot(figure.add_subplot())
    figure.canvas.draw()
    labels = [item.get_text() for item in ax.get_yticklabels()]
    assert "$\\frac{" in labels
    assert max(map(len, labels)) <= 40


def test_the_claim_is_drawn_where_it_is():
    result = samples.violation()
    ax = NoiseByStep.from_result(result).plot(Figure().add_subplot())
    claimed = [line for line in ax.lines if line.get_label() == "claimed"]
    assert set(claimed[0].get_ydata()) == {2.5}
    measured = next(line for line in ax.lines if line.get_label() == "measured")
    assert np.median(measured.get_ydata()) == pytest.approx(1.5, rel=0.05)


def test_one_colour_a_verdict():
    assert set(ACCENTS) == {*ag.Verdict, None}
    assert len(set(ACCENTS.values())) == len(ACCENTS)
