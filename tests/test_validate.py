from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss import _validate
from askgauss.exceptions import AskGaussError, InvalidArgumentError, ScoresError

numbers = st.one_of(
    st.floats(),
    st.integers(-(10**30), 10**30),
    st.floats().map(np.float64),
    st.integers(-(2**31), 2**31 - 1).map(np.int64),
    st.fractions(),
)
# What is no number, though some of it could be turned into one.
OTHERS = [None, "1", b"1", True, False, [], {}, object(), 1j, [1.0, 2.0], np.zeros(2), "nan"]

# What each check promises, said a second time.
CHECKS = {
    _validate.finite: lambda value: math.isfinite(value),
    _validate.positive: lambda value: value > 0 and value < math.inf,
    _validate.non_negative: lambda value: value >= 0 and value < math.inf,
    _validate.probability: lambda value: value > 0 and value < 1,
}


@pytest.mark.parametrize("check", CHECKS)
@given(value=numbers)
def test_numbers_pass_exactly_where_promised(check, value):
    if CHECKS[check](float(value)):
        check(argument=value)
    else:
        with pytest.raises(InvalidArgumentError) as caught:
            check(argument=value)
        assert "argument" in str(caught.value)
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", OTHERS)
def test_what_is_no_number_never_passes(check, value):
    with pytest.raises(InvalidArgumentError, match="Expected argument"):
        check(argument=value)


@pytest.mark.parametrize("check", CHECKS)
def test_the_first_bad_argument_is_named_with_the_hint(check):
    with pytest.raises(InvalidArgumentError, match=r"Expected second .*, got nan\. Try again\.$"):
        check("Try again.", first=0.5, second=math.nan, third=math.nan)
    check(first=0.5, second=Decimal("0.5"), third=Fraction(1, 2), fourth=np.float32(0.5))
    check()


@pytest.mark.parametrize(
    ("closed", "passing"),
    [
        ("neither", {0.5}),
        ("left", {0.0, 0.5}),
        ("right", {0.5, 1.0}),
        ("both", {0.0, 0.5, 1.0}),
    ],
)
def test_ends_of_a_range(closed, passing):
    for value in (-0.1, 0.0, 0.5, 1.0, 1.1, math.nan, math.inf):
        if value in passing:
            _validate.within(0, 1, closed=closed, argument=value)
        else:
            left = "[" if closed in ("left", "both") else "("
            right = "]" if closed in ("right", "both") else ")"
            with pytest.raises(InvalidArgumentError) as caught:
                _validate.within(0, 1, closed=closed, argument=value)
            assert str(caught.value) == f"Expected argument in {left}0, 1{right}, got {value!r}."


@pytest.mark.parametrize("value", [0, -3, 5, np.int8(4), np.uint64(2**63), 10**40])
def test_whole_numbers_of_any_kind_pass(value):
    _validate.integer(argument=value)
    if value >= 4:
        _validate.integer(4, argument=value)
    else:
        with pytest.raises(InvalidArgumentError, match=r"argument .*>= 4, got"):
            _validate.integer(4, argument=value)


@pytest.mark.parametrize("value", [*OTHERS, 1.0, np.float64(2), np.True_, math.nan])
def test_what_is_no_whole_number_never_passes(value):
    for minimum in (None, 0):
        with pytest.raises(InvalidArgumentError, match="argument"):
            _validate.integer(minimum, argument=value)


def test_one_of():
    _validate.one_of(("a", "b"), argument="b")
    for value in ("c", "", None, 1, ["a"]):
        with pytest.raises(InvalidArgumentError, match=r"argument .*a, b, got .*\. Hm\."):
            _validate.one_of(("a", "b"), "Hm.", argument=value)


def test_errors_are_value_errors_too():
    error = _validate.fail("steps", -1, ">= 0", "Count again.")
    assert isinstance(error, AskGaussError)
    assert isinstance(error, ValueError)
    assert str(error) == "Expected steps >= 0, got -1. Count again."


# --- vectors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.uint64, bool])
def test_vectors_become_double_precision(dtype):
    given_values = np.array([0, 1, 1]).astype(dtype)
    vector = _validate.finite_vector("score", given_values)
    assert vector.dtype == np.float64
    np.testing.assert_array_equal(vector, [0.0, 1.0, 1.0])
    assert (vector is given_values) == (dtype is np.float64)


def test_an_empty_vector_is_finite():
    assert _validate.finite_vector("score", np.zeros(0)).size == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], r"score .*got dtype <U1"),
        ([None, 1.0], r"score .*got dtype object"),
        ([1j, 2.0], r"score .*got dtype complex128"),
        (1.0, r"score .*got shape \(\)"),
        ([[1.0], [2.0]], r"score .*got shape \(2, 1\)"),
        ([0.0, np.nan, np.inf], r"2 nan or infinite of 3 \(first at index 1\)"),
        ([-np.inf, 0.0], r"1 nan or infinite of 2 \(first at index 0\)"),
    ],
)
def test_bad_vectors_are_named(values, message):
    with pytest.raises(ScoresError, match=message):
        _validate.finite_vector("score", values)
