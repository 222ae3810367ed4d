"""Replay of plain numpy loops: each leak is found and named, and its clean twin is not.

Nothing here is random beyond fixed seeds: a correct implementation never fails.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    NotDeterministicError,
    RecordingError,
    ReplayError,
)
from askgauss.files import codec
from askgauss.replay import ReplayReport
from tests.replay.runs import CLIP_NORM, WIDTH, records, training

ALL = ("add-remove", "replace-one", "zero-out")


def replayed(train, **options):
    return ag.replay(train, records(), leave_out=17, **options)


LEAKS = {
    # fault, what it is called, of what kind, under which adjacencies
    "batch-size divisor": ({"divisor": "batch"}, "divisor", "public", ("add-remove",)),
    "stop by the loss": ({"stop": "loss"}, "number of steps", "control flow", ALL),
    "range of the data": ({"bounds": "data"}, "range of the features", "public", ALL),
    "loss without noise": ({"logged": "loss"}, "loss", "public", ALL),
    "raw sum": ({"clip": False}, "gradient", "release", ALL),
    "noise seeded from data": ({"noise": "data"}, "noise generator 1", "seed", ALL),
    "noise scaled by data": ({"noise": "scaled"}, "noise of gradient", "noise", ALL),
    "running mean of batches": ({"buffer": "batch"}, "running mean", "state", ALL),
    "start from the labels": ({"start": "means"}, "weights", "state", ALL),
    "error on one record": ({"stop": "error"}, "how the training ended", "exception", ALL),
}
CLEAN = {
    "plain": {},
    "constant divisor": {"divisor": "constant"},
    "stop by a release": {"stop": "released"},
    "public range": {"bounds": "constant"},
    "what was released": {"logged": "norm of the release"},
    "noise by the loop's generator": {"noise": "own"},
    "noise by a fresh generator": {"noise": "fresh"},
    "running mean of releases": {"buffer": "released"},
    "noise not told apart": {"given_apart": False},
    "every record in every step": {"rate": 1.0},
}


@pytest.mark.parametrize("case", LEAKS)
def test_a_leak_is_named_with_its_adjacencies(case):
    fault, name, kind, under = LEAKS[case]
    report = replayed(training(**fault))
    assert report.verdict is ag.Verdict.VIOLATION
    found = {(item.name, item.kind): item for item in report.leaks}
    assert found[name, kind].leak_under == under
    # All else that differs comes after it, and says so.
    assert report.leaks[0].name == name or report.leaks[0].follows == ""
    assert name in str(report)


@pytest.mark.parametrize("case", CLEAN)
def test_its_clean_twin_is_not(case):
    report = replayed(training(**CLEAN[case]))
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)
    assert report.differences == ()
    assert 0.0 < report.moved <= 1.001
    assert not report.elsewhere


def test_only_adjacencies_that_see_the_number_of_records_mind_the_divisor():
    train = training(divisor="batch")
    assert replayed(train, adjacency="zero-out").verdict is ag.Verdict.CONSISTENT
    assert replayed(train, adjacency="replace-one").verdict is ag.Verdict.CONSISTENT
    report = ag.replay(train, records(), replace=17)
    assert report.adjacency == "replace-one"
    assert report.worlds == ("replaced",)
    assert report.verdict is ag.Verdict.CONSISTENT


def test_a_replaced_record_may_move_a_sum_by_two_clip_norms_and_no_more():
    opposite = (records()[0][17], 1 - records()[1][17])
    report = ag.replay(training(), records(), replace=17, replacement=opposite)
    assert report.verdict is ag.Verdict.CONSISTENT
    report = ag.replay(training(clip=False), records(), replace=17, replacement=opposite)
    assert [item.kind for item in report.leaks] == ["release"]
    assert report.leaks[0].size > 2.0


def test_how_far_a_sum_moved_is_the_clipped_gradient():
    """Against an oracle: the record's own clipped gradient at the start, where weights are 0."""
    features, labels = records()
    gradient = features[17] * (0.5 - labels[17])
    expected = min(1.0, CLIP_NORM / np.linalg.norm(gradient)) * np.linalg.norm(gradient)
    report = replayed(training(), steps=1)
    assert report.present == (1,)
    assert report.moved == pytest.approx(expected / CLIP_NORM, rel=1e-9)
    features[17] *= 1e-2
    report = ag.replay(training(), (features, labels), leave_out=17, steps=1)
    expected = 1e-2 * np.linalg.norm(gradient)
    assert report.moved == pytest.approx(expected / CLIP_NORM, rel=1e-9)


