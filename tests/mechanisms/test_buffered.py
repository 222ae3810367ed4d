"""Buffered linear Toeplitz strategies against the matrices they stand for, and jax-privacy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError, InvalidArgumentError, RecordingError
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.strategies import BufferedToeplitz
from askgauss.mechanisms.strategy import numpy_draw

STRATEGIES = [
    BufferedToeplitz(decay=[0.9, 0.5], scale=[0.2, 0.3], steps=12),
    BufferedToeplitz(decay=[1.0, 0.97, 0.3, 0.0], scale=[0.1, 0.2, 0.3, 0.4], steps=12),
    BufferedToeplitz(decay=[0.7, 0.7], scale=[0.25, 0.0], steps=12),
    BufferedToeplitz(decay=[0.6], scale=[0.5], steps=1),
]


def written_out(strategy):
    """The matrix from the definition, entry by entry."""
    matrix = np.eye(strategy.steps)
    for row, column in itertools.product(range(strategy.steps), repeat=2):
        if row > column:
            powers = [decay ** (row - column - 1) for decay in strategy.decay]
            matrix[row, column] = np.dot(strategy.scale, powers)
    return matrix


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.decay))
def test_everything_is_that_of_the_matrix(strategy):
    matrix = written_out(strategy)
    np.testing.assert_allclose(strategy.coefficients(), matrix[:, 0], rtol=1e-14)
    inverse = np.linalg.inv(matrix)
    noise = strategy.stream(iter_draws(strategy.steps))
    streamed = [noise.next(step) for step in range(strategy.steps)]
    np.testing.assert_allclose(streamed, inverse, atol=1e-12)


def iter_draws(size):
    """The i-th draw is the i-th unit vector, so that noise reads as weights of the draws."""
    rows = iter(np.eye(size))

    def draw(out):
        row = np.empty(size) if out is None else out
        row[:] = next(rows)
        return row

    return draw


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.decay))
@pytest.mark.parametrize("participations", [1, 2, 4, 50])
@pytest.mark.parametrize("separation", [1, 3, 5, 30])
def test_sensitivity_by_brute_force(strategy, participations, separation):
    """All ways to take part; with entries that are not negative, like signs are the worst."""
    matrix = written_out(strategy)
    truth = 0.0
    for size in range(1, min(participations, 4) + 1):
        for entered in itertools.combinations(range(strategy.steps), size):
            if all(after - before >= separation for before, after in itertools.pairwise(entered)):
                truth = max(truth, np.linalg.norm(matrix[:, entered].sum(axis=1)))
    pattern = {"participations": participations, "min_separation": separation}
    found = replace(strategy, **pattern).sensitivity()
    dense = MatrixMechanism(strategy=matrix, **pattern)
    assert found == pytest.approx(dense.sensitivity(), rel=1e-12)
    if participations <= 4 or separation >= 3:
        assert found == pytest.approx(truth, rel=1e-12)
    if participations == 1:
        expected = dense.noise_multiplier(epsilon=2.0, delta=1e-5)
        assert strategy.noise_multiplier(epsilon=2.0, delta=1e-5) == pytest.approx(expected)
        assert strategy.epsilon(noise_multiplier=expected, delta=1e-5) == pytest.approx(2.0)


def test_against_jax_privacy():
    blt = pytest.importorskip("jax_privacy.matrix_factorization.buffered_toeplitz")
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    jax = pytest.importorskip("jax")
    ours = replace(STRATEGIES[0], steps=200, participations=5, min_separation=20)
    with jax.enable_x64():
        theirs = blt.BufferedToeplitz.build(ours.decay, ours.scale)
        coefficients = np.asarray(theirs.toeplitz_coefs(200))
        squared = float(toeplitz.minsep_sensitivity_squared(coefficients, 20, 5, n=200))
        inverse = np.asarray(theirs.inverse().toeplitz_coefs(200))
    np.testing.assert_allclose(ours.coefficients(), coefficients, rtol=1e-12)
    assert ours.sensitivity() ** 2 == pytest.approx(squared, rel=1e-9)
    noise = ours.stream(iter_draws(200))
    np.testing.assert_allclose([noise.next()[0] for _ in range(200)], inverse, atol=1e-12)


def test_taken_from_jax_privacy(monkeypatch):
    blt = pytest.importorskip("jax_privacy.matrix_factorization.buffered_toeplitz")
    jax = pytest.importorskip("jax")
    with jax.enable_x64():
        found = blt.BufferedToeplitz.build([0.9, 0.5], [0.2, 0.3])
    asked = {}
    # The optimiser itself takes half a minute and is not ours to test.
    monkeypatch.setattr(blt, "optimize", lambda **options: asked.update(options) or found)
    ours = BufferedToeplitz.from_jax_privacy(
        10_000, buffers=2, participations=3, min_separation=400
    )
    assert asked["n"] == ours.steps == 10_000
    assert (asked["min_buffers"], asked["max_buffers"]) == (2, 2)
    assert (asked["min_sep"], asked["max_participations"]) == (400, 3)
    assert (ours.min_separation, ours.participations) == (400, 3)
    assert (ours.decay.tolist(), ours.scale.tolist()) == ([0.9, 0.5], [0.2, 0.3])


# --- streaming -------------------------------------------------------------------------------


def test_memory_is_the_buffers_however_long_the_run():
    draw, made = numpy_draw(np.random.default_rng(0), 2), 0

    def counting(out):
        nonlocal made
        made += out is None
        return draw(out)

    noise = replace(STRATEGIES[1], steps=3000).stream(counting)
    for _ in range(3000):
        noise.next()
    assert made == 1
    assert noise.buffers == 4 + 1


def test_rounding_does_not_build_up():
    """10,000 steps in single precision stay within rounding of the same draws in double."""
    strategy = BufferedToeplitz(decay=[0.999, 0.9, 0.5], scale=[0.1, 0.2, 0.3], steps=10_000)
    single = strategy.stream(numpy_draw(np.random.default_rng(6), 4))
    copied = numpy_draw(np.random.default_rng(6), 4)
    double = strategy.stream(lambda out: copied(None).astype(np.float64))
    worst = max(np.abs(single.next() - double.next()).max() for _ in range(10_000))
    assert worst < 1e-5


def test_resumes_at_every_step():
    strategy = replace(STRATEGIES[1], steps=8)
    whole = strategy.stream(numpy_draw(np.random.default_rng(4), 2))
    expected = [whole.next() for _ in range(8)]
    for stop in range(9):
        draw = numpy_draw(np.random.default_rng(4), 2)
        first = strategy.stream(draw)
        before = [first.next() for _ in range(stop)]
        second = strategy.stream(draw)
        second.load_state_dict(first.state_dict())
        for noise in before:
            noise += 100.0
        after = [second.next() for _ in range(8 - stop)]
        assert np.array_equal(after, expected[stop:])


def test_torch_gives_the_same_noise():
    torch = pytest.importorskip("torch")
    draw = numpy_draw(np.random.default_rng(7), 3)
    ours = STRATEGIES[1].stream(numpy_draw(np.random.default_rng(7), 3))
    theirs = STRATEGIES[1].stream(lambda out: torch.from_numpy(draw(None)))
    for _ in range(12):
        np.testing.assert_allclose(theirs.next().numpy(), ours.next(), rtol=1e-6, atol=1e-6)


def test_misuse_of_the_stream():
    draw = numpy_draw(np.random.default_rng(5), 2)
    noise = STRATEGIES[0].stream(draw)
    noise.next()
    state = noise.state_dict()
    with pytest.raises(RecordingError, match="leaf 1"):
        noise.next(0)
    for _ in range(11):
        noise.next()
    with pytest.raises(RecordingError, match="accounted for 12 steps"):
        noise.next()
    for change in ({"steps": 13}, {"decay": [0.9, 0.4]}, {"scale": [0.3, 0.3]}):
        other = replace(STRATEGIES[0], **change).stream(draw)
        with pytest.raises(RecordingError, match=f"another {next(iter(change))}"):
            other.load_state_dict(state)
    for change in ({"buffers": state["buffers"][:1]}, {"step": 0}, {"step": 13}):
        with pytest.raises(RecordingError, match="shape"):
            STRATEGIES[0].stream(draw).load_state_dict({**state, **change})
    with pytest.raises(FileFormatError, match="lacks buffers"):
        STRATEGIES[0].stream(draw).load_state_dict(
            {name: state[name] for name in state if name != "buffers"}
        )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"participations": 0}, "participations"),
        ({"min_separation": 0}, "min_separation"),
        ({"decay": [0.5]}, "scale"),
        ({"decay": [1.1, 0.5]}, "decay"),
        ({"decay": [np.nan, 0.5]}, "decay"),
        ({"decay": []}, "decay"),
        ({"decay": ["a", "b"]}, "decay"),
        ({"scale": [-0.1, 0.5]}, "scale"),
        ({"scale": [0.6, 0.5]}, "scale"),
        ({"scale": 0.5}, "scale"),
    ],
)
def test_bad_arguments(change, name):
    with pytest.raises(InvalidArgumentError, match=name):
        replace(STRATEGIES[0], **change)
