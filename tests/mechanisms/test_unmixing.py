"""Correlated noise undone, against the matrices written out."""

from __future__ import annotations

import numpy as np
import pytest

from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.mechanisms.decorrelate import (
    RoundFilter,
    evened,
    full_rounds,
    heaviest_entry,
    strategy_of,
)
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.strategies import BufferedToeplitz

STEPS = 24
BUFFERED = BufferedToeplitz(decay=[0.9, 0.4], scale=[0.3, 0.2], steps=STEPS)
BANDED = [1.0, 0.6, 0.3]


def matrix(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "toeplitz":
        return MatrixMechanism.toeplitz(BANDED, STEPS).strategy
    if kind == "columns":
        return MatrixMechanism.banded(columns()).strategy
    if kind == "buffered":
        return MatrixMechanism.toeplitz(BUFFERED.coefficients(), STEPS).strategy
    return np.tril(rng.uniform(-0.2, 0.4, (STEPS, STEPS))) + np.eye(STEPS)


def columns() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1.0, (STEPS, 3))


def given(kind: str) -> object:
    return {
        "toeplitz": BANDED,
        "columns": columns(),
        "buffered": BUFFERED,
        "dense": matrix("dense"),
        "mechanism": MatrixMechanism(strategy=matrix("dense")),
    }[kind]


KINDS = ("toeplitz", "columns", "buffered", "dense", "mechanism")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 5, STEPS])
def test_a_strategy_is_its_matrix(kind, steps):
    strategy, full = strategy_of(given(kind), STEPS), matrix(kind)
    rows = np.random.default_rng(2).normal(size=(steps, 7))
    assert np.allclose(strategy.apply(rows), full[:steps, :steps] @ rows, rtol=1e-12)
    norms = np.linalg.norm(full[:steps, :steps], axis=0)
    assert np.allclose(strategy.norms(steps), norms, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cycle", [1, 5, STEPS, 99])
def test_the_heaviest_entry_is_found(kind, cycle):
    first, norm = heaviest_entry(strategy_of(given(kind), STEPS), steps=STEPS, cycle=cycle)
    every = [
        np.linalg.norm(matrix(kind)[:, start::cycle].sum(axis=1))
        for start in range(min(cycle, STEPS))
    ]
    assert norm == pytest.approx(max(every), rel=1e-6)
    assert every[first] == pytest.approx(norm, rel=1e-9)


def test_rounds_are_steps_of_poisson_sampling():
    # Without noise a planted canary adds one and nothing else; with noise, rows are independent.
    strategy, cycle = strategy_of(BANDED, STEPS), 4
    norm, count = strategy.norms(STEPS).max(), full_rounds(strategy, steps=STEPS, cycle=cycle)
    assert count == 5  # 22 whole columns
    groups = np.array([0, 3, 2, 1])
    entered = np.random.default_rng(3).random((count, 4)) < 0.5
    inputs = np.zeros((STEPS, 4))
    for turn in range(count):
        inputs[turn * cycle + groups, np.arange(4)] = entered[turn]
    kwargs = {"groups": groups, "cycle": cycle, "norm": norm, "count": count}
    assert np.allclose(RoundFilter(strategy, **kwargs).rounds(inputs), entered, atol=1e-12)
    noise = np.linalg.inv(matrix("toeplitz"))
    for column, group in enumerate(groups):
        kwargs["groups"] = np.full(STEPS, group)
        weights = RoundFilter(strategy, **kwargs).rounds(noise)
        assert np.allclose(weights @ weights.T, np.eye(count) / norm**2, atol=1e-12), column


def test_records_nearer_than_the_bands_are_refused():
    strategy = strategy_of(BANDED, STEPS)
    with pytest.raises(UnsupportedError, match="3 steps apart"):
        RoundFilter(strategy, groups=np.zeros(1, int), cycle=2, norm=1.0, count=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entered", [[0], [3, 9, 15], range(STEPS)])
def test_evened_rows_show_a_record_alike_and_keep_the_noise(kind, entered):
    strategy, full = strategy_of(given(kind), STEPS), matrix(kind)
    inputs = np.zeros((STEPS, 1))
    inputs[list(entered)] = 1.0
    shown = evened(inputs, strategy, entered=list(entered))
    height = np.linalg.norm(full @ inputs) / np.sqrt(STEPS)
    assert np.allclose(shown, height, rtol=1e-9)
    draws = evened(np.linalg.inv(full), strategy, entered=list(entered))
    assert np.allclose(draws @ draws.T, np.eye(STEPS), atol=1e-9)


def test_columns_cut_off_at_the_end_are_no_whole_rounds():
    assert full_rounds(strategy_of([1.0], 12), steps=12, cycle=3) == 4
    assert full_rounds(strategy_of(BANDED, 12), steps=12, cycle=3) == 3


@pytest.mark.parametrize(
    ("strategy", "error", "match"),
    [
        ("text", InvalidArgumentError, "coefficients, columns or a matrix"),
        ([0.0, 1.0], InvalidArgumentError, "zero on the diagonal"),
        ([np.nan], InvalidArgumentError, "finite"),
        (np.ones((STEPS, STEPS)), UnsupportedError, "lower-triangular"),
        (np.ones((3, 2)), InvalidArgumentError, f"each of {STEPS} steps"),
        (MatrixMechanism.tree(STEPS, estimator="full"), UnsupportedError, "decoder"),
    ],
)
def test_bad_strategies_are_refused(strategy, error, match):
    with pytest.raises(error, match=match):
        strategy_of(strategy, STEPS)
