"""Noise sampled by content: what is used again is found, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.recording.noise_sample import NoiseSample, ReuseFacts

SIZE, STEPS = 4096, 64


def looked_at(rows, *, sample=None, start=0, background=3.0):
    """Feed rows as a run does: float32 noise, added to a sum and taken off again."""
    sample = NoiseSample([SIZE]) if sample is None else sample
    generator = np.random.default_rng(99)
    for step, row in enumerate(rows):
        clean = (background * generator.standard_normal(row.size)).astype(np.float32)
        noisy = (clean + row.astype(np.float32)).astype(np.float32)
        sample.add_row((noisy - clean).astype(np.float64), start + step)
    return sample


def fresh(seed=0, steps=STEPS):
    return np.random.default_rng(seed).standard_normal((steps, SIZE)).astype(np.float32)


def every_second(change):
    rows = fresh()
    for step in range(1, STEPS, 2):
        rows[step] = change(rows[step - 1])
    return rows


def from_table(entries):
    generator = np.random.default_rng(5)
    return generator.standard_normal(entries)[generator.integers(0, entries, (STEPS, SIZE))]


@pytest.mark.parametrize(
    "change",
    [
        lambda last: last,
        lambda last: -last[::-1],
        lambda last: np.roll(last, 1),
        lambda last: np.concatenate([last[3000:], fresh(7, 1)[0][: SIZE - 1096]]),
    ],
    ids=["repeated", "reversed and negated", "rolled", "a part elsewhere"],
)
def test_noise_that_is_used_again_is_found(change):
    facts = looked_at(every_second(change)).facts()
    assert facts.in_runs
    assert facts.share == 1.0
    assert facts.again[0] == facts.first[0] + 1


def test_where_it_is_used_again():
    repeated = looked_at(every_second(lambda last: last)).facts()
    rolled = looked_at(every_second(lambda last: np.roll(last, 1))).facts()
    assert repeated.in_runs
    assert not repeated.elsewhere
    assert rolled.elsewhere
    assert rolled.again[2] == rolled.first[2] + 1


@pytest.mark.parametrize("entries", [1000, 2**14, 2**18])
def test_values_of_a_table_are_found(entries):
    assert looked_at(from_table(entries)).facts().by_value


def test_shuffled_noise_is_found():
    order = np.random.default_rng(8)
    assert looked_at(every_second(order.permutation)).facts().by_value


@pytest.mark.parametrize("seed", range(5))
def test_fresh_noise_is_not_called_used(seed):
    facts = looked_at(fresh(seed)).facts()
    assert facts.matches == 0
    assert not facts.by_value
    assert abs(facts.excess) < 5.0


def test_memory_is_bounded_and_what_is_kept_stays_comparable():
    sample = NoiseSample([2**18])
    rows = np.random.default_rng(1).standard_normal((40, 2**18)).astype(np.float32)
    looked_at(rows, sample=sample)
    before = sample.facts()
    assert before.kept < 2**17
    assert before.matches == 0
    assert abs(before.excess) < 5.0
    looked_at(rows[:1, ::-1], sample=sample, start=40)
    assert sample.facts().in_runs


@pytest.mark.parametrize("bits", [5, 8, 11, 12, 14, 15, 15.5, 16.3, 17, 19])
def test_noise_on_a_grid_is_no_noise_used_again(bits):
    grid = 2.0**-bits
    facts = looked_at(np.rint(fresh() / grid) * grid, background=1.0).facts()
    assert not facts.in_runs
    assert not facts.by_value


def test_short_formats_zeros_and_constant_noise_are_no_noise_used_again():
    short = fresh().view(np.uint32) & np.uint32(0xFFFF0000)
    half = fresh().astype(np.float16).astype(np.float32)
    gaps = np.where(np.random.default_rng(2).random((STEPS, SIZE)) < 0.5, 0.0, fresh())
    constant = np.repeat(fresh()[:, :1], SIZE, axis=1)
    for rows in (short.view(np.float32), half, gaps, constant, np.zeros((STEPS, SIZE))):
        facts = looked_at(rows).facts()
        assert not facts.in_runs
        assert not facts.by_value


@pytest.mark.parametrize("factor", [1e-6, 0.3, 1e5])
def test_the_stated_scale_need_not_be_the_true_one(factor):
    rows = factor * every_second(lambda last: np.roll(last, 1))
    assert looked_at(rows, background=0.0).facts().in_runs
    assert looked_at(factor * fresh(), background=0.0).facts().matches == 0


def test_a_sample_can_be_resumed():
    rows = every_second(lambda last: -last)
    first = looked_at(rows[:31])
    second = NoiseSample([SIZE])
    second.load(first.arrays())
    looked_at(rows[31:], sample=second, start=31)
    whole = looked_at(rows[:31])
    looked_at(rows[31:], sample=whole, start=31)
    assert second.facts() == whole.facts()
    assert second.facts().in_runs
    damaged = first.arrays()
    damaged["reuse.step"] = damaged["reuse.step"][1:]
    with pytest.raises(FileFormatError, match="noise sample"):
        NoiseSample([SIZE]).load(damaged)


@pytest.mark.parametrize(
    "changes", [{"values": -1}, {"share": 1.5}, {"first": (1, 2)}, {"uneven": -1.0}]
)
def test_facts_that_no_run_has_are_refused(changes):
    with pytest.raises(FileFormatError, match=r"facts\.reuse"):
        codec.from_plain(ReuseFacts, codec.to_plain(ReuseFacts(**changes)), "facts.reuse")


def test_the_largest_table_that_is_found_is_said():
    said = looked_at(fresh()).facts().table
    for seed in range(3):
        generator = np.random.default_rng(seed)
        rows = generator.standard_normal(said)[generator.integers(0, said, (STEPS, SIZE))]
        assert looked_at(rows).facts().by_value


def test_values_of_the_step_before_in_another_order_need_few_of_them():
    order = np.random.default_rng(8).permutation(SIZE)
    rows = fresh(steps=8)
    rows[5] = rows[4][order]
    facts = looked_at(rows).facts()
    assert facts.by_lag
    assert facts.lag == 1