def test_a_record_that_moves_steps_without_it_leaks():
    def train(data, replay):
        mean = data[0].mean(axis=0)
        for batch in replay.batches(size=8):
            rows = np.clip(data[0][batch] - mean, -0.1, 0.1)
            noise = replay.generator().normal(size=WIDTH)
            replay.release(rows.sum(axis=0), noise=noise, clip_norm=0.2)

    report = replayed(train)
    assert report.verdict is ag.Verdict.VIOLATION
    assert {2, 4} <= set(report.leaks[0].steps)
    assert report.elsewhere > 0.01


def test_the_loops_own_batches_are_coupled():
    """A shuffled epoch of the loop's own, whose order differs with the number of records."""
    seen = []

    def train(data, replay):
        rng = np.random.default_rng(5)
        weights, drawn = np.zeros(WIDTH), []
        for _ in range(2):
            order = rng.permutation(len(data[0]))
            for batch in replay.batches([order[i : i + 20] for i in range(0, len(order), 20)]):
                drawn.append(batch)
                noise = replay.generator().normal(size=WIDTH)
                rows = np.clip(data[0][batch], -0.1, 0.1)
                noisy = replay.release(rows.sum(axis=0), noise=noise, clip_norm=0.2)
                weights = replay.state("weights", weights - noisy)
        seen.append(drawn)

    report = replayed(train, steps=5)
    assert report.verdict is ag.Verdict.CONSISTENT
    given, again, left_out, replaced = seen
    for one, two, three, four in zip(given, again, left_out, replaced, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, four)
        without = one[one != 17]
        np.testing.assert_array_equal(without - (without > 17), three)


def test_own_generators_that_fall_out_of_step_are_not_checked():
    """Noise after draws whose number follows the data: no leak, and nothing to compare."""

    def train(data, replay):
        rng = np.random.default_rng(5)
        for batch in replay.batches(rate=0.3):
            rng.random(len(data[0]))
            total = np.clip(data[0][batch], -0.1, 0.1).sum(axis=0)
            replay.release(total + rng.normal(size=WIDTH), clip_norm=0.2)

    report = replayed(train)
    assert report.verdict is ag.Verdict.INCONCLUSIVE
    assert "generator" in report.not_checked[0]
    assert not report.leaks


def test_a_loop_without_batches_from_here():
    """The loop marks its steps itself; which of them have the record is not known."""

    def train(data, replay, bound=0.1):
        for _ in range(100):
            replay.begin_step()
            total = np.clip(data[0], -bound, bound).sum(axis=0)
            replay.release(total, noise=replay.generator().normal(size=WIDTH), clip_norm=0.2)

    report = replayed(train, steps=3)
    assert report.verdict is ag.Verdict.CONSISTENT
    assert report.steps == 3
    assert report.present == ()
    assert "what comes after step 3" in report.not_checked
    assert replayed(lambda data, replay: train(data, replay, 1.0)).leaks[0].kind == "release"


def test_releases_alone_count_as_steps():
    def train(data, replay):
        for _ in range(100):
            noise = np.random.normal(size=WIDTH)  # noqa: NPY002  (the global one is set too)
            replay.release(np.clip(data[0], -0.1, 0.1).sum(axis=0), noise=noise, clip_norm=0.2)

    report = replayed(train, steps=4)
    assert report.steps == 4
    assert report.verdict is ag.Verdict.CONSISTENT


def test_nested_releases_come_back_as_they_went_in():
    kinds = []

    def train(data, replay):
        for batch in replay.batches(rate=0.5):
            rows = np.clip(data[0][batch], -0.1, 0.1)
            tree = {"a": rows.sum(axis=0), "b": [rows.sum(), (np.float32(1.0),)]}
            out = replay.release(tree, clip_norm=1.0)
            kinds.append((type(out["b"]), type(out["b"][1]), out["a"].shape, out["a"].copy()))

    replayed(train, steps=1)
    for kind in kinds:
        assert kind[:3] == (list, tuple, (WIDTH,))
        np.testing.assert_array_equal(kind[3], kinds[0][3])


def test_generators_of_the_process_are_left_as_they_were():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    replayed(training())
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


