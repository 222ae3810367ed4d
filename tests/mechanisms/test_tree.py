"""Tree aggregation against its definition, node by node."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.mechanisms import tree
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import numpy_draw
from askgauss.mechanisms.tree import TreeNoise

SIZES = [*range(1, 20), 31, 32, 33, 64]


def complete_nodes(steps):
    return [
        (level, index)
        for level in range(steps.bit_length())
        for index in range(steps)
        if (index + 1) << level <= steps
    ]


def leaves_of(node):
    level, index = node
    return set(range(index << level, (index + 1) << level))


class UnitDraws:
    """The i-th draw is the i-th unit vector, so that noise reads as weights of the draws."""

    def __init__(self, size):
        self.size = size
        self.made = 0
        self.drawn = 0

    def __call__(self, out):
        if out is None:
            self.made += 1
            out = np.empty(self.size)
        out[:] = 0.0
        out[self.drawn] = 1.0
        self.drawn += 1
        return out


def streamed(steps, estimator, draws=None, **options):
    draws = draws or UnitDraws(8 * steps + 8)
    noise = TreeNoise(draws, steps=steps, estimator=estimator, **options)
    return np.array([noise.next() for _ in range(steps)])


# --- shape -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", SIZES)
def test_shape(steps):
    nodes = complete_nodes(steps)
    assert tree.levels(steps) == 1 + max(level for level, _ in nodes)
    for count in range(steps + 1):
        parts = [leaves_of(node) for node in tree.prefix_nodes(count)]
        assert sum(map(len, parts)) == count
        assert set().union(*parts) == set(range(count))
        assert len(parts) == count.bit_count()
    arrived = [tree.completed_nodes(leaf) for leaf in range(steps)]
    assert sorted(itertools.chain(*arrived)) == nodes
    assert all(max(leaves_of(node)) == leaf for leaf in range(steps) for node in arrived[leaf])


# --- estimators ------------------------------------------------------------------------------


def incidence(steps):
    return np.array(
        [[leaf in leaves_of(n) for leaf in range(steps)] for n in complete_nodes(steps)], float
    )


def by_level(matrix, steps):
    ends = np.cumsum([steps >> level for level in range(steps.bit_length())])
    return np.split(matrix, ends[:-1])


def decoder(steps, estimator):
    return tree.prefixes(by_level(np.eye(len(complete_nodes(steps))), steps), estimator)


def honaker_by_definition(steps):
    """V = fresh + (left + right) / 2, node estimate V / (2 - 2^-level), straight from the text."""
    nodes = complete_nodes(steps)
    place = {node: row for row, node in enumerate(nodes)}

    def total(level, index):
        row = np.zeros(len(nodes))
        row[place[level, index]] = 1.0
        if level:
            row += 0.5 * (total(level - 1, 2 * index) + total(level - 1, 2 * index + 1))
        return row

    return np.array(
        [
            sum(total(*node) / (2.0 - 2.0 ** -node[0]) for node in tree.prefix_nodes(count))
            for count in range(1, steps + 1)
        ]
    )


@pytest.mark.parametrize("steps", SIZES)
def test_decoders_by_definition(steps):
    nodes = complete_nodes(steps)
    strategy = incidence(steps)
    assert np.array_equal(np.concatenate(tree.node_sums(np.eye(steps))), strategy)
    plain = [[node in tree.prefix_nodes(n) for node in nodes] for n in range(1, steps + 1)]
    full = np.tri(steps) @ np.linalg.pinv(strategy)
    assert np.array_equal(decoder(steps, "plain"), np.array(plain, float))
    assert np.allclose(decoder(steps, "honaker"), honaker_by_definition(steps), rtol=0, atol=1e-14)
    assert np.allclose(decoder(steps, "full"), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["plain", "honaker", "full"])
@pytest.mark.parametrize("steps", [1, 2, 7, 16, 21])
def test_exact_sums_give_exact_prefixes(steps, estimator):
    leaves = np.random.default_rng(steps).normal(size=(steps, 3, 2))
    estimates = tree.prefixes(tree.node_sums(leaves), estimator)
    assert np.allclose(estimates, np.cumsum(leaves, axis=0), rtol=0, atol=1e-12)


def test_integer_nodes_are_not_truncated():
    nodes = [np.array([1, 0]), np.array([0])]
    assert tree.prefixes(nodes, "honaker").tolist() == pytest.approx([1.0, 1 / 3])
    assert tree.prefixes(nodes, "full").tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("estimator", "steps", "expected"),
    [
        ("plain", 4, [1, 1, 2, 1]),
        ("honaker", 4, [1, Fraction(2, 3), Fraction(5, 3), Fraction(4, 7)]),
        ("full", 4, [Fraction(13, 21), Fraction(10, 21), Fraction(19, 21), Fraction(4, 7)]),
        ("full", 2, [Fraction(2, 3), Fraction(2, 3)]),
        ("full", 1, [1]),
    ],
)
def test_variance_by_hand(estimator, steps, expected):
    variance = np.sum(decoder(steps, estimator) ** 2, axis=1)
    assert np.allclose(variance, np.array(expected, float), atol=1e-14)


def test_variance_of_eight_and_of_128():
    expected = [1, 0.6667, 1.6667, 0.5714, 1.5714, 1.2381, 2.2381, 0.5333]
    assert np.allclose(np.sum(decoder(8, "honaker") ** 2, axis=1), expected, rtol=0, atol=5e-5)
    for estimator, mean, largest in (
        ("plain", 3.508, 7.0),
        ("honaker", 2.154, 4.299),
        ("full", 0.987, 1.4575),
    ):
        variance = np.sum(decoder(128, estimator) ** 2, axis=1)
        assert variance.mean() == pytest.approx(mean, abs=5e-4)
        assert variance.max() == pytest.approx(largest, abs=5e-4)


# --- streaming -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", SIZES)
def test_stream_is_the_decoder(steps):
    nodes = complete_nodes(steps)
    order = [node for leaf in range(steps) for node in tree.completed_nodes(leaf)]
    columns = [nodes.index(node) for node in order]
    weights = streamed(steps, "honaker")
    expected = decoder(steps, "honaker")[:, columns]
    assert np.allclose(weights[:, : len(nodes)], expected, rtol=0, atol=1e-14)
    assert not weights[:, len(nodes) :].any()
    # The plain stream draws one node a leaf: the widest that the leaf completes.
    widest = [nodes.index(tree.completed_nodes(leaf)[-1]) for leaf in range(steps)]
    plain = streamed(steps, "plain")
    assert np.array_equal(plain[:, :steps], decoder(steps, "plain")[:, widest])
    assert not plain[:, steps:].any()


def test_restart_keeps_the_noise_of_finished_trees():
    weights = streamed(6, "plain", restart_every=3)
    # Leaves 0, 1 (with its parent), 2; then the same again on top of prefix 3.
    one_tree = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]], float)
    expected = np.block([[one_tree, np.zeros((3, 3))], [np.tile(one_tree[-1], (3, 1)), one_tree]])
    assert np.array_equal(weights[:, :6], expected)


def test_completion_goes_on_from_the_root():
    weights = streamed(6, "plain", restart_every=3, completion=True)
    assert np.array_equal(weights[3, :5], [0, 0, 0, 1, 1])
    weights = streamed(4, "honaker", restart_every=3, completion=True)
    # Draws: leaves 0, 1, their parent, leaf 2, then the empty leaf, its parent, the root.
    root = decoder(4, "honaker")[3][[0, 1, 4, 2, 3, 5, 6]]
    assert np.allclose(weights[3, :8], [*root, 1.0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", ["plain", "honaker"])
@pytest.mark.parametrize("steps", [1, 2, 100, 127, 128, 1000])
def test_memory_is_logarithmic(estimator, steps):
    draw, made = numpy_draw(np.random.default_rng(0), 1), 0

    def counting(out):
        nonlocal made
        made += out is None
        return draw(out)

    noise = TreeNoise(counting, steps=steps, estimator=estimator)
    for _ in range(steps):
        noise.next()
        assert noise.buffers <= made
    assert made <= math.log2(steps) + 2


@pytest.mark.parametrize("estimator", ["plain", "honaker"])
def test_rounding_does_not_build_up(estimator):
    steps = 4096
    single = numpy_draw(np.random.default_rng(1), 50)
    generator = np.random.default_rng(1)

    def double(out):
        return generator.standard_normal(50, dtype=np.float32).astype(np.float64)

    small = TreeNoise(single, steps=steps, estimator=estimator)
    large = TreeNoise(double, steps=steps, estimator=estimator)
    worst = max(np.abs(small.next() - large.next()).max() for _ in range(steps))
    # A prefix is a sum of at most 12 nodes of size about one: a few ulps of float32, at any step.
    assert worst < 5e-6


def test_returned_noise_is_the_callers():
    kept, changed = (
        TreeNoise(numpy_draw(np.random.default_rng(2), 4), steps=40, estimator="honaker")
        for _ in range(2)
    )
    for _ in range(40):
        expected, noise = kept.next(), changed.next()
        assert np.array_equal(noise, expected)
        noise += 100.0


@pytest.mark.parametrize("estimator", ["plain", "honaker"])
def test_torch_gives_the_same_noise(estimator):
    torch = pytest.importorskip("torch")
    source = numpy_draw(np.random.default_rng(3), (2, 3))

    def draw(out):
        noise = torch.from_numpy(source(None))
        return noise if out is None else out.copy_(noise)

    noise = TreeNoise(draw, steps=21, estimator=estimator, restart_every=8)
    twin = TreeNoise(
        numpy_draw(np.random.default_rng(3), (2, 3)),
        steps=21,
        estimator=estimator,
        restart_every=8,
    )
    for _ in range(21):
        tensor = noise.next()
        assert isinstance(tensor, torch.Tensor)
        assert np.allclose(tensor.numpy(), twin.next(), rtol=1e-6, atol=1e-6)


def test_covariance_of_sampled_noise():
    """The one test with random noise: sampled covariances against the weights' own."""
    repeats = 20_000
    noise = TreeNoise(
        numpy_draw(np.random.default_rng(4), repeats, scale=2.0), steps=6, estimator="honaker"
    )
    sample = np.array([noise.next() for _ in range(6)], dtype=np.float64)
    weights = streamed(6, "honaker")
    expected = 4.0 * weights @ weights.T
    size = np.sqrt(np.diag(expected))
    error = (sample @ sample.T / repeats - expected) / np.outer(size, size)
    # Each entry has a standard error of at most sqrt(2 / repeats) = .01; six of them: p < 1e-7.
    assert np.abs(error).max() < 0.06


