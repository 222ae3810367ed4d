"""Linear mechanisms against dense algebra, brute force and jax-privacy."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    MissingExtraError,
    RecordingError,
    UnsupportedError,
)
from askgauss.mechanisms import matrix, tree
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy, BufferedToeplitz
from askgauss.mechanisms.strategy import numpy_draw
from askgauss.scores import ScoreMetadata

DECAYING = [1.0, 0.6, 0.3, 0.3, 0.1]


def every_way(steps, participations, separation):
    for count in range(1, participations + 1):
        for entered in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(entered)):
                yield list(entered)


def brute_force(strategy, participations, separation):
    """The largest movement over all ways to take part and all signs of the contributions."""
    best = 0.0
    for entered in every_way(strategy.shape[1], participations, separation):
        for signs in itertools.product((-1.0, 1.0), repeat=len(entered)):
            best = max(best, np.linalg.norm(strategy[:, entered] @ np.array(signs)))
    return best


def unit_draws(size):
    count = itertools.count()

    def draw(out):
        row = np.zeros(size)
        row[next(count)] = 1.0
        return row

    return draw


# --- shape -----------------------------------------------------------------------------------


def test_tree_of_two():
    mechanism = MatrixMechanism.tree(2, estimator="full")
    assert mechanism.strategy.tolist() == [[1, 0], [0, 1], [1, 1]]
    inverse = np.array([[2, -1, 1], [-1, 2, 1]]) / 3
    assert np.allclose(mechanism.decoder, np.tri(2) @ inverse, atol=1e-15)


@pytest.mark.parametrize("estimator", ["plain", "honaker", "full"])
@pytest.mark.parametrize("steps", [1, 2, 7, 16, 21])
def test_tree_decoders_are_unbiased(steps, estimator):
    mechanism = MatrixMechanism.tree(steps, estimator=estimator)
    assert np.allclose(mechanism.decoder @ mechanism.strategy, np.tri(steps), atol=1e-12)


def test_bands():
    assert MatrixMechanism.identity(3).bands == 1
    assert MatrixMechanism.toeplitz(DECAYING, 7).bands == 5
    assert MatrixMechanism(strategy=np.eye(2)[::-1]).bands == 2
    strategy = MatrixMechanism.banded(np.arange(1.0, 13.0).reshape(4, 3)).strategy
    assert strategy.tolist() == [[1, 0, 0, 0], [2, 4, 0, 0], [3, 5, 7, 0], [0, 6, 8, 10]]


def test_a_frozen_mechanism_does_not_change_under_its_owner():
    source = np.eye(3)
    mechanism = MatrixMechanism(strategy=source)
    source[0, 0] = 100.0
    assert mechanism.sensitivity() == 1.0
    with pytest.raises(ValueError, match="read-only"):
        mechanism.strategy[0, 0] = 100.0


# --- sensitivity -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 5, 8, 13])
def test_tree_sensitivity_is_that_of_the_tree(steps):
    for participations, separation in ((1, 1), (2, 3), (4, 2), (3, 100)):
        pattern = {"participations": participations, "min_separation": separation}
        mechanism = replace(MatrixMechanism.tree(steps), **pattern)
        assert mechanism.sensitivity() == pytest.approx(tree.sensitivity(steps, **pattern))


@pytest.mark.parametrize("participations", [1, 2, 3])
@pytest.mark.parametrize("separation", [1, 2, 4, 9])
def test_sensitivity_by_brute_force(participations, separation, monkeypatch):
    generator = np.random.default_rng(10 * participations + separation)
    positive = MatrixMechanism(strategy=generator.uniform(size=(9, 7)))
    signed = MatrixMechanism(strategy=generator.normal(size=(9, 7)))
    decaying = MatrixMechanism.toeplitz(DECAYING, 7)
    growing = MatrixMechanism.toeplitz(DECAYING[::-1], 7)
    pattern = {"participations": participations, "min_separation": separation}
    for mechanism, exact in (
        (positive, True),
        (decaying, True),
        (growing, True),
        (signed, participations < 3 or separation > 3),
    ):
        truth = brute_force(mechanism.strategy, participations, separation)
        found = replace(mechanism, **pattern).sensitivity()
        assert found >= truth * (1 - 1e-12)
        if exact:
            assert found == pytest.approx(truth)
    monkeypatch.setattr(matrix, "_ENUMERATED", 0)
    for mechanism in (positive, signed, growing):
        truth = brute_force(mechanism.strategy, participations, separation)
        assert replace(mechanism, **pattern).sensitivity() >= truth * (1 - 1e-12)


def test_bound_is_exact_for_bands_within_the_separation(monkeypatch):
    monkeypatch.setattr(matrix, "_ENUMERATED", 0)
    columns = np.random.default_rng(0).normal(size=(10, 3))
    mechanism = replace(MatrixMechanism.banded(columns), participations=3, min_separation=3)
    truth = brute_force(mechanism.strategy, 3, 3)
    assert mechanism.sensitivity() == pytest.approx(truth)
    # No bands below the diagonal, and columns that meet all the same.
    upward = replace(mechanism, strategy=mechanism.strategy.T, min_separation=2)
    assert upward.bands == 1
    assert upward.sensitivity() >= brute_force(upward.strategy, 3, 2)
    # Rows that are no steps.
    nodes = replace(MatrixMechanism.tree(6), participations=2)
    assert nodes.sensitivity() >= brute_force(nodes.strategy, 2, 1)


def test_sensitivity_against_jax_privacy(monkeypatch):
    sensitivity = pytest.importorskip("jax_privacy.matrix_factorization.sensitivity")
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    generator = np.random.default_rng(1)
    square = np.tril(generator.normal(size=(24, 24)))
    for strategy in (square, MatrixMechanism.tree(24).strategy):
        theirs = float(sensitivity.single_participation_sensitivity(strategy))
        assert MatrixMechanism(strategy=strategy).sensitivity() == pytest.approx(theirs, rel=1e-5)
    monkeypatch.setattr(matrix, "_ENUMERATED", 0)
    for participations, separation in ((4, 6), (5, 1)):
        theirs = sensitivity.get_min_sep_sensitivity_upper_bound(square, separation, participations)
        ours = MatrixMechanism(
            strategy=square, participations=participations, min_separation=separation
        )
        # Ours leaves out partners that stand too close, which theirs counts.
        assert 0.7 * theirs < ours.sensitivity() <= theirs * (1 + 1e-5)
    banded = MatrixMechanism.banded(generator.normal(size=(24, 4)))
    theirs = sensitivity.get_sensitivity_banded(banded.strategy, 4, 5)
    ours = replace(banded, participations=5, min_separation=4).sensitivity()
    assert ours == pytest.approx(theirs, rel=1e-5)
    for participations, separation in ((6, 4), (100, 1)):
        theirs = toeplitz.minsep_sensitivity_squared(
            np.array(DECAYING), separation, participations, n=24
        )
        ours = replace(
            MatrixMechanism.toeplitz(DECAYING, 24),
            participations=participations,
            min_separation=separation,
        )
        assert ours.sensitivity() ** 2 == pytest.approx(float(theirs), rel=1e-5)


def test_two_participations_may_outweigh_three():
    strategy = np.diag([1.0, 9.0, 1.0, 9.0, 1.0])
    mechanism = MatrixMechanism(strategy=strategy, participations=3, min_separation=2)
    assert mechanism.sensitivity() ** 2 == pytest.approx(162.0)


def test_noise_multiplier_and_epsilon():
    mechanism = MatrixMechanism.tree(100)
    for epsilon in (0.5, 8.0):
        noise = mechanism.noise_multiplier(epsilon=epsilon, delta=1e-5)
        assert noise == pytest.approx(
            TreePlan(steps=100).noise_multiplier(epsilon=epsilon, delta=1e-5)
        )
        assert mechanism.epsilon(noise_multiplier=noise, delta=1e-5) == pytest.approx(epsilon)


# --- information -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "least", "most", "mean"),
    [
        (None, 8**0.5, 8**0.5, 8**0.5),
        ("plain", 1.0, 8**0.5, 2.096),
        ("honaker", 1.725, 2.621, 2.471),
        ("full", 8**0.5, 8**0.5, 8**0.5),
    ],
)
def test_information_in_a_tree_of_128(estimator, least, most, mean):
    information = MatrixMechanism.tree(128, estimator=estimator).information()
    assert information.min() == pytest.approx(least, abs=5e-4)
    assert information.max() == pytest.approx(most, abs=5e-4)
    assert information.mean() == pytest.approx(mean, abs=5e-4)


def test_plain_prefixes_show_the_even_ancestors_only():
    information = MatrixMechanism.tree(128, estimator="plain").information()
    even = [sum((leaf >> level) % 2 == 0 for level in range(8)) for leaf in range(128)]
    assert np.allclose(information**2, even, rtol=0, atol=1e-9)


def test_an_invertible_decoder_hides_nothing():
    plain = MatrixMechanism.toeplitz(DECAYING, 12)
    decoded = replace(plain, decoder=np.tri(12) @ np.linalg.inv(plain.strategy))
    assert np.allclose(decoded.information(), np.linalg.norm(plain.strategy, axis=0))


def examples():
    generator = np.random.default_rng(2)
    yield MatrixMechanism.identity(6)
    yield MatrixMechanism.tree(11)
    for estimator in ("plain", "honaker", "full"):
        yield MatrixMechanism.tree(11, estimator=estimator)
    yield MatrixMechanism(
        strategy=generator.normal(size=(9, 6)), decoder=generator.normal(size=(7, 9))
    )


@pytest.mark.parametrize("mechanism", list(examples()))
def test_filter_is_the_likelihood_ratio(mechanism):
    """Unit noise, the stated shift, and the generalised least squares formula for both."""
    found = mechanism.matched_filter()
    mixing = np.eye(len(mechanism.strategy)) if mechanism.decoder is None else mechanism.decoder
    signal = mixing @ mechanism.strategy
    noise = found.weights @ mixing
    assert np.allclose(np.linalg.norm(noise, axis=1), 1.0)
    assert np.allclose(np.sum(found.weights * signal.T, axis=1), found.shift)
    assert np.allclose(found.shift, mechanism.information())
    solved = np.linalg.solve(mixing @ mixing.T, signal)
    assert np.allclose(found.shift**2, np.sum(signal * solved, axis=0))
    assert np.allclose(found.weights, (solved / found.shift).T, rtol=1e-6, atol=1e-9)


def test_released_rows_said_twice_carry_no_more():
    once = MatrixMechanism.tree(11, estimator="honaker")
    twice = replace(once, decoder=np.concatenate([once.decoder, once.decoder[::-1]]))
    assert np.allclose(twice.information(), once.information(), rtol=1e-9)
    noise = twice.matched_filter().weights @ twice.decoder
    assert np.allclose(np.linalg.norm(noise, axis=1), 1.0)


def test_filters_of_canaries_at_several_steps():
    mechanism = replace(
        MatrixMechanism.tree(8, estimator="full"), participations=2, min_separation=3
    )
    single = mechanism.matched_filter([5, 0, 5])
    every = mechanism.matched_filter()
    assert np.allclose(single.weights, every.weights[[5, 0, 5]])
    double = mechanism.matched_filter([[0, 3], [1, 7]])
    strategy = mechanism.strategy
    expected = [np.linalg.norm(strategy[:, a] + strategy[:, b]) for a, b in ((0, 3), (1, 7))]
    assert np.allclose(double.shift, expected)
    # Two ways to sums of a handful of squares: they may differ in the last bits.
    assert double.shift.max() <= mechanism.sensitivity() * (1.0 + 1e-12)
    with pytest.raises(RecordingError, match="apart"):
        mechanism.matched_filter([[0, 2]])
    with pytest.raises(RecordingError, match="entered 3"):
        mechanism.matched_filter([[0, 3, 6]])


def test_scores():
    mechanism = MatrixMechanism.tree(5, estimator="honaker")
    leaves = np.array([4, 0, 2])
    released = mechanism.decoder @ mechanism.strategy[:, leaves]
    found = mechanism.matched_filter(leaves)
    assert np.allclose(found.score(released), found.shift)
    with pytest.raises(InvalidArgumentError, match="released"):
        found.score(released.T)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_audit_of_streamed_noise_comes_close_to_the_claim(epsilon):
    """Above the claim with probability .001; below .55 of it is four standard deviations off."""
    mechanism = MatrixMechanism.toeplitz(DECAYING, 20)
    sigma = mechanism.noise_multiplier(epsilon=epsilon, delta=1e-5)
    generator = np.random.default_rng(8)
    member, leaves = generator.random(20_000) < 0.5, generator.integers(20, size=20_000)
    noise = mechanism.stream(numpy_draw(generator, 20_000, scale=sigma))
    released = np.array([(leaves == step) * member + noise.next() for step in range(20)])
    seen = replace(mechanism, decoder=np.linalg.inv(mechanism.strategy))
    best = seen.matched_filter(leaves)
    scores = ag.CanaryScores(
        score=best.score(released),
        member=member,
        relative_shift=best.shift / best.shift.max(),
        metadata=ScoreMetadata(noise="gaussian"),
    )
    bound = ag.audit(scores, delta=1e-5, confidence=0.999).epsilon_lower
    assert 0.55 * epsilon < bound < epsilon


def test_a_canary_that_nothing_shows_has_no_score():
    mechanism = MatrixMechanism(strategy=np.eye(3), decoder=np.array([[1.0, 0, 0], [0, 1.0, 0]]))
    assert mechanism.information().tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(UnsupportedError, match="canary 2"):
        mechanism.matched_filter()
    assert mechanism.matched_filter([0, 1]).shift.tolist() == [1.0, 1.0]


# --- streaming -------------------------------------------------------------------------------


def invertible():
    generator = np.random.default_rng(3)
    yield MatrixMechanism.identity(5)
    yield MatrixMechanism.toeplitz(DECAYING, 12)
    yield MatrixMechanism.banded(generator.uniform(0.5, 1.5, size=(9, 3)))
    yield MatrixMechanism(strategy=np.tril(generator.uniform(0.5, 1.5, size=(6, 6))))


@pytest.mark.parametrize("mechanism", list(invertible()))
def test_stream_is_the_inverse(mechanism):
    noise = mechanism.stream(unit_draws(mechanism.steps))
    weights = np.array([noise.next() for _ in range(mechanism.steps)])
    assert np.allclose(weights, np.linalg.inv(mechanism.strategy), rtol=0, atol=1e-9)


def test_stream_memory_is_the_bands():
    draw, made = numpy_draw(np.random.default_rng(0), 2), 0

    def counting(out):
        nonlocal made
        made += out is None
        return draw(out)

    noise = MatrixMechanism.toeplitz(DECAYING, 60).stream(counting)
    for _ in range(60):
        noise.next()
    assert made == noise.buffers == 5


def test_stream_resumes_at_every_step():
    mechanism = MatrixMechanism.toeplitz(DECAYING[:3], 8)
    whole = mechanism.stream(numpy_draw(np.random.default_rng(4), 2))
    expected = [whole.next() for _ in range(8)]
    for stop in range(9):
        draw = numpy_draw(np.random.default_rng(4), 2)
        first = mechanism.stream(draw)
        before = [first.next() for _ in range(stop)]
        second = mechanism.stream(draw)
        second.load_state_dict(first.state_dict())
        for noise in before:
            noise += 100.0
        after = [second.next() for _ in range(8 - stop)]
        assert np.array_equal(after, expected[stop:])


def test_stream_refuses_what_it_cannot_keep():
    draw = numpy_draw(np.random.default_rng(5), 2)
    with pytest.raises(UnsupportedError, match="lower-triangular"):
        MatrixMechanism.tree(4).stream(draw)
    with pytest.raises(UnsupportedError, match="lower-triangular"):
        MatrixMechanism(strategy=[[1.0, 0.1], [0.0, 1.0]]).stream(draw)
    for diagonal in (0.0, 1e-310):
        with pytest.raises(InvalidArgumentError, match="diagonal"):
            MatrixMechanism(strategy=[[1.0, 0.0], [1.0, diagonal]]).stream(draw)
    mechanism = MatrixMechanism.toeplitz([1.0, 0.5], 3)
    noise = mechanism.stream(draw)
    for _ in range(2):
        noise.next()
    state = noise.state_dict()
    noise.next()
    with pytest.raises(RecordingError, match="accounted for 3 steps"):
        noise.next()
    with pytest.raises(RecordingError, match="another strategy"):
        MatrixMechanism.toeplitz([1.0, 0.4], 3).stream(draw).load_state_dict(state)
    for change in ({"recent": []}, {"step": 4}):
        with pytest.raises(RecordingError, match="shape"):
            mechanism.stream(draw).load_state_dict({**state, **change})
    with pytest.raises(FileFormatError, match="schema"):
        mechanism.stream(draw).load_state_dict({**state, "schema": 2})
    with pytest.raises(FileFormatError, match="lacks"):
        mechanism.stream(draw).load_state_dict({"schema": 1})
    with pytest.raises(RecordingError, match="zeros"):
        mechanism.stream(lambda out: np.zeros(2)).next()

    def failing(out):
        raise MemoryError

    broken = mechanism.stream(failing)
    with pytest.raises(MemoryError):
        broken.next()
    with pytest.raises(RecordingError, match="half way"):
        broken.next()
    with pytest.raises(RecordingError, match="half way"):
        broken.state_dict()


def test_bad_arguments():
    for call, name in (
        (lambda: MatrixMechanism(strategy=np.zeros(3)), "strategy"),
        (lambda: MatrixMechanism(strategy=np.zeros((0, 3))), "strategy"),
        (lambda: MatrixMechanism(strategy=[[np.nan]]), "strategy"),
        (lambda: MatrixMechanism(strategy=[[1.0], [1.0, 2.0]]), "strategy"),
        (lambda: MatrixMechanism(strategy=[["a"]]), "strategy"),
        (lambda: MatrixMechanism(strategy=[[1j]]), "strategy"),
        # Without noise and without an answer: a noise multiplier of 0 would be all too right.
        (lambda: MatrixMechanism(strategy=np.zeros((3, 3))), "strategy"),
        (lambda: MatrixMechanism(strategy=np.eye(3), decoder=np.eye(2)), "decoder"),
        (lambda: MatrixMechanism(strategy=np.eye(3), participations=0), "participations"),
        (lambda: MatrixMechanism(strategy=np.eye(3), min_separation=0), "min_separation"),
        (lambda: MatrixMechanism.identity(0), "steps"),
        (lambda: MatrixMechanism.tree(4, estimator="best"), "estimator"),
        (lambda: MatrixMechanism.toeplitz([], 3), "coefficients"),
        (lambda: MatrixMechanism.toeplitz([1.0, 2.0], 1), "coefficients"),
        (lambda: MatrixMechanism.banded([1.0]), "columns"),
        (lambda: MatrixMechanism.identity(3).matched_filter([3]), "leaves"),
        (lambda: MatrixMechanism.identity(3).matched_filter([-1]), "leaves"),
        (lambda: MatrixMechanism.identity(3).matched_filter([0.0]), "leaves"),
        (lambda: MatrixMechanism.identity(3).epsilon(noise_multiplier=0.0, delta=1e-5), "noise_mu"),
        (lambda: MatrixMechanism.identity(3).noise_multiplier(epsilon=1.0, delta=0.0), "delta"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            call()


# --- jax-privacy -----------------------------------------------------------------------------


def test_banded_from_jax_privacy():
    dense = pytest.importorskip("jax_privacy.matrix_factorization.dense")
    mechanism = BandedStrategy.from_jax_privacy(16, bands=4).written_out()
    assert mechanism.bands == 4
    assert np.allclose(np.linalg.norm(mechanism.strategy, axis=0), 1.0)
    theirs = dense.per_query_error(strategy_matrix=mechanism.strategy)
    # At sensitivity one each: better than independent noise.
    assert np.mean(theirs) < np.mean(dense.per_query_error(strategy_matrix=np.eye(16)))
    several = replace(mechanism, participations=4, min_separation=4)
    assert several.sensitivity() == pytest.approx(2.0)


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    for name in ("banded", "buffered_toeplitz"):
        monkeypatch.delitem(sys.modules, f"jax_privacy.matrix_factorization.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "jax_privacy.matrix_factorization", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install askgauss\[jax\]"):
        BandedStrategy.from_jax_privacy(4, bands=2)
    with pytest.raises(MissingExtraError, match=r"pip install askgauss\[jax\]"):
        BufferedToeplitz.from_jax_privacy(4)