def test_data_are_not_shared_between_worlds():
    """A training that changes its data in place does so in every run anew."""

    def train(data, replay):
        data[0][:] += 1.0
        replay.public("sum of one record", float(data[0][3].sum()))
        training()(data, replay)

    data = records()
    before = data[0].copy()
    report = ag.replay(train, data, leave_out=17)
    np.testing.assert_array_equal(data[0], before)
    assert report.verdict is ag.Verdict.CONSISTENT


class Dataset:
    """A dataset with a length, indexing, and a property of its own."""

    classes = 2

    def __init__(self):
        self._features, self._labels = records()

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return self._features[index], self._labels[index]


@pytest.mark.parametrize("kind", ["array", "mapping", "list", "dataset", "table"])
def test_kinds_of_data(kind):
    features, labels = records()
    data = {
        "array": np.column_stack([features, labels]),
        "mapping": {"x": features, "y": labels},
        "list": list(zip(features, labels, strict=True)),
        "dataset": Dataset(),
    }
    if kind == "table":
        pandas = pytest.importorskip("pandas")
        data["table"] = pandas.DataFrame(features).assign(y=labels)

    def train(given, replay):
        if kind == "array":
            x, y = given[:, :WIDTH], given[:, WIDTH]
        elif kind == "mapping":
            x, y = given["x"], given["y"]
        elif kind == "table":
            x, y = given.drop(columns="y").to_numpy(), given["y"].to_numpy()
        else:
            rows = [given[index] for index in range(len(given))]
            x, y = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
            if kind == "dataset":
                replay.public("classes", given.classes)
        training()((x, y), replay)

    report = ag.replay(train, data[kind], leave_out=17)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)
    plain = ag.replay(training(), records(), leave_out=17)
    assert report.moved == pytest.approx(plain.moved)
    broken = ag.replay(train, data[kind], leave_out=0, steps=3)
    assert broken.record == 0


def test_json_round_trip():
    report = replayed(training(divisor="batch", logged="loss"))
    text = report.to_json()
    again = ReplayReport.from_json(text)
    assert again == report
    assert str(again) == str(report)
    with pytest.raises(FileFormatError, match="digest"):
        ReplayReport.from_json(text.replace('"VIOLATION"', '"CONSISTENT"'))


def rewritten(report, **changes):
    """The report with other fields, as a file whose digest fits them says it."""
    content = json.loads(report.to_json()) | changes
    kind, schema = content.pop("kind"), content.pop("schema")
    content.pop("digest")
    return ReplayReport.from_json(codec.dumps(kind, schema, content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": ["elsewhere"]}, "worlds"),
        ({"verdict": "FINE"}, "verdict"),
        ({"differences": [{}]}, "differences"),
    ],
)
def test_a_file_that_is_no_report_is_refused(changes, message):
    with pytest.raises(FileFormatError, match=message):
        rewritten(replayed(training(divisor="batch")), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "CONSISTENT"},
        {"verdict": "INCONCLUSIVE"},
        {"differences": []},
        {"adjacency": "replace-one"},
    ],
)
def test_a_verdict_that_does_not_follow_from_the_differences_is_noticed(changes):
    report = replayed(training(divisor="batch"))
    assert report.derived
    assert not rewritten(report, **changes).derived


def test_findings_are_those_of_an_audit():
    breaches = [
        item
        for item in replayed(training(divisor="batch")).findings
        if item.status is ag.results.Status.FAIL
    ]
    assert breaches[0].check == "replay: divisor"
    assert all("may follow from divisor" in item.summary for item in breaches[1:2])
    assert replayed(training()).findings[0].status is ag.results.Status.PASS


# --- bad input -----------------------------------------------------------------------------------


def test_a_training_that_is_not_deterministic_is_refused():
    def train(data, replay):
        replay.public("coin", np.random.default_rng().random())

    with pytest.raises(NotDeterministicError, match="'coin' in step 0"):
        replayed(train)

    def noisy(data, replay):
        rng = np.random.default_rng()
        for batch in replay.batches(rate=0.3):
            replay.release(data[0][batch].sum(axis=0) + rng.normal(size=WIDTH), clip_norm=1.0)

    with pytest.raises(NotDeterministicError, match="'gradient' in step 1"):
        replayed(noisy)