# --- resuming --------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["plain", "honaker"])
@pytest.mark.parametrize("completion", [False, True])
def test_resume_at_every_step(estimator, completion):
    options = {"estimator": estimator, "restart_every": 5, "completion": completion}
    expected = streamed(12, **options)
    for stop in range(13):
        draws = UnitDraws(expected.shape[1])
        first = TreeNoise(draws, steps=12, **options)
        before = [first.next() for _ in range(stop)]
        state = first.state_dict()
        drawn = draws.drawn
        for _ in range(min(2, 12 - stop)):
            first.next()  # what happens after the save must not reach into it
        draws.drawn = drawn
        second = TreeNoise(draws, steps=12, **options)
        second.load_state_dict(state)
        assert (second.step, second.remaining) == (stop, 12 - stop)
        after = [second.next() for _ in range(12 - stop)]
        assert np.array_equal(before + after, expected)


def test_state_of_another_plan_is_refused():
    draw = numpy_draw(np.random.default_rng(5), 2)
    noise = TreeNoise(draw, steps=8)
    for _ in range(3):
        noise.next()
    state = noise.state_dict()
    assert len(state["stack"]) == 2
    for options in (
        {"steps": 9},
        {"steps": 8, "estimator": "honaker"},
        {"steps": 8, "restart_every": 4},
    ):
        with pytest.raises(RecordingError, match="saved"):
            TreeNoise(draw, **options).load_state_dict(state)
    fresh = TreeNoise(draw, steps=8)
    with pytest.raises(RecordingError, match="shape"):
        fresh.load_state_dict({**state, "stack": state["stack"][:1]})
    with pytest.raises(RecordingError, match="shape"):
        fresh.load_state_dict({**state, "stack": [np.ones(2), np.ones(3)]})
    with pytest.raises(RecordingError, match="shape"):
        fresh.load_state_dict({**state, "step": 12})
    with pytest.raises(FileFormatError, match="schema 2"):
        fresh.load_state_dict({**state, "schema": 2})
    with pytest.raises(FileFormatError, match="lacks stack"):
        fresh.load_state_dict({name: value for name, value in state.items() if name != "stack"})
    for draw, message in ((lambda out: np.ones(3), "shape"), (lambda out: np.zeros(2), "zeros")):
        other = TreeNoise(draw, steps=8)
        other.load_state_dict(state)
        with pytest.raises(RecordingError, match=message):
            other.next()


