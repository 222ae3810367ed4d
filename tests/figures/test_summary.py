from __future__ import annotations

import json
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import FileFormatError
from askgauss.figures import summary as tables
from askgauss.figures.summary import Summary, hexagon_centres, summarise
from askgauss.recording.recorder import Recorder
from askgauss.simulation import simulate_dpftrl, simulate_dpsgd, simulate_scores
from askgauss.stats.normality import pit_ecdf


def some_scores(seed=0, present=300, absent=500, shift=1.0):
    generator = np.random.default_rng(seed)
    return ag.CanaryScores.from_groups(
        present=generator.normal(shift, 1.2, present), absent=generator.normal(0, 1, absent)
    )


def through_json(summary: Summary) -> Summary:
    return Summary.from_metadata(json.loads(json.dumps(summary.to_metadata(), allow_nan=True)))


def test_histograms_count_every_score():
    scores = some_scores()
    found = summarise(scores).scores
    edges = np.linspace(found.low, found.high, tables.BINS + 1)
    for values, counts in (
        (scores.present, found.present_counts),
        (scores.absent, found.absent_counts),
    ):
        slow = [0] * tables.BINS
        for value in values:
            inside = [i for i in range(tables.BINS) if edges[i] <= value < edges[i + 1]]
            slow[inside[0] if inside else (0 if value < found.low else tables.BINS - 1)] += 1
        np.testing.assert_array_equal(counts, slow)
    assert found.outside == 0


def test_outliers_are_counted_in_the_last_bins_and_said_to_be_outside():
    generator = np.random.default_rng(1)
    absent = np.append(generator.normal(0, 1, 2000), [1e4, -1e4])
    scores = ag.CanaryScores.from_groups(present=generator.normal(1, 1, 2000), absent=absent)
    found = summarise(scores).scores
    assert found.outside == 2
    assert found.absent_counts.sum() == 2002
    assert found.high < 2000


def test_probabilities_are_those_of_the_fitted_gaussian():
    scores = some_scores(2)
    found = summarise(scores).scores
    for values, difference in (
        (scores.present, found.present_pit),
        (scores.absent, found.absent_pit),
    ):
        _, slow, _ = pit_ecdf(values, points=tables.PIT_POINTS)
        np.testing.assert_allclose(difference, slow, atol=1e-12)


def test_each_score_is_counted_in_its_nearest_hexagon():
    scores = some_scores(3)
    found = summarise(scores).scores
    x, y = hexagon_centres()
    columns, rows = tables.HEXAGONS
    slow = np.zeros(x.size)
    for index, (value, member) in enumerate(zip(scores.score, scores.member, strict=True)):
        moments = found.present if member else found.absent
        z = (value - moments.mean) / moments.standard_deviation
        across = ((index + 0.5) / len(scores) - x) * columns
        along = (z - y) * rows / (y.max() - y.min())
        slow[np.argmin(across**2 + 3 * along**2)] += 1
    np.testing.assert_array_equal(found.density, slow)


def test_scores_that_do_not_vary_have_a_histogram_and_nothing_else():
    scores = ag.CanaryScores.from_groups(present=[1.0] * 5, absent=[1.0] * 7)
    found = summarise(scores).scores
    assert found.low < 1.0 < found.high
    assert found.present_counts.sum() == 5
    assert found.present_pit.size == found.density.size == 0


def test_scores_beyond_any_scale_are_left_out():
    scores = ag.CanaryScores.from_groups(present=[1e308, 1e308, 5.0], absent=[-1e308, 0.0, 1.0])
    with np.errstate(all="ignore"):
        assert summarise(scores).scores is None


