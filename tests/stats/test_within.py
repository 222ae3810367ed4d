"""The fit within canaries, against least squares on the whole matrix and under any background."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from askgauss.stats.shift import within_canaries


def fit(values, planted):
    return within_canaries(
        planted=planted.sum(axis=0),
        planted_total=(values * planted).sum(axis=0),
        total=values.sum(axis=0),
        square=(values**2).sum(axis=0),
        steps=len(values),
    )


def test_is_least_squares_with_a_level_for_every_canary():
    rng = np.random.default_rng(0)
    planted = rng.random((30, 7)) < 0.3
    values = 3.0 * rng.standard_normal(7) + planted + rng.standard_normal((30, 7))
    design = np.column_stack([planted.T.ravel(), np.kron(np.eye(7), np.ones((30, 1)))])
    solution, residual, *_ = np.linalg.lstsq(design, values.T.ravel(), rcond=None)
    found = fit(values, planted)
    assert found.slope == pytest.approx(solution[0], rel=1e-9)
    assert found.residual == pytest.approx(float(residual[0]), rel=1e-9)
    assert found.degrees_of_freedom == 30 * 7 - 8


def test_inflation_is_the_variance_of_the_choice_of_steps():
    """Against every canary's own variance, canary by canary."""
    rng = np.random.default_rng(1)
    planted = rng.random((40, 12)) < 0.2
    values = planted + rng.standard_normal((40, 12)) * np.where(np.arange(12) < 3, 20.0, 1.0)
    found = fit(values, planted)
    chosen = shown = 0.0
    for column, coins in zip((values - found.slope * planted).T, planted.T, strict=True):
        count = coins.sum()
        chosen += count * (1 - count / 40) * column.var(ddof=1)
        shown += ((column - column.mean())[coins].sum()) ** 2
    pooled = found.spread * found.residual / found.degrees_of_freedom
    assert found.inflation == pytest.approx(math.sqrt(max(chosen, shown, pooled) / pooled))


@pytest.mark.parametrize("background", ["none", "burst", "bursts", "lone values", "coordinates"])
def test_is_above_the_truth_at_most_as_often_as_it_may(background):
    """Few plantings, and whatever the other records do. The truth is one clip norm over noise 1."""
    rng, error, above, runs = np.random.default_rng(2), 0.005, 0, 2000
    steps, canaries, present = 60, 30, 10
    for _ in range(runs):
        planted = np.zeros((steps, canaries), dtype=bool)
        planted[:, :present] = rng.random((steps, present)) < 0.05
        values = planted + rng.standard_normal((steps, canaries))
        if background == "burst":
            values[30] += 100.0 * rng.choice([-1.0, 1.0])
        elif background == "bursts":
            values += 30.0 * (rng.random((steps, 1)) < 0.03) * rng.standard_normal(values.shape)
        elif background == "lone values":
            hit = rng.random(values.shape) < 0.002
            values += 200.0 * hit * rng.standard_normal(values.shape)
        elif background == "coordinates":
            values += 20.0 * (rng.random(canaries) < 0.1) * rng.standard_normal(values.shape)
        above += fit(values, planted).p_value(1.0) < error
    assert above <= runs * error + 3.5 * math.sqrt(runs * error)


def test_costs_next_to_nothing_where_there_is_noise_alone():
    rng, ratios = np.random.default_rng(3), []
    for _ in range(40):
        planted = np.zeros((200, 200), dtype=bool)
        planted[:, :100] = rng.random((200, 100)) < 0.1
        found = fit(planted + rng.standard_normal((200, 200)), planted)
        ratios.append(found.lower(0.05) / replace(found, inflation=1.0).lower(0.05))
    assert np.mean(ratios) > 0.99