# --- what must not pass ----------------------------------------------------------------------


def test_more_steps_than_planned():
    noise = TreeNoise(numpy_draw(np.random.default_rng(0), 1), steps=1)
    noise.next(0)
    with pytest.raises(RecordingError, match="accounted for 1 steps"):
        noise.next()


@pytest.mark.parametrize("leaf", [0, 2, -1])
def test_skipped_or_repeated_leaf(leaf):
    noise = TreeNoise(numpy_draw(np.random.default_rng(0), 1), steps=4)
    noise.next(0)
    with pytest.raises(RecordingError, match="leaf 1"):
        noise.next(leaf)
    noise.next(1)  # nothing was lost


def test_useless_draws_are_refused():
    same = np.ones(3)
    for draw, message in (
        (lambda out: np.zeros(3), "all zeros"),
        (lambda out: np.full(3, np.nan), "nan"),
        (lambda out: same, "still in use"),
    ):
        for estimator in ("plain", "honaker"):
            noise = TreeNoise(draw, steps=8, estimator=estimator)
            with pytest.raises(RecordingError, match=message):
                [noise.next() for _ in range(8)]


def test_draws_of_changing_shape_do_not_broadcast():
    shapes = iter([(3,), (1,)])
    generator = np.random.default_rng(0)
    noise = TreeNoise(lambda out: generator.normal(size=next(shapes)), steps=4, estimator="honaker")
    noise.next()
    with pytest.raises(RecordingError, match="shape"):
        noise.next()


