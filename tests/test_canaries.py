from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss import BlockCanaries, DiracCanaries
from askgauss.canaries import Stream, fresh_seed, random_stream
from askgauss.exceptions import InvalidArgumentError

KINDS = [DiracCanaries, BlockCanaries]
sizes_of_tensors = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@st.composite
def placed(draw, kind):
    """Canaries of a kind that fit into some tensors, often filling them to the last coordinate."""
    tensors = draw(sizes_of_tensors.filter(lambda sizes: sum(sizes) >= 8))
    block = draw(st.integers(2, sum(tensors) // 4)) if kind is BlockCanaries else 1
    count = draw(st.integers(4, sum(tensors) // block))
    extra = {"block": block} if kind is BlockCanaries else {}
    return kind(count=count, tensors=tensors, seed=draw(st.integers(0, 2**70)), **extra)


either = st.sampled_from(KINDS).flatmap(placed)


# --- places ------------------------------------------------------------------------------------


@given(canaries=either)
def test_no_coordinate_is_used_twice(canaries):
    everything = canaries.coordinates.ravel()
    assert everything.size == np.unique(everything).size
    assert everything.min() >= 0
    assert everything.max() < canaries.total_dimension


@pytest.mark.parametrize(("dimension", "count"), [(40, 37), (40, 8), (10**12, 1000)])
def test_every_coordinate_is_as_likely_and_in_random_order(dimension, count):
    """The place of the first and of the last canary, over 2,000 seeds, by a chi-squared test.

    A correct implementation fails with probability 2e-6 a case.
    """
    from scipy import stats

    places = np.array(
        [
            DiracCanaries(count=count, dimension=dimension, seed=seed).coordinates[[0, -1]]
            for seed in range(2000)
        ]
    )
    for column in places.T:
        assert stats.chisquare(np.bincount(column * 8 // dimension, minlength=8)).pvalue > 1e-6


def test_a_huge_model_needs_no_array_of_its_size():
    canaries = BlockCanaries(count=50, tensors=[10**12, 10**13, 10**12], block=3, seed=0)
    assert canaries.watch.size == 24
    np.testing.assert_array_equal(
        canaries.tensor_of(canaries.coordinates), np.tile([0, 1, 2], (50, 1))
    )


@given(canaries=placed(BlockCanaries))
def test_blocks_span_as_many_tensors_as_there_is_room_for(canaries):
    """Shares are even, so a block meets a tensor twice only once it has met all with room left."""
    tensors = canaries.tensor_of(canaries.coordinates)
    shares = np.bincount(tensors.ravel(), minlength=len(canaries.tensor_sizes))
    for share, size in zip(shares, canaries.tensor_sizes, strict=True):
        assert share == size or share >= shares.max() - 1
    # Oracle for what the deal promises: a pile of at most one card a canary is never met twice.
    for tensor in np.flatnonzero(shares <= canaries.size):
        assert (tensors == tensor).sum(axis=1).max() <= 1
    for tensor in np.flatnonzero(shares >= canaries.size):
        assert (tensors == tensor).sum(axis=1).min() >= 1


@given(canaries=either, data=st.data())
def test_projecting_undoes_planting(canaries, data):
    chosen = data.draw(st.lists(st.integers(0, canaries.size - 1), unique=True))
    planted = np.array(chosen, dtype=np.int64)
    vector = np.zeros(canaries.total_dimension)
    canaries.plant(vector, planted, clip_norm=2.5)
    expected = np.zeros(canaries.size)
    expected[planted] = 2.5
    np.testing.assert_allclose(canaries.project(vector), expected, rtol=1e-14, atol=1e-15)
    # Disjoint supports: what was planted has the norm of so many orthogonal records.
    assert np.linalg.norm(vector) == pytest.approx(2.5 * np.sqrt(planted.size), rel=1e-12)


@given(canaries=placed(BlockCanaries))
def test_a_block_is_a_direction_of_norm_one(canaries):
    directions = np.zeros((canaries.size, canaries.total_dimension))
    for row, place, sign in zip(directions, canaries.coordinates, canaries.signs, strict=True):
        row[place] = sign / np.sqrt(canaries.block)
    np.testing.assert_allclose(directions @ directions.T, np.eye(canaries.size), atol=1e-14)
    vector = np.random.default_rng(0).normal(size=canaries.total_dimension)
    np.testing.assert_allclose(canaries.project(vector), directions @ vector, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(99,), (101,), (10, 10), ()])
def test_a_vector_of_another_length_is_refused(kind, shape):
    canaries = kind(count=4, dimension=100, seed=0)
    with pytest.raises(InvalidArgumentError, match=r"vector.*100 entries.*Flatten"):
        canaries.project(np.zeros(shape))
    with pytest.raises(InvalidArgumentError, match=r"vector.*100 entries.*Flatten"):
        canaries.plant(np.zeros(shape), np.array([0]), clip_norm=1.0)


def test_single_precision_stays_single():
    canaries = DiracCanaries(count=4, dimension=10, seed=0)
    vector = np.zeros(10, dtype=np.float32)
    canaries.plant(vector, np.array([1]), clip_norm=1.0)
    assert canaries.project(vector).dtype == np.float32


@given(canaries=either)
def test_tensor_of_is_where_the_coordinate_lies(canaries):
    owner = np.repeat(np.arange(len(canaries.tensor_sizes)), canaries.tensor_sizes)
    np.testing.assert_array_equal(
        canaries.tensor_of(canaries.coordinates), owner[canaries.coordinates]
    )
    np.testing.assert_array_equal(canaries.watch_tensor, owner[canaries.watch])
    expected = owner[canaries.coordinates] if isinstance(canaries, DiracCanaries) else 0
    np.testing.assert_array_equal(canaries.tensor, np.broadcast_to(expected, canaries.size))


# --- membership --------------------------------------------------------------------------------


@given(st.integers(0, 30), st.integers(2, 30), st.integers(0, 2**64))
def test_given_group_sizes_are_kept(present, absent, seed):
    canaries = DiracCanaries(present=present, absent=absent, dimension=100, seed=seed)
    assert canaries.member.sum() == present
    assert canaries.member.size == canaries.size == present + absent
    assert not canaries.fair_coins


def test_fair_coins_are_fair_and_independent_of_places():
    """Four z-tests on 40,000 canaries at 5 standard deviations: probability 2.3e-6 to fail."""
    canaries = DiracCanaries(count=40_000, tensors=[30_000, 70_000], seed=11)
    assert canaries.fair_coins
    member = canaries.member - 0.5
    bound = 5 * np.sqrt(canaries.size)
    assert abs(2 * member.sum()) < bound
    assert abs(4 * (member[1:] * member[:-1]).sum()) < bound
    place = canaries.coordinates / canaries.total_dimension - 0.5
    assert abs(2 * np.sqrt(12) * (member * place).sum()) < bound
    assert abs(2 * (member * np.where(canaries.coordinates % 2, 1, -1)).sum()) < bound


def test_every_set_of_present_canaries_is_as_likely():
    """2 of 4 present: 6 sets over 3,000 seeds, chi-squared; fails with probability 1e-6."""
    from scipy import stats

    sets = [
        int(np.packbits(DiracCanaries(present=2, absent=2, dimension=9, seed=seed).member)[0])
        for seed in range(3000)
    ]
    counts = np.unique(sets, return_counts=True)[1]
    assert counts.size == 6
    assert stats.chisquare(counts).pvalue > 1e-6


def test_places_do_not_depend_on_membership_nor_membership_on_places():
    ours = DiracCanaries(present=30, absent=20, dimension=1000, seed=5)
    np.testing.assert_array_equal(
        ours.coordinates, DiracCanaries(count=50, dimension=1000, seed=5).coordinates
    )
    np.testing.assert_array_equal(
        ours.coordinates, DiracCanaries(present=0, absent=50, dimension=1000, seed=5).coordinates
    )
    np.testing.assert_array_equal(
        ours.member, BlockCanaries(present=30, absent=20, tensors=[700, 800], seed=5).member
    )


def test_streams_of_one_seed_are_different_and_reproducible():
    names = [name for name in vars(Stream) if name.isupper()]
    draws = {random_stream(7, getattr(Stream, name)).integers(2**63) for name in names}
    assert len(draws) == len(names)
    assert random_stream(7, Stream.NOISE).random() == random_stream(7, Stream.NOISE).random()
    assert random_stream(8, Stream.NOISE).random() != random_stream(7, Stream.NOISE).random()


def test_a_seed_is_drawn_when_none_is_given_and_can_be_given_back():
    ours, other = (DiracCanaries(count=50, dimension=1000) for _ in range(2))
    assert ours.root_seed != other.root_seed
    assert ours != other
    again = DiracCanaries(count=50, dimension=1000, seed=ours.root_seed)
    np.testing.assert_array_equal(again.coordinates, ours.coordinates)
    np.testing.assert_array_equal(again.member, ours.member)
    assert 0 <= fresh_seed() < 2**63


def test_canaries_are_frozen():
    sizes = [30, 30]
    canaries = BlockCanaries(count=4, tensors=sizes, block=2, seed=0)
    sizes[0] = 2
    assert canaries.total_dimension == 60
    assert hash(canaries) == hash(BlockCanaries(count=4, tensors=(30, 30), block=2, seed=0))
    for name in ("coordinates", "signs", "member", "watch"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(canaries, name)[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        canaries.count = 5


# --- watched coordinates -----------------------------------------------------------------------


@given(canaries=either)
def test_watched_coordinates(canaries):
    """Against a list of every free coordinate of every tensor."""
    planted = set(canaries.coordinates.ravel().tolist())
    watched: dict[int, list[list[int]]] = {}
    everywhere: dict[int, set[int]] = {}
    offset = 0
    for index, size in enumerate(canaries.tensor_sizes):
        free = {place for place in range(size) if place + offset not in planted}
        ours = (canaries.watch[canaries.watch_tensor == index] - offset).tolist()
        assert len(ours) == len(set(ours)) == min(8, len(free))
        assert set(ours) <= free
        watched.setdefault(size, []).append(ours)
        everywhere[size] = everywhere.get(size, free) & free
        offset += size
    for size, places in watched.items():
        shared = min(8, len(everywhere[size]))
        # What is free in all tensors of a size is watched in all of them, first, in one order.
        assert all(ours[:shared] == places[0][:shared] for ours in places)
        assert shared == 8 or set(places[0][:shared]) == everywhere[size]
    assert (np.diff(canaries.watch_tensor) >= 0).all()


def test_where_none_are_free_everywhere_most_tensors_still_share():
    """Three tensors of 20, the first all planted but one place: the other two still agree."""
    canaries = DiracCanaries(count=19, tensors=[20, 20, 20], seed=0)
    object.__setattr__(canaries, "coordinates", np.arange(19))
    first, second, third = np.split(canaries.watch, [1, 9])
    assert first.tolist() == [19]
    assert second[0] == 39
    np.testing.assert_array_equal(second + 20, third)


def test_watched_positions_are_drawn_from_all_free_ones():
    """Positions 0 to 99 over 400 seeds, chi-squared on ten bins; fails with probability 1e-6."""
    from scipy import stats

    watch = [DiracCanaries(count=4, dimension=100, seed=seed).watch for seed in range(400)]
    assert stats.chisquare(np.bincount(np.concatenate(watch) // 10)).pvalue > 1e-6


# --- fingerprints ------------------------------------------------------------------------------


def test_fingerprints_tell_canaries_apart():
    plain = {"count": 20, "dimension": 400, "seed": 1}
    variants = [
        DiracCanaries(**plain),
        DiracCanaries(**plain | {"seed": 2}),
        DiracCanaries(**plain | {"count": 21}),
        DiracCanaries(**plain | {"dimension": 401}),
        DiracCanaries(**plain | {"dimension": None, "tensors": (200, 200)}),
        DiracCanaries(present=10, absent=10, dimension=400, seed=1),
        BlockCanaries(**plain, block=4),
        BlockCanaries(**plain, block=5),
    ]
    assert len({canaries.fingerprint() for canaries in variants}) == len(variants)
    assert variants[0].fingerprint() == DiracCanaries(**plain).fingerprint()
    assert len(variants[0].fingerprint()) == 32


def test_a_fingerprint_never_changes():
    """Checkpoints hold it: a new one would orphan them all. Places are set, not drawn, here."""
    canaries = DiracCanaries(count=8, tensors=(30, 12), seed=3)
    object.__setattr__(canaries, "coordinates", np.arange(8))
    object.__setattr__(canaries, "member", np.arange(8) < 3)
    assert canaries.fingerprint() == "1c40dab895e03e201a8b60358611f5b8"


# --- bad input ---------------------------------------------------------------------------------

GOOD = {"count": 10, "dimension": 100, "seed": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": None}, "either count, or both present and absent"),
        ({"present": 3}, "either count, or both present and absent"),
        ({"absent": 3}, "either count, or both present and absent"),
        ({"count": None, "present": 3}, "absent=None"),
        ({"count": None, "absent": 3}, "present=None"),
        ({"count": 3}, r"count .*got 3"),
        ({"count": 10.0}, r"count .*got 10.0"),
        ({"count": True}, "count .* got True"),
        ({"count": "10"}, "count .* got '10'"),
        ({"count": None, "present": -1, "absent": 3}, "present .* >= 0, got -1"),
        ({"count": None, "present": 3, "absent": 1}, "absent .* >= 2, got 1"),
        ({"dimension": None}, "exactly one of dimension and tensors, got neither"),
        ({"tensors": (50, 50)}, "exactly one of dimension and tensors, got both"),
        ({"dimension": 0}, "dimension .* >= 1, got 0"),
        ({"dimension": 99.5}, "dimension .* got 99.5"),
        ({"dimension": None, "tensors": (50, 0)}, "tensors .* >= 1, got 0"),
        ({"dimension": None, "tensors": (50, 1.5)}, "tensors .* got 1.5"),
        ({"dimension": None, "tensors": 100}, r"tensors .*got 100"),
        ({"dimension": None, "tensors": "99"}, r"tensors .*got '99'"),
        ({"dimension": None, "tensors": ()}, "at most 0 canaries.*ake fewer"),
        ({"dimension": 9}, "at most .* canaries.*ake fewer"),
        ({"seed": -1}, "seed .* >= 0, got -1"),
        ({"seed": 1.0}, "seed .* got 1.0"),
    ],
)
def test_bad_arguments_are_named(kind, change, message):
    with pytest.raises(InvalidArgumentError, match=message):
        kind(**GOOD | change)


@pytest.mark.parametrize("block", [1, 0, 2.0, None])
def test_bad_blocks_are_named(block):
    with pytest.raises(InvalidArgumentError, match=r"block .*>= 2"):
        BlockCanaries(**GOOD, block=block)


def test_blocks_that_do_not_fit_are_refused():
    BlockCanaries(count=10, dimension=160, block=16, seed=0)
    with pytest.raises(InvalidArgumentError, match=r"9 .*16 .*159"):
        BlockCanaries(count=10, dimension=159, block=16, seed=0)