def recorded(steps=23, tensors=(400, 300, 50), scales=(1.0, 2.0, 3.0), count=60, claimed=1.0):
    """A run whose every number is known, and what it should amount to."""
    canaries = ag.DiracCanaries(present=count, absent=count, tensors=tensors, seed=0)
    recorder = Recorder(canaries, sampling_rate=0.3, clip_norm=1.0, noise_multiplier=claimed)
    generator = np.random.default_rng(0)
    scale = np.repeat(scales, tensors)
    values, planted = [], []
    for _ in range(steps):
        vector = generator.standard_normal(canaries.total_dimension) * scale
        chosen = recorder.sample()
        canaries.plant(vector, chosen, clip_norm=1.0)
        row = canaries.project(vector)
        recorder.observe(row, background=np.zeros(canaries.size), watch=vector[canaries.watch])
        values.append(row)
        planted.append(np.isin(np.arange(canaries.size), chosen))
    return recorder.transcript(), np.array(values), np.array(planted)


def test_noise_by_step_is_that_of_what_was_not_planted():
    transcript, values, planted = recorded()
    found = summarise(transcript).noise
    slow = [np.sqrt(np.mean(row[~out] ** 2)) for row, out in zip(values, planted, strict=True)]
    np.testing.assert_allclose(found.scale, slow, rtol=1e-9)
    np.testing.assert_array_equal(found.step, np.arange(1, 24))
    np.testing.assert_array_equal(found.claimed, 1.0)
    assert (found.low < found.scale).all()
    assert (found.scale < found.high).all()


def test_many_steps_are_drawn_together(monkeypatch):
    transcript, values, planted = recorded()
    monkeypatch.setattr(tables, "STEPS", 4)
    found = summarise(transcript).noise
    starts = [0, 5, 11, 17]
    np.testing.assert_array_equal(found.step, np.array(starts) + 1)
    for start, end, scale in zip(starts, [*starts[1:], 23], found.scale, strict=True):
        kept = values[start:end][~planted[start:end]]
        assert scale == pytest.approx(np.sqrt(np.mean(kept**2)), rel=1e-9)


def test_intervals_of_the_noise_hold_the_truth():
    """99 % intervals of 20 steps each: 200 independent ones; more than 9 misses in 1 of 10,000."""
    transcript = simulate_dpsgd(
        steps=200, sampling_rate=0.2, noise_multiplier=1.7, present=50, absent=50, seed=3
    )
    found = summarise(transcript).noise
    assert np.count_nonzero((found.low > 1.7) | (found.high < 1.7)) <= 9


def test_noise_by_tensor_finds_each_scale():
    transcript, _, _ = recorded(steps=200)
    found = summarise(transcript).tensors
    assert found.of == 3
    assert found.names == ("tensor 0", "tensor 1", "tensor 2")
    # 1,000 observations or more: a standard error of 2.2 % at most.
    np.testing.assert_allclose(found.scale, [1.0, 2.0, 3.0], rtol=0.08)
    assert ((found.low < [1, 2, 3]) & (found.high > [1, 2, 3])).all()


def test_the_tensors_shown_are_those_that_differ():
    scales = np.ones(60)
    scales[[7, 41]] = 0.5, 4.0
    transcript, _, _ = recorded(steps=60, tensors=(30,) * 60, scales=scales)
    found = summarise(transcript).tensors
    assert found.of == 60
    assert len(found.names) == tables.TENSORS
    assert {"tensor 7", "tensor 41"} <= set(found.names)


def test_gram_matrix_is_that_of_the_kept_values():
    transcript, _, _ = recorded(steps=40)
    found = summarise(transcript).gram
    picked = np.linspace(0, transcript.kept.size - 1, 64).astype(int)
    noise = (transcript.kept_values - transcript.kept_planted)[:, picked]
    slow = [
        100 * noise[:, i] @ noise[:, j] / np.linalg.norm(noise[:, i]) / np.linalg.norm(noise[:, j])
        for i in range(64)
        for j in range(i + 1, 64)
    ]
    assert found.size == 64
    np.testing.assert_allclose(found.cosines, slow, atol=0.5 + 1e-9)


def test_shared_noise_shows_in_the_gram_matrix():
    transcript = simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=2.0, present=40, absent=40, seed=0
    )
    values = transcript.kept_values.copy()
    values[:, 5] = values[:, 0]
    values.setflags(write=False)
    import dataclasses

    planted = np.zeros_like(transcript.kept_planted)
    twin = dataclasses.replace(transcript, kept_values=values, kept_planted=planted)
    cosines = summarise(twin).gram.cosines
    assert cosines.max() == 100


