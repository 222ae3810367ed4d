import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss.stats.limits import largest_rejected, smallest_error


@given(
    root=st.floats(1e-6, 1e6),
    power=st.sampled_from([1.0 / 3.0, 1.0, 3.0, 9.0]),
    scale=st.floats(1e-8, 1e8),
)
def test_search_ends_just_below_the_root(root, power, scale):
    def margin(parameter):
        gap = root - parameter
        return scale * math.copysign(abs(gap) ** power, gap)

    found = largest_rejected(margin)
    assert found < root
    assert root - found <= 1.01e-9 * (1.0 + root)


@given(root=st.floats(1e-6, 1e12))
def test_search_of_a_bare_yes_or_no(root):
    evaluations = []

    def margin(parameter):
        evaluations.append(parameter)
        return 1.0 if parameter <= root else -1.0

    found = largest_rejected(margin)
    assert found <= root
    assert root - found <= 1.01e-9 * (1.0 + root)
    assert len(evaluations) < 90


def test_search_interpolates():
    evaluations = []

    def margin(parameter):
        evaluations.append(parameter)
        return math.exp(-parameter) - 0.003

    assert largest_rejected(margin) == pytest.approx(-math.log(0.003), abs=1e-8)
    assert len(evaluations) <= 14


def test_search_has_no_ceiling_and_hides_nothing():
    assert largest_rejected(lambda parameter: -1.0) == 0.0
    assert largest_rejected(lambda parameter: 0.0) == 0.0
    assert largest_rejected(lambda parameter: 1.0) == math.inf
    assert largest_rejected(lambda parameter: 1e300 - parameter) == pytest.approx(1e300)
    assert largest_rejected(lambda parameter: math.inf if parameter < 5.0 else -math.inf) == (
        pytest.approx(5.0)
    )
    with pytest.raises(ArithmeticError, match=r"parameter 1\.0"):
        largest_rejected(lambda parameter: math.nan if parameter else 1.0)


@pytest.mark.parametrize("level", [0.9, 0.05, 1e-3, 1e-20])
def test_smallest_error_rounds_up(level):
    answer = smallest_error(lambda error: error >= level)
    assert level <= answer <= level * (1.0 + 1e-6)


def test_smallest_error_at_its_ends():
    assert smallest_error(lambda error: False) == 1.0
    assert smallest_error(lambda error: True) == pytest.approx(1e-50, rel=1e-5)
