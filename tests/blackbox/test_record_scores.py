"""Scores of records against slow oracles and known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from askgauss.blackbox import calibrated, lira, logit_confidence, losses, rmia
from askgauss.blackbox.membership import Membership
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError, ScoresError

RNG = np.random.default_rng(11)


def test_logit_confidence_of_certain_models_keeps_its_digits():
    rows = np.array([[1.0 - 1e-12, 1e-12], [1e-30, 1.0], [0.2, 0.8]])
    expected = [np.log(1e12), -np.log(1e30), np.log(0.25)]
    assert logit_confidence(rows, [0, 0, 0]) == pytest.approx(expected, rel=1e-3)
    assert np.isfinite(logit_confidence([[1.0, 0.0]], [0])).all()


def test_lira_is_the_exact_likelihood_ratio_of_a_linear_gaussian_model():
    """With endless references it tends to the closed form mu x - mu^2 / 2 of unit noise."""
    records, references, shift = 40, 20_000, 1.3
    inside = RNG.random((references, records)) < 0.5
    values = RNG.normal(size=(references, records)) + shift * inside
    target = RNG.normal(size=records) + shift * (np.arange(records) % 2)
    exact = shift * target - 0.5 * shift**2
    found = lira(target, values, inside=inside, pooled=False)
    # Each mean has a standard error of .01, times values up to 4: ten of them.
    assert np.abs(found - exact).max() < 0.15


def test_lira_agrees_with_two_fitted_gaussians_record_by_record():
    inside = np.arange(12)[:, None] % 2 == np.arange(9)[None, :] % 2
    values, target = RNG.normal(size=(12, 9)), RNG.normal(size=9)
    for pooled in (True, False):
        found = lira(target, values, inside=inside, pooled=pooled)
        for column in range(9):
            parts = values[inside[:, column], column], values[~inside[:, column], column]
            spread = [part.std(ddof=1) for part in parts]
            if pooled:
                residual = [[values[side[:, j], j] for j in range(9)] for side in (inside, ~inside)]
                spread = [
                    np.sqrt(
                        sum(((part - part.mean()) ** 2).sum() for part in group)
                        / sum(part.size - 1 for part in group)
                    )
                    for group in residual
                ]
            expected = norm.logpdf(target[column], parts[0].mean(), spread[0]) - norm.logpdf(
                target[column], parts[1].mean(), spread[1]
            )
            assert found[column] == pytest.approx(expected)


def test_offline_lira_is_a_z_score():
    values, target = RNG.normal(size=(40, 5)), RNG.normal(size=5)
    expected = (target - values.mean(axis=0)) / values.std(axis=0, ddof=1)
    assert lira(target, values) == pytest.approx(expected)


def test_rmia_counts_the_population():
    target, references = RNG.uniform(0.1, 1.0, 7), RNG.uniform(0.1, 1.0, (4, 7))
    other, others = RNG.uniform(0.1, 1.0, 50), RNG.uniform(0.1, 1.0, (4, 50))
    for gamma in (1.0, 2.0):
        found = rmia(target, references, population=(other, others), gamma=gamma)
        ratio = target / (0.65 * references.mean(axis=0) + 0.35)
        against = other / (0.65 * others.mean(axis=0) + 0.35)
        expected = [(value / against > gamma).mean() for value in ratio]
        assert found == pytest.approx(expected)


def test_rmia_without_references_is_a_rank():
    target, other = RNG.uniform(0.1, 1.0, 30), RNG.uniform(0.1, 1.0, 100)
    found = rmia(target, np.zeros((0, 30)), population=(other, np.zeros((0, 100))))
    assert found == pytest.approx([(other < value).mean() for value in target])


def test_calibrated_scores_lose_the_difficulty_of_a_record():
    difficulty = RNG.normal(0.0, 5.0, 200)
    member = RNG.random(200) < 0.5
    target = difficulty + 1.0 * member
    references = difficulty + RNG.normal(0.0, 0.1, (6, 200))
    found = calibrated(target, references)
    assert found[member].min() > found[~member].max()


def test_references_that_follow_the_membership_are_refused():
    membership = Membership.randomised(audited=range(200), seed=1)
    values = RNG.normal(size=(8, 200))
    inside = RNG.random((8, 200)).argsort(axis=0) < 4
    lira(np.zeros(200), values, inside=inside, membership=membership)
    inside[3] = membership.member
    with pytest.raises(ScoresError, match="reference 3"):
        lira(np.zeros(200), values, inside=inside, membership=membership)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5))

    def forward(self, inputs):
        return self.layer(inputs)


def test_losses_of_a_torch_module_are_those_of_single_records():
    torch.manual_seed(0)
    features, labels = torch.randn(60, 6), torch.randint(4, (60,))
    data = torch.utils.data.TensorDataset(features, labels)
    membership = Membership.randomised(audited=RNG.permutation(60)[:30], seed=2)
    model = Net()
    with pytest.warns(AskGaussWarning, match="training mode"):
        found = losses(model, data, membership, batch_size=7)
    assert model.training
    assert all(module.training for module in model.modules())
    model.eval()
    expected = [
        -torch.nn.functional.cross_entropy(model(features[i : i + 1]), labels[i : i + 1]).item()
        for i in membership.ids
    ]
    assert found == pytest.approx(expected, rel=1e-5)


def test_losses_of_a_causal_model_average_the_tokens_that_count():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(11, 11)

        def forward(self, input_ids, attention_mask=None):
            return type("Output", (), {"logits": self.table(input_ids)})()

    torch.manual_seed(0)
    model = Model().eval()
    ids = torch.randint(11, (10, 8))
    mask = (torch.arange(8) < torch.arange(4, 14)[:, None].clamp(max=8)).long()
    data = [{"input_ids": row, "attention_mask": keep} for row, keep in zip(ids, mask, strict=True)]
    membership = Membership.randomised(audited=range(10), seed=2)
    found = losses(model, data, membership, batch_size=3)
    for index in range(10):
        length = int(mask[index].sum())
        logits = model(ids[index : index + 1, : length - 1]).logits[0]
        expected = -torch.nn.functional.cross_entropy(logits, ids[index, 1:length]).item()
        assert found[index] == pytest.approx(expected, rel=1e-5)


def test_losses_of_scikit_learn_and_of_a_callable():
    features = RNG.normal(size=(200, 3))
    labels = np.where(features[:, 0] + RNG.normal(size=200) > 0, "yes", "no")
    model = LogisticRegression().fit(features, labels)
    membership = Membership.randomised(audited=range(50), seed=3)
    found = losses(model, (features, labels), membership)
    column = {name: index for index, name in enumerate(model.classes_)}
    rows = model.predict_proba(features[:50])
    expected = [np.log(rows[i, column[labels[i]]]) for i in range(50)]
    assert found == pytest.approx(expected)
    records = list(zip(rows, labels[:50], strict=True))
    called = losses(
        lambda batch: [-np.log(row[column[label]]) for row, label in batch],
        records,
        membership,
        batch_size=8,
    )
    assert called == pytest.approx(expected)


def test_bad_models_and_losses_are_refused():
    membership = Membership.randomised(audited=range(10), seed=3)
    with pytest.raises(InvalidArgumentError, match="predict_proba"):
        losses(3, [0] * 10, membership)
    with pytest.raises(ScoresError, match="finite"):
        losses(lambda batch: [float("nan")] * len(batch), [0] * 10, membership)
    with pytest.raises(InvalidArgumentError, match="one loss"):
        losses(lambda batch: 1.0, [0] * 10, membership)
    data = torch.utils.data.TensorDataset(torch.randn(10, 6), torch.randint(4, (10,)))
    with pytest.raises(InvalidArgumentError, match="reduction"):
        losses(Net().eval(), data, membership, loss=torch.nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    "call",
    [
        lambda: lira(np.zeros(3), np.zeros((1, 3))),
        lambda: lira(np.zeros(3), np.zeros((4, 2))),
        lambda: rmia([0.5], [[0.5]], population=([2.0], [[0.5]])),
        lambda: rmia([0.5], [[0.5]], population=([0.5], [[0.5]]), gamma=0.5),
        lambda: logit_confidence([[0.5, 0.5]], [2]),
        lambda: logit_confidence([[3.0, -2.0]], [0]),
        lambda: calibrated([1.0], [[1.0]], inside=[[True]]),
    ],
)
def test_bad_references_are_refused(call):
    with pytest.raises(InvalidArgumentError):
        call()
