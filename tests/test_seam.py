"""The seam: the same canaries in trees of numpy, torch and JAX arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import askgauss as ag
from askgauss.canaries import PlacedCanaries
from askgauss.exceptions import InvalidArgumentError
from askgauss.recording.injection import Seam, leaves


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Layer:
    weight: Any
    bias: Any


def dirac(sizes: tuple[int, ...]) -> PlacedCanaries:
    return ag.DiracCanaries(present=20, absent=30, tensors=sizes, seed=3)


def block(sizes: tuple[int, ...]) -> PlacedCanaries:
    return ag.BlockCanaries(present=10, absent=12, tensors=sizes, block=3, seed=3)


FRAMEWORKS = {
    "numpy": lambda array: np.asarray(array, np.float32),
    "torch": lambda array: torch.tensor(array, dtype=torch.float32),
    "jax": lambda array: jnp.asarray(array, jnp.float32),
}


def tree(convert: Any) -> Any:
    rng = np.random.default_rng(0)
    return {
        "b": [convert(rng.normal(size=(6, 5))), convert(rng.normal(size=40))],
        "a": Pair(convert(rng.normal(size=(3, 4, 5))), None),
        "c": Layer(weight=convert(rng.normal(size=(10, 8))), bias=(convert(rng.normal(size=7)),)),
    }


def flat(nested: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for _, leaf in leaves(nested)])


@pytest.mark.parametrize("make", [dirac, block])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_planting_and_reading_are_those_of_the_flat_vector(framework, make):
    given = tree(FRAMEWORKS[framework])
    before = flat(given)
    seam = Seam(given, make)
    mask = np.random.default_rng(1).random(seam.canaries.size) < 0.7
    planted = seam.plant(given, mask, clip_norm=1.5)
    expected = before.copy()
    chosen = np.flatnonzero(mask & seam.canaries.member)
    seam.canaries.plant(expected, chosen, clip_norm=1.5)
    np.testing.assert_allclose(flat(planted), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(flat(given), before)
    values = np.asarray(seam.read(planted))
    np.testing.assert_allclose(
        seam.along(values), seam.canaries.project(expected), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(seam.watched(values), expected[seam.canaries.watch], rtol=1e-6)


def test_a_tree_keeps_its_structure():
    given = tree(FRAMEWORKS["numpy"])
    seam = Seam(given, dirac)
    planted = seam.plant(given, np.ones(50, dtype=bool))
    assert list(planted) == ["b", "a", "c"]
    assert isinstance(planted["a"], Pair)
    assert planted["a"].second is None
    assert isinstance(planted["c"], Layer)
    assert isinstance(planted["c"].bias, tuple)
    assert seam.names == ("a.first", "b.0", "b.1", "c.weight", "c.bias.0")


def test_leaves_come_in_the_order_of_jax():
    given = {"b": jnp.zeros(3), "a": (jnp.zeros(2), [jnp.zeros(1)])}
    ours = [leaf.size for _, leaf in leaves(given)]
    assert ours == [leaf.size for leaf in jax.tree.leaves(given)]


def test_inside_jit_with_a_traced_mask():
    given = {"weight": jnp.zeros((20, 10)), "bias": jnp.zeros(30)}
    seam = Seam(given, dirac)

    @jax.jit
    def step(gradient, mask):
        return seam.read(seam.plant(gradient, mask, clip_norm=2.0))

    mask = jnp.asarray(seam.canaries.member)
    values = np.asarray(step(given, mask))
    np.testing.assert_allclose(seam.along(values), 2.0 * seam.canaries.member)


def test_half_precision_is_read_as_it_is():
    given = {"weight": torch.zeros(200, dtype=torch.bfloat16)}
    seam = Seam(given, dirac)
    planted = seam.plant(given, seam.canaries.member)
    assert planted["weight"].dtype == torch.bfloat16
    assert seam.read(planted).dtype == torch.float32


class TestBadInput:
    def test_no_arrays(self):
        with pytest.raises(InvalidArgumentError, match="without any"):
            Seam({}, dirac)

    def test_integers(self):
        with pytest.raises(InvalidArgumentError, match="int64 in count"):
            Seam({"count": np.zeros(100, np.int64)}, dirac)

    def test_what_is_no_array(self):
        with pytest.raises(InvalidArgumentError, match=r"str at a\.1"):
            Seam({"a": [np.zeros(3), "weights"]}, dirac)

    def test_a_tree_that_changes_its_shape(self):
        seam = Seam({"a": np.zeros(100), "b": np.zeros(50)}, dirac)
        with pytest.raises(InvalidArgumentError, match=r"b was \(50,\).*\(51,\)"):
            seam.read({"a": np.zeros(100), "b": np.zeros(51)})
        with pytest.raises(InvalidArgumentError, match="b was "):
            seam.read({"a": np.zeros(100)})

    def test_more_canaries_than_parameters(self):
        with pytest.raises(InvalidArgumentError, match="at most 10"):
            Seam(np.zeros(10), dirac)

    def test_canaries_of_another_model(self):
        with pytest.raises(InvalidArgumentError, match="sizes"):
            Seam(np.zeros(100), lambda sizes: dirac((101,)))


def test_nobody_present_plants_nothing():
    given = tree(FRAMEWORKS["numpy"])
    seam = Seam(given, lambda sizes: ag.DiracCanaries(present=0, absent=9, tensors=sizes, seed=0))
    planted = seam.plant(given, np.ones(9, dtype=bool))
    assert np.array_equal(flat(planted), flat(given))
    assert seam.along(seam.read(planted)).shape == (9,)


def test_leaves_that_come_one_at_a_time_are_read_as_together():
    generator = torch.Generator().manual_seed(0)
    tree = [torch.randn(shape, generator=generator) for shape in ((4, 5), (3,), (30,))]
    # Over one flat vector, and so few that some leaf holds none.
    seam = Seam(tree, lambda _: ag.DiracCanaries(present=2, absent=2, dimension=53, seed=1))
    parts = [seam.read_leaf(index, leaf) for index, leaf in enumerate(tree)]
    assert torch.equal(seam.joined(parts), seam.read(tree))
    flat = torch.cat([leaf.reshape(-1) for leaf in tree])
    at_canaries = flat[seam.canaries.coordinates.tolist()]
    assert torch.equal(seam.along(seam.read(tree)), at_canaries)