def test_after_a_failed_draw_the_tree_is_closed():
    inner = numpy_draw(np.random.default_rng(0), 1)
    calls = itertools.count()

    def draw(out):
        if next(calls) == 3:
            raise MemoryError
        return inner(out)

    noise = TreeNoise(draw, steps=8)
    for _ in range(3):
        noise.next()
    with pytest.raises(MemoryError):
        noise.next()
    with pytest.raises(RecordingError, match="half way"):
        noise.next()
    with pytest.raises(RecordingError, match="half way"):
        noise.state_dict()


def test_empty_tensors_pass():
    noise = TreeNoise(numpy_draw(np.random.default_rng(0), 0), steps=2)
    assert noise.next().shape == (0,)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, None])
def test_noise_scale_is_positive(scale):
    with pytest.raises(InvalidArgumentError, match="scale"):
        numpy_draw(np.random.default_rng(0), 1, scale=scale)


def test_bad_arguments():
    draw = numpy_draw(np.random.default_rng(0), 1)
    with pytest.raises(UnsupportedError, match="future"):
        TreeNoise(draw, steps=4, estimator="full")
    for call, name in (
        (lambda: numpy_draw(np.random.default_rng(0), 1, dtype=np.float16), "dtype"),
        (lambda: TreeNoise(draw, steps=0), "steps"),
        (lambda: TreeNoise(draw, steps=4, estimator="best"), "estimator"),
        (lambda: TreeNoise(draw, steps=4, restart_every=0), "restart_every"),
        (lambda: TreeNoise(draw, steps=4, completion=True), "completion"),
        (lambda: tree.levels(2.0), "steps"),
        (lambda: tree.check_participation([4], steps=4), "leaf"),
        (lambda: tree.prefix_nodes(-1), "count"),
        (lambda: tree.node_sums(np.zeros(0)), "leaves"),
        (lambda: tree.prefixes([np.zeros(4), np.zeros(2)]), "nodes"),
        (lambda: tree.prefixes([]), "nodes"),
        (lambda: tree.sensitivity(4, participations=0), "participations"),
        (lambda: tree.sensitivity(4, min_separation=0), "min_separation"),
        (lambda: tree.sensitivity(True), "steps"),
        (lambda: TreePlan(steps=4).epsilon(noise_multiplier=0.0, delta=1e-5), "noise_multiplier"),
        (lambda: TreePlan(steps=4).epsilon(noise_multiplier=-1.0, delta=1e-5), "noise_multiplier"),
        (lambda: TreePlan(steps=4).epsilon(noise_multiplier=1.0, delta=0.0), "delta"),
        (lambda: TreePlan(steps=4).noise_multiplier(epsilon=0.0, delta=1e-5), "epsilon"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            call()


def test_participation_is_held_to_what_was_accounted():
    check = tree.check_participation
    check([], steps=4)
    check([3], steps=4, min_separation=100)
    check([7, 0, 3], steps=8, participations=3, min_separation=3)
    check(np.array([0, 4]), steps=8, participations=2, min_separation=4)
    with pytest.raises(RecordingError, match="entered 2 leaves where 1"):
        check([0, 4], steps=8)
    with pytest.raises(RecordingError, match="2 apart"):
        check([6, 0, 4], steps=8, participations=3, min_separation=3)
    with pytest.raises(RecordingError, match="0 apart"):
        check([3, 3], steps=8, participations=2)
    with pytest.raises(InvalidArgumentError, match="leaf"):
        check([8], steps=8)


# --- privacy ---------------------------------------------------------------------------------


def squared_by_hand(entered, steps, restart_every=None, completion=False):
    """Squared node counts of one way to take part, node by node."""
    period = restart_every or steps
    total = 0
    for first in range(0, steps, period):
        size = min(period, steps - first)
        local = [leaf - first for leaf in entered if first <= leaf < first + size]
        if completion and first + size < steps:
            size = 1 << (size - 1).bit_length()
        total += sum(
            sum(leaf in leaves_of(node) for leaf in local) ** 2 for node in complete_nodes(size)
        )
    return total


def brute_force(steps, participations, min_separation, **options):
    return max(
        squared_by_hand(entered, steps, **options)
        for count in range(1, min(participations, steps) + 1)
        for entered in itertools.combinations(range(steps), count)
        if all(b - a >= min_separation for a, b in itertools.pairwise(entered))
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 10, 11])
@pytest.mark.parametrize("separation", [1, 2, 3, 6])
def test_sensitivity_by_brute_force(steps, separation):
    for participations in (1, 2, 3, 11):
        options = {"participations": participations, "min_separation": separation}
        squared = tree.sensitivity(steps, **options) ** 2
        assert squared == pytest.approx(brute_force(steps, **options), abs=1e-9)


@given(
    steps=st.integers(2, 11),
    participations=st.integers(1, 5),
    min_separation=st.integers(1, 5),
    restart_every=st.integers(1, 7),
    completion=st.booleans(),
)
def test_sensitivity_with_restarts_by_brute_force(steps, **options):
    squared = tree.sensitivity(steps, **options) ** 2
    assert squared == pytest.approx(brute_force(steps, **options), abs=1e-9)


def test_one_participation_is_the_deepest_leaf():
    for steps in range(1, 140):
        assert tree.sensitivity(steps) ** 2 == pytest.approx(tree.levels(steps), abs=1e-9)
    assert tree.sensitivity(100, restart_every=10) ** 2 == pytest.approx(4)
    assert tree.sensitivity(100, restart_every=10, completion=True) ** 2 == pytest.approx(5)
    # The last tree is never left, hence never completed.
    assert tree.sensitivity(10, restart_every=10, completion=True) ** 2 == pytest.approx(4)


def test_one_leaf_after_another_fills_every_node():
    expected = sum(len(leaves_of(node)) ** 2 for node in complete_nodes(37))
    assert tree.sensitivity(37, participations=37) ** 2 == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "participations", "separation", "restart_every", "completion"),
    [(300, 12, 25, None, False), (300, 5, 40, None, False), (330, 10, 30, 90, True)],
)
def test_sensitivity_covers_random_ways_to_take_part(
    steps, participations, separation, restart_every, completion
):
    options = {"restart_every": restart_every, "completion": completion}
    bound = tree.sensitivity(
        steps, participations=participations, min_separation=separation, **options
    )
    generator = np.random.default_rng(0)
    slots = steps - (participations - 1) * (separation - 1)
    ways = [np.arange(participations)]
    ways += [np.sort(generator.choice(slots, participations, replace=False)) for _ in range(60)]
    seen = [
        squared_by_hand(way + (separation - 1) * np.arange(participations), steps, **options)
        for way in ways
    ]
    assert max(seen) <= bound**2 + 1e-9
    assert max(seen) >= 0.6 * bound**2  # it is not idle either


