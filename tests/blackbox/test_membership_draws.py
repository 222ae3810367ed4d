"""Randomised membership: drawn, saved, joined to scores."""

from __future__ import annotations

import json
import stat

import numpy as np
import pandas as pd
import pytest
import torch

from askgauss.blackbox.membership import Membership
from askgauss.exceptions import FileFormatError, InvalidArgumentError, ScoresError


def test_inclusion_is_independent_with_the_stated_probability():
    probability = np.tile([0.2, 0.5, 0.9], 2000)
    member = Membership.randomised(audited=range(6000), probability=probability, seed=5).member
    # Six standard deviations.
    for chance in (0.2, 0.5, 0.9):
        rate = member[probability == chance].mean()
        assert abs(rate - chance) < 6.0 * np.sqrt(chance * (1 - chance) / 2000)


def test_two_draws_differ_and_a_seed_repeats():
    first, second = (Membership.randomised(audited=range(1000)) for _ in range(2))
    assert (first.member != second.member).any()
    assert first.digest != second.digest
    one, two = (Membership.randomised(audited=range(1000), seed=7) for _ in range(2))
    assert (one.member == two.member).all()
    assert one.digest != two.digest  # the nonce hides even a seed that was guessed


def test_training_sees_everything_but_the_held_out_records():
    membership = Membership.randomised(audited=[3, 5, 8, 9], seed=1)
    kept = membership.train_indices(records=10)
    assert sorted({*kept, *membership.held_out}) == list(range(10))
    assert not {*kept} & {*membership.held_out}


def test_training_sets_keep_their_kind():
    membership = Membership.randomised(audited=range(100, 200), seed=2)
    kept = membership.train_indices(records=300)
    rows = np.arange(300) * 2
    assert (membership.training_set(rows) == rows[kept]).all()
    frame = membership.training_set(pd.DataFrame({"x": rows}))
    assert (frame["x"].to_numpy() == rows[kept]).all()
    both = membership.training_set({"x": rows, "y": -rows})
    assert (both["y"] == -rows[kept]).all()
    data = torch.utils.data.TensorDataset(torch.arange(300))
    loader = torch.utils.data.DataLoader(membership.training_set(data), batch_size=50)
    assert torch.cat([batch[0] for batch in loader]).tolist() == kept.tolist()


def test_a_hugging_face_dataset_is_selected():
    class Table:
        column_names = ("x",)

        def __len__(self):
            return 300

        def select(self, indices):
            return list(indices)

    membership = Membership.randomised(audited=range(100, 200), seed=2)
    assert membership.training_set(Table()) == membership.train_indices(records=300).tolist()


def test_saved_and_read_back(tmp_path):
    membership = Membership.randomised(audited=[f"r{i}" for i in range(50)], probability=0.3)
    path = tmp_path / "membership.json"
    membership.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Membership.load(path)
    assert again.digest == membership.digest
    assert (again.ids == membership.ids).all()


@pytest.mark.parametrize(
    "change",
    [
        {"member": [1]},
        {"member": None},
        {"ids": [1, 1, 2, 3]},
        {"probability": [1.0]},
        {"nonce": 3},
    ],
)
def test_damaged_files_are_refused(tmp_path, change):
    path = tmp_path / "membership.json"
    Membership.randomised(audited=range(10)).save(path)
    content = json.loads(path.read_text()) | change
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError):
        Membership.load(path)


def test_scores_carry_their_membership():
    membership = Membership.randomised(audited=range(200), seed=3)
    values = np.random.default_rng(0).normal(size=200)
    scores = membership.scores(values)
    assert scores.membership == "randomised"
    assert scores.metadata.fair_coins
    assert (scores.member == membership.member).all()
    joined = membership.scores({index: values[index] for index in range(200)})
    assert (joined.score == values).all()


def test_uneven_probabilities_are_thinned_to_even_ones():
    membership = Membership.randomised(audited=range(4000), probability=0.2, seed=4)
    scores = membership.scores(np.zeros(4000) + np.arange(4000) * 1e-6)
    present = int(scores.member.sum())
    # About 2 min(p, 1 - p) of the records, half of them members.
    assert abs(len(scores) - 1600) < 6 * np.sqrt(4000 * 0.4 * 0.6)
    assert abs(present - len(scores) / 2) < 6 * np.sqrt(len(scores)) / 2


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.zeros(9), ScoresError),
        (np.full(10, np.nan), ScoresError),
        (dict.fromkeys(range(9), 0.0), ScoresError),
        (dict.fromkeys(range(11), 0.0), ScoresError),
    ],
)
def test_values_of_other_records_are_refused(values, error):
    with pytest.raises(error):
        Membership.randomised(audited=range(10), seed=0).scores(values)


@pytest.mark.parametrize(
    "arguments",
    [
        {"audited": [1, 1, 2, 3]},
        {"audited": [0.5, 1.0, 2.0, 3.0]},
        {"audited": [1, 2]},
        {"audited": [-1, 2, 3, 4]},
        {"audited": range(10), "probability": 0.0},
        {"audited": range(10), "probability": 1.0},
        {"audited": range(10), "probability": [0.5] * 9},
        {"audited": range(10), "seed": -1},
    ],
)
def test_bad_draws_are_refused(arguments):
    with pytest.raises(InvalidArgumentError):
        Membership.randomised(**arguments)


def test_a_membership_of_another_dataset_is_refused():
    membership = Membership.randomised(audited=range(10))
    with pytest.raises(InvalidArgumentError, match="another dataset"):
        membership.train_indices(records=5)
    named = Membership.randomised(audited=["a", "b", "c", "d"])
    with pytest.raises(InvalidArgumentError, match="names"):
        named.train_indices(records=10)