def test_a_run_with_infinite_values_keeps_its_facts_only():
    import dataclasses

    transcript, _, _ = recorded()
    total = transcript.canaries.total.copy()
    total[0] = math.nan
    sums = dataclasses.replace(transcript.canaries, total=total)
    found = summarise(dataclasses.replace(transcript, canaries=sums))
    assert found.scores is found.noise is found.tensors is found.gram is None
    assert found.run.steps == 23


def test_correlated_noise_has_scores_and_facts():
    transcript = simulate_dpftrl(
        steps=16, noise_multiplier=3.0, present=40, absent=40, seed=0, release="nodes"
    )
    found = summarise(transcript)
    assert found.run.source == "correlated noise"
    assert found.run.steps == 16
    assert found.scores.present_counts.sum() == 40
    assert found.noise is None


@pytest.mark.parametrize(
    "data",
    [
        some_scores(),
        ag.CanaryScores.from_groups(present=[1.0] * 5, absent=[1.0] * 7),
        recorded()[0],
    ],
    ids=["scores", "constant", "transcript"],
)
def test_tables_survive_a_trip_through_json(data):
    before = summarise(data)
    after = through_json(before)
    assert after.run == before.run
    assert dict(after.environment) == dict(before.environment)
    for name in ("scores", "noise", "tensors", "gram"):
        first, second = getattr(before, name), getattr(after, name)
        assert (first is None) == (second is None)
        if first is None:
            continue
        for field in first.__dataclass_fields__:
            one, other = getattr(first, field), getattr(second, field)
            if isinstance(one, np.ndarray):
                np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-7)
            else:
                assert one == other


def test_an_old_result_has_nothing_and_that_is_no_error():
    found = Summary.from_metadata({})
    assert found.scores is None
    assert found.run.source == "scores"


def test_tables_do_not_grow_with_the_run():
    small, large = (
        json.dumps(
            summarise(
                simulate_scores(
                    steps=100,
                    sampling_rate=0.5,
                    noise_multiplier=5.0,
                    present=count,
                    absent=count,
                    seed=0,
                )
            ).to_metadata()
        )
        for count in (100, 100_000)
    )
    assert len(large) < 2 * len(small) < 20_000


@pytest.mark.parametrize(
    ("table", "field", "value", "message"),
    [
        ("scores", "absent_counts", "1 2 3", "table of 64 finite numbers"),
        ("scores", "absent_pit", "0.5 " * 1000, "numbers"),
        ("scores", "density", "x", "density "),
        ("scores", "present_counts", [1, 2], "present_counts "),
        ("scores", "low", "inf", "finite width"),
        ("scores", "high", -1e9, "finite width"),
        ("scores", "present", {"count": 1, "mean": 0, "sum_of_squares": 0}, "at least 2"),
        ("noise", "scale", "1 " * 500, "numbers"),
        ("tensors", "names", ["a"] * 1000, "numbers"),
        ("noise", "step", "", "numbers"),
        ("noise", "low", "nan " * 23, "finite"),
        ("scores", "density", "inf " * 641, "finite"),
        ("scores", "absent", {"count": 9, "mean": 0, "sum_of_squares": -1}, "moments"),
        ("tensors", "names", ["a"] * 4, "numbers"),
        ("gram", "size", 100_000, "Gram"),
        ("gram", "size", -3, "Gram"),
        ("gram", "steps", 0, "Gram"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, field, value, message):
    metadata = summarise(recorded()[0]).to_metadata()
    metadata["figures"][table][field] = value
    with pytest.raises(FileFormatError, match=message):
        Summary.from_metadata(metadata)


def test_missing_fields_are_refused():
    metadata = summarise(some_scores()).to_metadata()
    del metadata["figures"]["scores"]["outside"]
    with pytest.raises(FileFormatError, match="outside"):
        Summary.from_metadata(metadata)
    with pytest.raises(FileFormatError, match="figures"):
        Summary.from_metadata({"figures": 3})
