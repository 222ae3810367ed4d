"""Records that meet before they are clipped, in loops that Lightning and Hugging Face run."""

from __future__ import annotations

import warnings

import lightning.pytorch as pl
import pytest
import torch

import askgauss as ag
from askgauss.integrations import lightning
from askgauss.integrations import transformers as hugging_face
from askgauss.results import Status, Verdict
from tests.integrations import transformers_runs as texts
from tests.integrations.lightning_runs import QUIET, Private, loader
from tests.seeds import unlikely

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
AUDIT = {"claim": CLAIM, "present": 100, "absent": 300, "seed": unlikely(11), "report": False}


class Mixup(Private):
    def training_step(self, batch, batch_idx):
        records = batch[0]
        return self.loss(self(0.6 * records + 0.4 * records.roll(1, 0)))


class Centred(Private):
    def training_step(self, batch, batch_idx):
        outputs = self(batch[0])
        return self.loss(outputs - outputs.mean(0))


class Normalised(Private):
    def forward(self, x):
        hidden = self.layer[0](x)
        return self.layer[2](self.layer[1]((hidden - hidden.mean(0)) / (hidden.std(0) + 1e-3)))


def trained(kind, folder):
    torch.manual_seed(unlikely(11))
    callback, model = lightning.AuditCallback(**AUDIT), kind()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1, default_root_dir=folder, callbacks=[callback], logger=False, **QUIET
        )
        trainer.fit(model, loader())
    return model, callback.result


def mixing(result):
    return next(item for item in result.findings if item.check == "mixed records")


@pytest.mark.parametrize(
    ("kind", "where"),
    [(Mixup, "inputs"), (Centred, "the loss"), (Normalised, "forward pass")],
)
def test_lightning(tmp_path, kind, where):
    _, result = trained(kind, tmp_path)
    assert result.verdict is Verdict.INVALID
    assert mixing(result).status is Status.FAIL
    assert where in mixing(result).summary


def test_a_correct_module_is_looked_at_and_trains_as_without(tmp_path, monkeypatch):
    looked, result = trained(Private, tmp_path)
    assert mixing(result).status is Status.PASS
    monkeypatch.setattr("askgauss.integrations.opacus.mixed_records._FIRST", 0)
    monkeypatch.setattr("askgauss.integrations.opacus.mixed_records.MixingWatch._is_due", False)
    plain, result = trained(Private, tmp_path)
    assert mixing(result).status is Status.NOT_RUN
    for one, other in zip(looked.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


class ByBatch(texts.PrivateTrainer):
    """A trainer whose loss takes the batch's mean off."""

    centred = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"]).logits
        if self.centred:
            outputs = outputs - outputs.mean(0)
        targets = inputs["labels"][:, 1:].reshape(-1)
        loss = torch.nn.functional.cross_entropy(outputs[:, :-1].reshape(len(targets), -1), targets)
        return (loss, outputs) if return_outputs else loss


class ByRecord(ByBatch):
    centred = False


@pytest.mark.parametrize(("kind", "status"), [(ByBatch, Status.FAIL), (ByRecord, Status.PASS)])
def test_hugging_face(tmp_path, kind, status):
    callback = hugging_face.AuditCallback(**AUDIT)
    model = texts.frozen_below(texts.small_gpt2(width=64))
    trainer = kind(model, texts.arguments(tmp_path, 16), train_dataset=texts.Lines())
    trainer.add_callback(callback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert mixing(callback.result).status is status