def test_a_record_in_no_batch_is_not_checked():
    def train(data, replay):
        own = [np.array([1, 2, 3])] * 5
        for batch in replay.batches(own):
            replay.release(
                np.clip(data[0][batch], -0.1, 0.1).sum(axis=0),
                noise=replay.generator().normal(size=WIDTH),
                clip_norm=0.2,
            )

    report = replayed(train, plant=False)
    assert report.verdict is ag.Verdict.INCONCLUSIVE
    assert "none of the 5 batches had the record" in report.reason
    assert replayed(train).verdict is ag.Verdict.CONSISTENT


def test_a_training_that_does_not_look_at_its_data_is_not_checked():
    elsewhere = records()
    report = replayed(lambda data, replay: training()(elsewhere, replay))
    assert report.verdict is ag.Verdict.INCONCLUSIVE or report.leaks
    same = replayed(lambda data, replay: _constant(replay))
    assert same.verdict is ag.Verdict.INCONCLUSIVE
    assert "no release moved" in same.reason


def _constant(replay):
    for _ in replay.batches(rate=0.5):
        noise = replay.generator().normal(size=WIDTH)
        replay.release(np.ones(WIDTH), noise=noise, clip_norm=1.0)


def test_nothing_released_is_not_checked():
    report = replayed(lambda data, replay: replay.public("a", 1))
    assert report.verdict is ag.Verdict.INCONCLUSIVE
    assert "no step" in report.reason


def test_a_training_that_fails_everywhere_is_an_error():
    def train(data, replay):
        raise ZeroDivisionError("of its own")

    with pytest.raises(ReplayError, match="ZeroDivisionError"):
        replayed(train)


def test_a_training_that_waits_for_ever_is_stopped():
    def train(data, replay):
        while True:
            for batch in replay.batches([np.arange(10)]):
                replay.release(
                    np.clip(data[0][batch], -0.1, 0.1).sum(axis=0),
                    noise=replay.generator().normal(size=WIDTH),
                    clip_norm=0.2,
                )

    assert replayed(train).steps == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of leave_out and replace"),
        ({"leave_out": 1, "replace": 1}, "exactly one"),
        ({"leave_out": 60}, r"leave_out in \[0, 60\), got 60"),
        ({"leave_out": -1}, "leave_out"),
        ({"leave_out": 1.5}, "leave_out "),
        ({"leave_out": 1, "steps": 0}, "steps"),
        ({"leave_out": 1, "adjacency": "swap"}, "adjacency"),
        ({"replace": 1, "adjacency": "add-remove"}, "leave_out="),
        ({"replace": 1, "replacement": 3}, "replacement"),
        ({"replace": 1, "replacement": (np.zeros(3), 1)}, "replacement"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ag.replay(training(), records(), **options)


@pytest.mark.parametrize(
    "data", [iter([1]), 3, "text", (np.zeros(3), np.zeros(4)), np.zeros((2, 3)), {}]
)
def test_bad_data(data):
    with pytest.raises(InvalidArgumentError, match="data"):
        ag.replay(training(), data, leave_out=0)


def test_bad_calls_of_the_handle():
    def with_handle(action):
        return ag.replay(lambda data, replay: action(replay), records(), leave_out=1)

    with pytest.raises(InvalidArgumentError, match="lists, rate and size"):
        with_handle(lambda replay: list(replay.batches()))
    with pytest.raises(InvalidArgumentError, match="rate"):
        with_handle(lambda replay: list(replay.batches(rate=2.0)))
    with pytest.raises(RecordingError, match="indices in"):
        with_handle(lambda replay: list(replay.batches([[60]])))
    with pytest.raises(InvalidArgumentError, match="clip_norm"):
        with_handle(lambda replay: replay.release(np.zeros(2), clip_norm=0.0))
    with pytest.raises(InvalidArgumentError, match="noise"):
        with_handle(lambda replay: replay.release(np.zeros(2), noise=np.zeros(3), clip_norm=1.0))
    with pytest.raises(InvalidArgumentError, match="'model'"):
        with_handle(lambda replay: replay.public("model", object()))
    with pytest.raises(InvalidArgumentError, match="generator"):
        with_handle(lambda replay: replay.couple(object()))


def test_the_function_and_the_package_share_their_name():
    import askgauss.replay as package

    assert callable(ag.replay)
    assert package.Replay is not None
    assert package(training(), records(), leave_out=17).verdict is ag.Verdict.CONSISTENT


def test_the_guide_prints_what_it_says(capsys):
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    block, said = re.findall(r"^```(?:python)?\n(.*?)^```$", page, re.DOTALL | re.M)[:2]
    exec(block, {})
    assert capsys.readouterr().out == said
