"""Training from a worst-case start: what the vectorised steps do, and what an audit sees."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError
from askgauss.final import FullBatchTraining, trained_scores, worst_start
from askgauss.final.workers import WorkerError

STEPS, WIDTH, CLASSES = 10, 30, 4
TARGET = np.zeros(WIDTH)
TARGET[-1] = 5.0  # what no record has


def records(count, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    features = generator.normal(0.0, 0.3, (count, WIDTH))
    features[np.arange(count), labels] += 2.0
    features[:, -1] = 0.0
    return features, labels


@pytest.fixture(scope="module")
def start():
    return worst_start(records(300, 0), classes=CLASSES, target=TARGET, target_label=1)


def training(start, noise, **changes):
    given = {
        "start": start,
        "target": TARGET,
        "target_label": 1,
        "steps": STEPS,
        "noise_multiplier": noise,
        "learning_rate": 0.01,
    }
    return FullBatchTraining(**given | changes)


def test_the_start_knows_the_others_and_not_the_target(start):
    features, labels = records(200, 1)
    logits = np.c_[features, np.ones(200)] @ start.T
    assert (logits.argmax(axis=1) == labels).mean() > 0.95
    target = start @ np.append(TARGET, 1.0)
    assert target[1] < target.max() - 20.0


def test_many_models_at_once_are_what_a_plain_loop_trains(start):
    """Record by record, with the same noise."""
    features, labels = records(15, 2)
    noise = 0.7
    given = training(start, noise, steps=3, learning_rate=0.2, clip_norm=0.5)
    fast = given.sample((features, labels), 2, seed=5)
    generator = np.random.default_rng(5).spawn(1)[0]
    weights = np.repeat(start[None].astype(float), 2, axis=0)
    for _ in range(3):
        drawn = generator.standard_normal(weights.shape, dtype=np.float32)
        for model in range(2):
            total = np.zeros(start.shape)
            for row, label in zip(features, labels, strict=True):
                row = np.append(row, 1.0)
                logits = weights[model] @ row
                chances = np.exp(logits - logits.max())
                chances /= chances.sum()
                chances[label] -= 1.0
                gradient = np.outer(chances, row)
                total += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
            weights[model] -= 0.2 * (total + noise * 0.5 * drawn[model])
    logits = weights @ np.append(TARGET, 1.0)
    slow = logits[:, 1] - np.log(np.exp(logits - logits.max(1)[:, None]).sum(1)) - logits.max(1)
    assert fast == pytest.approx(slow, rel=1e-3)


def test_the_loss_of_the_target_tells_nearly_all(start):
    """Epsilon 10: the distance of the two worlds is the mechanism's own, to a tenth."""
    mu = float(ag.gaussian.gdp_mu(10.0, 1e-5))
    scores = trained_scores(training(start, math.sqrt(STEPS) / mu), records(100, 3), runs=500)
    claim = ag.PrivacyClaim(epsilon=10.0, delta=1e-5)
    found = ag.audit(scores, claim=claim, auditor=ag.GaussianDP())
    assert found.verdict is not ag.Verdict.VIOLATION
    assert found.epsilon_lower > 5.5
    model = ag.audit(scores, claim=claim, auditor=ag.GaussianShift())
    assert 8.0 < model.epsilon_lower < 10.0
    table = ag.compare(scores, claim=claim, auditors=[ag.GaussianDP(), ag.GaussianShift()])
    assert [row.bound for row in table.rows] == [found.epsilon_lower, model.epsilon_lower]


def test_half_the_noise_is_a_violation(start):
    mu = float(ag.gaussian.gdp_mu(4.0, 1e-5))
    scores = trained_scores(training(start, 0.5 * math.sqrt(STEPS) / mu), records(60, 4), runs=500)
    claim = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)
    assert ag.audit(scores, claim=claim, auditor=ag.GaussianDP()).verdict is ag.Verdict.VIOLATION


def test_it_is_a_mechanism_like_any_other(start):
    """No noise to speak of: the bets need a few dozen models to know."""
    features, labels = records(40, 5)
    joined = (np.concatenate([features, TARGET[None]]), np.append(labels, 1))
    claim = ag.PrivacyClaim(epsilon=1.0, delta=1e-5)
    result = ag.audit_mechanism(
        training(start, 0.1), joined, (features, labels), claim=claim, max_samples=1000
    )
    assert result.verdict is ag.Verdict.VIOLATION


def test_the_parts_run_on_ray(start):
    """A cluster of this machine's own, in a process of its own as a user would."""
    pytest.importorskip("ray")
    from askgauss.final import ray_pool

    given = training(start, 1.0, steps=2)
    here = trained_scores(given, records(40, 3), runs=60)
    try:
        there = trained_scores(given, records(40, 3), runs=60, pool=ray_pool())
    except WorkerError as error:
        pytest.skip(str(error))
    assert np.array_equal(here.score, there.score)


def test_the_parts_may_run_anywhere(start):
    given = training(start, 2.0)
    here = trained_scores(given, records(30, 6), runs=60, seed=3)
    with ThreadPoolExecutor(2) as pool:
        there = trained_scores(given, records(30, 6), runs=60, seed=3, pool=pool.map)
    assert (here.score == there.score).all()
    assert len(np.unique(here.score)) == 120  # no two models share their noise


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"target_label": CLASSES}, "target_label"),
        ({"target": TARGET[:-1]}, "columns"),
        ({"target": np.full(WIDTH, np.nan)}, "target"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_bad_input_is_named(start, changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        training(start, 1.0, **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.zeros((3, 2)), np.zeros(3, int)), "columns"),
        ((np.zeros((3, WIDTH)), np.zeros(2, int)), "label"),
        ((np.zeros((3, WIDTH)), np.full(3, CLASSES)), "labels in"),
        ((np.full((3, WIDTH), np.nan), np.zeros(3, int)), "finite features"),
        (np.zeros((3, WIDTH)), "features and labels"),
    ],
)
def test_bad_records_are_named(start, data, message):
    with pytest.raises(InvalidArgumentError, match=message):
        training(start, 1.0).sample(data, 2, seed=0)
