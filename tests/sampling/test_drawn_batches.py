"""Whether drawn batches are told from those of any other scheme, and only from those."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    SchemeSums,
    Shuffled,
    TruncatedPoisson,
)
from askgauss.sampling import (
    batch_testing as room,
)
from tests.sampling.schemes import every_scheme, shown, smallest

RECORDS, STEPS = 500, 200


def drawn(scheme, seed=0, records=RECORDS, steps=STEPS):
    return list(scheme.draw(np.random.default_rng([seed, 3]), records, steps))


def named(tests):
    return {test.name: test.p_value for test in tests}


@pytest.mark.parametrize("true", every_scheme(RECORDS), ids=str)
def test_every_scheme_is_told_from_every_other(true):
    batches = drawn(true)
    for declared in every_scheme(RECORDS):
        p_value = smallest(declared.test(batches, records=RECORDS))
        if declared == true:
            assert p_value > 1e-3
        else:
            assert p_value < 1e-3, declared


@pytest.mark.parametrize("true", every_scheme(1000), ids=str)
def test_sixty_canaries_tell_most_of_it(true):
    """The canaries' own inclusions: sizes of whole batches are not among what they show."""
    batches = shown(drawn(true, records=1000, steps=400), 1000)[:, :60]
    alike = {
        Poisson: (FixedSize, TruncatedPoisson),
        FixedSize: (Poisson, TruncatedPoisson),
        TruncatedPoisson: (Poisson, FixedSize),
        Shuffled: (BallsInBins,),
        BallsInBins: (Shuffled,),
    }
    for declared in every_scheme(1000):
        p_value = smallest(declared.test(batches, records=1000))
        if declared == true:
            assert p_value > 1e-3
        elif not isinstance(declared, alike.get(type(true), ())):
            assert p_value < 1e-3, declared


SMALL = [
    Poisson(rate=0.2),
    FixedSize(batch=8, records=40),
    Shuffled(batches=5),
    BallsInBins(bins=5),
    BallsInBins(bins=5, redrawn=False),
    CyclicPoisson(rate=0.4, cycle=2),
    TruncatedPoisson(rate=0.2, cap=9, records=40),
    MinSeparation(separation=3, rate=0.3),
    MinSeparation(separation=3, rate=0.3, warm_start=False),
]


@pytest.mark.parametrize("part", [40, 15], ids=["all records", "some of them"])
@pytest.mark.parametrize("scheme", SMALL, ids=repr)
def test_p_values_are_at_most_nominal(scheme, part):
    runs, low, names = 120, {}, set()
    for run in range(runs):
        batches = shown(drawn(scheme, run, 40, 23), 40)[:, :part]
        for name, p_value in named(scheme.test(batches, records=40)).items():
            names.add(name)
            for level in (0.01, 0.1):
                low[name, level] = low.get((name, level), 0) + (p_value <= level)
    assert "scheme" in names
    for (name, level), number in low.items():
        assert number <= stats.binom.isf(1e-5, runs, level), (name, level)


def test_a_rate_that_is_off_by_a_tenth():
    tests = named(Poisson(rate=0.05).test(drawn(Poisson(rate=0.055)), records=RECORDS))
    assert tests["mean batch"] < 1e-3


def test_records_drawn_more_often_than_others():
    """A weighted sampler: half of the records at .07, half at .03."""
    rng = np.random.default_rng(4)
    rates = rng.permutation(np.where(np.arange(RECORDS) % 2, 0.03, 0.07))
    batches = [np.flatnonzero(rng.random(RECORDS) < rates) for _ in range(STEPS)]
    tests = Poisson(rate=0.05).test(batches, records=RECORDS)
    assert named(tests)["counts"] < 1e-6
    assert smallest(tests) < 1e-3