def rdp_epsilon(event, delta=1e-5):
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    return accountant.compose(event).get_epsilon(delta)


def test_published_example_with_restarts():
    """100 epochs of 100 batches, restart after 20 epochs, completion, node noise 46.3."""
    from dp_accounting import GaussianDpEvent

    options = {
        "steps": 10_000,
        "participations": 100,
        "min_separation": 100,
        "restart_every": 2_000,
        "completion": True,
    }
    squared = tree.sensitivity(**options) ** 2
    assert squared == pytest.approx(4129)
    effective = 46.3 / math.sqrt(squared)
    assert effective == pytest.approx(0.7205, abs=1e-4)
    # Renyi accounting reports 6.92; the exact conversion of the same Gaussian is lower.
    renyi = rdp_epsilon(GaussianDpEvent(effective))
    exact = TreePlan(**options).epsilon(noise_multiplier=46.3, delta=1e-5)
    assert renyi == pytest.approx(6.92, abs=5e-3)
    assert 0.9 * renyi < exact < renyi


@pytest.mark.parametrize("steps", [1, 7, 8, 100, 128, 1000])
@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
def test_epsilon_against_dp_accounting(steps, noise):
    from dp_accounting import SingleEpochTreeAggregationDpEvent

    ours = TreePlan(steps=steps).epsilon(noise_multiplier=noise, delta=1e-5)
    theirs = rdp_epsilon(SingleEpochTreeAggregationDpEvent(noise, steps))
    assert 0.85 * theirs < ours <= theirs


def test_epsilon_with_restarts_against_dp_accounting():
    from dp_accounting import SelfComposedDpEvent, SingleEpochTreeAggregationDpEvent

    once = TreePlan(steps=150, restart_every=60).epsilon(noise_multiplier=5.0, delta=1e-5)
    assert once <= rdp_epsilon(SingleEpochTreeAggregationDpEvent(5.0, [60, 60, 30]))
    # Once in each of three trees of 64: separation 64 forbids twice in one tree.
    thrice = TreePlan(steps=192, restart_every=64, participations=3, min_separation=64).epsilon(
        noise_multiplier=5.0, delta=1e-5
    )
    composed = SelfComposedDpEvent(SingleEpochTreeAggregationDpEvent(5.0, 64), 3)
    assert 0.85 * rdp_epsilon(composed) < thrice <= rdp_epsilon(composed)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_noise_multiplier_and_epsilon_are_inverse(epsilon):
    plan = TreePlan(steps=128, participations=4, min_separation=10)
    noise = plan.noise_multiplier(epsilon=epsilon, delta=1e-6)
    assert plan.epsilon(noise_multiplier=noise, delta=1e-6) == pytest.approx(epsilon, rel=1e-9)