def test_neighbours_drawn_together():
    rng = np.random.default_rng(5)
    batches = [np.flatnonzero(np.repeat(rng.random(RECORDS // 2) < 0.05, 2)) for _ in range(STEPS)]
    assert named(Poisson(rate=0.05).test(batches, records=RECORDS))["pairs"] < 1e-50


def test_a_loader_that_does_not_shuffle():
    order = np.arange(RECORDS)
    batches = [np.array_split(order, 20)[step % 20] for step in range(40)]
    tests = named(Shuffled(batches=20).test(batches, records=RECORDS))
    assert tests["scheme"] == 1.0
    assert tests["order"] < 1e-20
    assert tests["places"] < 1e-20


def test_a_shuffle_buffer_that_is_too_small():
    """A tenth of the data is held, and what leaves is random among those."""
    rng, batches = np.random.default_rng(6), []
    for _ in range(5):
        waiting, out = list(range(50)), []
        for record in range(50, RECORDS + 50):
            place = rng.integers(len(waiting))
            out.append(waiting.pop(place))
            if record < RECORDS:
                waiting.append(record)
        batches += np.array_split(np.array(out), 20)
    assert named(Shuffled(batches=20).test(batches, records=RECORDS))["order"] < 1e-6


def test_a_rate_that_drifts():
    rng = np.random.default_rng(7)
    rates = np.linspace(0.04, 0.06, STEPS)
    batches = [np.flatnonzero(rng.random(RECORDS) < rate) for rate in rates]
    assert named(Poisson(rate=0.05).test(batches, records=RECORDS))["rate over time"] < 1e-3


def test_a_record_twice_in_a_batch():
    (rule, *_) = FixedSize(batch=3, records=9).test([[1, 2, 3], [4, 4, 5]], records=9)
    assert rule.p_value == 0.0
    assert "drawn twice in one batch, first in step 2" in rule.summary


@pytest.mark.parametrize("sizes", [(25, 25, 25, 25), (26, 26, 26, 22), (25, 25, 25, 20)])
def test_batches_that_loaders_give(sizes):
    """Even ones, a smaller last one, and some records left over."""
    rng, batches = np.random.default_rng(8), []
    for _ in range(3):
        order = rng.permutation(100)
        batches += np.split(order, np.cumsum(sizes))[:4]
    assert Shuffled(batches=4).test(batches, records=100)[0].p_value == 1.0


def test_some_of_many_records_are_followed(monkeypatch):
    monkeypatch.setattr(room, "_MOST_SEEN", 100)
    for true in every_scheme(RECORDS)[:-1]:
        sums = SchemeSums(true, records=RECORDS)
        assert sums.seen == 100
        for batch in drawn(true):
            sums.add(batch)
        assert smallest(sums.tests()) > 1e-3
    sums = SchemeSums(Poisson(rate=0.05), records=RECORDS)
    for batch in drawn(CyclicPoisson(rate=0.2, cycle=4)):
        sums.add(batch)
    assert smallest(sums.tests()) < 1e-3


@pytest.mark.parametrize("scheme", every_scheme(RECORDS), ids=str)
def test_sums_go_on_from_a_checkpoint(scheme):
    batches = drawn(scheme, steps=60)
    whole, sums = (SchemeSums(scheme, records=RECORDS) for _ in range(2))
    for batch in batches:
        whole.add(batch)
    for batch in batches[:25]:
        sums.add(batch)
    sums = SchemeSums.from_arrays(scheme, sums.arrays(), records=RECORDS)
    for batch in batches[25:]:
        sums.add(batch)
    assert sums.tests() == whole.tests()


def test_damaged_checkpoints_are_refused():
    sums = SchemeSums(Poisson(rate=0.05), records=RECORDS)
    sums.add([1, 2])
    for name in sums.arrays():
        content = sums.arrays()
        del content[name]
        with pytest.raises(FileFormatError, match="drawn batches"):
            SchemeSums.from_arrays(sums.scheme, content, records=RECORDS)


def _changed(array, place, value):
    copy = array.copy()
    copy.flat[place] = value
    return copy


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sizes", lambda array: np.zeros(7)),
        ("sizes", lambda array: array.astype(np.bool_)),
        ("drawn", lambda array: _changed(array, 0, np.iinfo(np.int64).max)),
        ("pools", lambda array: _changed(array, 0, -5)),
        ("probabilities", lambda array: _changed(array, 0, 1e300)),
        ("count", lambda array: array[:1]),
        ("count", lambda array: array.astype(np.float32)),
        ("last", lambda array: _changed(array, 3, 7)),
        ("bets_lags", lambda array: array[:, :3]),
        # Refused before memory is taken for so many records.
        ("head", lambda array: _changed(array, 0, 7 * 10**15)),
        ("head", lambda array: array[:3]),
        ("head", lambda array: _changed(array, 2, 10**12)),
    ],
)
def test_checkpoints_with_odd_numbers_are_refused(name, change):
    sums = SchemeSums(Poisson(rate=0.05), records=RECORDS)
    sums.add([1, 2])
    content = sums.arrays()
    content[name] = change(content[name])
    with pytest.raises(FileFormatError, match="drawn batches"):
        SchemeSums.from_arrays(sums.scheme, content, records=RECORDS)


def test_batches_and_a_matrix_say_the_same():
    batches = drawn(Poisson(rate=0.05))
    scheme = Poisson(rate=0.05)
    assert scheme.test(batches, records=RECORDS) == scheme.test(
        shown(batches, RECORDS), records=RECORDS
    )


@pytest.mark.parametrize(
    ("batches", "records", "match"),
    [
        ([[1, -1]], 10, r"batch in \[0, 9\], got -1"),
        ([[1, 10]], 10, r"batch in \[0, 9\], got 10"),
        ([[0.5]], 10, "whole numbers"),
        ([[[1]]], 10, "whole numbers"),
        ([[1]], None, "records"),
        ([[1]], 0, "records"),
        ([], 10, "at least 1 step"),
        (np.zeros((3, 4), dtype=bool), 3, "records"),
        (np.zeros(3, dtype=bool), 3, "two-dimensional"),
    ],
)
def test_bad_batches_are_named(batches, records, match):
    with pytest.raises(InvalidArgumentError, match=match):
        Poisson(rate=0.5).test(batches, records=records)


def test_inclusions_and_indices_do_not_mix():
    sums = SchemeSums(EveryStep(), records=None, seen=3)
    with pytest.raises(InvalidArgumentError, match="add_inclusions"):
        sums.add([1])
    with pytest.raises(InvalidArgumentError, match="shape"):
        sums.add_inclusions(np.ones(4, dtype=bool))
    sums.add_inclusions(np.ones(3, dtype=bool))
    assert sums.tests()[0].p_value == 1.0


def test_empty_batches_are_batches():
    tests = Poisson(rate=0.01).test([[], [3], []], records=20)
    assert smallest(tests) > 0.01
