"""Lightning: the callback attaches, records, resumes, writes and logs; the training is its own."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import warnings

import pytest
import torch
from opacus.accountants import PRVAccountant
from opacus.utils.batch_memory_manager import wrap_data_loader

import askgauss as ag
from askgauss.exceptions import (
    AskGaussWarning,
    InvalidArgumentError,
    PrivacyAlarm,
    RecordingError,
)
from askgauss.integrations.opacus import canary_audit
from askgauss.recording.transcript import Transcript
from askgauss.results import Verdict

pl = pytest.importorskip("lightning.pytorch")

from askgauss.integrations import lightning as module  # noqa: E402
from askgauss.integrations.lightning import AuditCallback  # noqa: E402
from tests.integrations.lightning_runs import (  # noqa: E402
    BATCH,
    QUIET,
    RECORDS,
    Private,
    TwoNetworks,
    loader,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

RATE, EPOCHS = BATCH / RECORDS, 4
SMALL = {"present": 60, "absent": 600, "seed": 0, "report": False}


def claim(noise=1.0, steps=EPOCHS * RECORDS // BATCH, rate=RATE):
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    return ag.PrivacyClaim(epsilon=accountant.get_epsilon(delta=1e-5), delta=1e-5)


def trainer(folder, *callbacks, epochs=EPOCHS, **options):
    options = {**QUIET, "logger": False, "enable_checkpointing": False, **options}
    return pl.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), default_root_dir=folder, **options
    )


from tests.seeds import unlikely  # noqa: E402


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def without(folder):
    torch.manual_seed(unlikely(0))
    model = Private()
    trainer = pl.Trainer(max_epochs=EPOCHS, default_root_dir=folder, **QUIET)
    trainer.fit(model, loader())
    return model


def audited(folder):
    torch.manual_seed(unlikely(0))
    model = Private()
    audit = AuditCallback(claim=claim(), present=900, absent=3500, seed=0)
    trainer = pl.Trainer(max_epochs=EPOCHS, default_root_dir=folder, callbacks=[audit], **QUIET)
    trainer.fit(model, loader())
    return model, audit


def test_two_lines_more_and_a_bound_near_the_claim(tmp_path):
    """A correct run falls below 90 % of its claim, or is called broken, less than once in 1,000."""
    lines = [inspect.getsource(item).splitlines()[1:-1] for item in (without, audited)]
    changed = [line for line in difflib.ndiff(*lines) if line.startswith("+ ")]
    assert len(changed) == 2  # and the import
    plain = without(tmp_path / "plain")
    model, callback = audited(tmp_path / "audited")
    assert plain.engine.accountant.history == model.engine.accountant.history
    result = callback.result
    assert result.verdict is Verdict.CONSISTENT
    assert result.epsilon_lower > 0.9 * claim().epsilon
    assert result.present + result.absent > 4000
    log = tmp_path / "audited" / "lightning_logs" / "version_0"
    assert callback.folder == log / "audit"
    assert ag.AuditResult.load(log / "audit" / "result.json").verdict is Verdict.CONSISTENT
    assert (log / "audit" / "report.html").read_text().startswith("<!doctype html>")
    recorded = Transcript.load(log / "audit" / "transcript.npz")
    assert recorded.number_of_steps == EPOCHS * RECORDS // BATCH
    # The trainer had begun its first epoch when the audit came; its batches are heard all the same.
    assert recorded.facts.batches.steps == EPOCHS * RECORDS // BATCH
    assert finding(result, "sampling rate").status.value == "pass"
    _has_logged(log, result)


def _has_logged(folder, result):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    logged = events.Scalars("askgauss/audit_epsilon_lower")
    assert logged[-1].value == pytest.approx(result.epsilon_lower, rel=1e-6)
    assert "askgauss/audit/text_summary" in events.Tags()["tensors"]


def test_half_the_noise_is_a_violation_and_an_alarm(tmp_path):
    """The alarm comes at error .001 in a correct run, and here for sure."""
    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback).fit(Private(weaker=0.5), loader())
    assert callback.result.verdict is Verdict.VIOLATION
    callback = AuditCallback(claim=claim(), monitor=True, folder=tmp_path / "watched", **SMALL)
    with pytest.raises(PrivacyAlarm):
        trainer(tmp_path, callback).fit(Private(weaker=0.5), loader())
    assert callback.result.verdict is Verdict.VIOLATION
    written = {item.name for item in (tmp_path / "watched").iterdir()}
    assert {"transcript.npz", "result.json", "watch.json"} <= written
    # The optimizer is left as it was found.
    assert callback.audit is not None
    assert "not attached" in repr(callback.audit)


def test_a_resumed_run_is_audited_as_one(tmp_path):
    first = AuditCallback(claim=claim(), monitor=True, **SMALL)
    checkpoints = pl.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
    begun = trainer(tmp_path, first, checkpoints, epochs=2, enable_checkpointing=True)
    begun.fit(Private(), loader())
    assert first.audit.steps == 32
    # Without a seed: the canaries are those of the checkpoint.
    again = AuditCallback(claim=claim(), monitor=True, present=60, absent=600, report=False)
    saved = tmp_path / "kept" / "last.ckpt"
    trainer(tmp_path, again).fit(Private(), loader(), ckpt_path=saved)
    transcript = again.audit.transcript()
    assert transcript.number_of_steps == 64
    assert transcript.facts.accounted_steps == 64
    assert (again.audit.canaries.member == first.audit.canaries.member).all()
    assert again.result.verdict is not Verdict.VIOLATION
    assert finding(again.result, "step count").status.value == "pass"
    assert finding(again.result, "weights between steps").status.value == "pass"

    class Forgetful(Private):
        def on_load_checkpoint(self, checkpoint):
            """As a module that nobody told to keep its accountant."""

    callback = AuditCallback(claim=claim(), monitor=True, **SMALL)
    with pytest.raises(RecordingError, match="accountant"):
        trainer(tmp_path, callback).fit(Forgetful(), loader(), ckpt_path=saved)
    # A checkpoint written without the audit: it joins late, and says so.
    plain = pl.callbacks.ModelCheckpoint(tmp_path / "plain", save_last=True)
    begun = trainer(tmp_path, plain, epochs=1, enable_checkpointing=True)
    begun.fit(Private(), loader())
    late = AuditCallback(claim=claim(), **SMALL)
    with pytest.warns(AskGaussWarning, match="16 steps"):
        trainer(tmp_path, late, epochs=2).fit(
            Private(), loader(), ckpt_path=tmp_path / "plain" / "last.ckpt"
        )
    assert late.audit.steps == 16


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_mixed_precision(tmp_path, precision):
    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback, precision=precision, epochs=2).fit(Private(), loader())
    dtype = "bfloat16" if precision == "bf16-true" else "float32"
    assert callback.audit.transcript().facts.precision == (dtype,)
    assert callback.result.verdict not in (Verdict.VIOLATION, Verdict.INVALID)
    if precision == "bf16-mixed":
        found = finding(callback.result, "record contributions")
        assert found.status.value == "pass"
        assert "bfloat16" in found.summary
        assert "raises epsilon from" in found.summary


def test_accumulation_by_the_trainer(tmp_path):
    """Opacus allows it for batches of fixed size; a step is then made of two."""
    callback = AuditCallback(claim=claim(), **SMALL)
    made = trainer(tmp_path, callback, accumulate_grad_batches=2, epochs=2)
    made.fit(Private(poisson=False), loader(poisson=False))
    assert callback.audit.steps == 16
    assert "which is not Poisson sampling" in " ".join(callback.audit.transcript().facts.notes)


def test_batches_split_for_memory(tmp_path):
    class Split(Private):
        def configure_optimizers(self):
            private = super().configure_optimizers()
            fitting = self.trainer.fit_loop._combined_loader
            fitting.flattened = [
                wrap_data_loader(
                    data_loader=fitting.flattened[0], max_batch_size=24, optimizer=private
                )
            ]
            return private

    callback = AuditCallback(claim=claim(), **SMALL)
    made = trainer(tmp_path, callback, max_steps=-1, epochs=2)
    made.fit(Split(), loader())
    assert callback.audit.steps > 10
    assert callback.result.verdict is not Verdict.VIOLATION
    assert finding(callback.result, "step count").status.value == "pass"


def test_one_private_optimizer_of_two(tmp_path):
    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback, epochs=2).fit(TwoNetworks(), loader())
    facts = callback.audit.transcript().facts
    assert (callback.audit.steps, facts.weights.otherwise) == (32, 0)
    # Whether the generator sees records past the critic cannot be told, and is not called fine.
    parts = {part.name: part.status for part in callback.result.scope}
    assert "fine" not in parts.get("trained parameters", "not tested")
    assert callback.result.verdict is not Verdict.VIOLATION


def test_early_stopping_ends_the_audit_too(tmp_path):
    class Measured(Private):
        def training_step(self, batch, batch_idx):
            self.log("never better", 1.0)
            return super().training_step(batch, batch_idx)

    callback = AuditCallback(claim=claim(), **SMALL)
    stop = pl.callbacks.EarlyStopping(
        "never better", patience=1, check_on_train_epoch_end=True, mode="min"
    )
    trainer(tmp_path, callback, stop, epochs=9).fit(Measured(), loader())
    assert callback.audit.steps == 32
    assert callback.result.verdict is not Verdict.VIOLATION


def test_a_trainer_without_opacus_is_said(tmp_path):
    class Plain(Private):
        def configure_optimizers(self):
            return torch.optim.SGD(self.layer.parameters(), lr=0.01)

    with pytest.raises(InvalidArgumentError, match="nothing private"):
        trainer(tmp_path, AuditCallback(claim=claim()), epochs=1).fit(Plain(), loader())


def test_two_audits_of_one_optimizer_are_refused(tmp_path):
    callbacks = [AuditCallback(claim=claim(), optimizer=n, **SMALL) for n in (None, 0)]
    with pytest.raises(RecordingError, match="has an audit"):
        trainer(tmp_path, *callbacks, epochs=1).fit(Private(), loader())
    callback = AuditCallback(claim=claim(), optimizer=3)
    with pytest.raises(InvalidArgumentError, match="below 1"):
        trainer(tmp_path, callback, epochs=1).fit(Private(), loader())


def test_a_callback_added_after_the_first_steps_says_so(tmp_path):
    class Late(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 0:
                trainer.callbacks.append(late)

    late = AuditCallback(claim=claim(), **SMALL)
    with pytest.warns(AskGaussWarning, match="16 steps"):
        trainer(tmp_path, Late(), epochs=2).fit(Private(), loader())
    assert late.audit.steps == 16


def test_a_logger_that_fails_ends_nothing(tmp_path):
    class Broken(pl.loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise ConnectionError("no server")

    callback = AuditCallback(claim=claim(), monitor=True, **SMALL)
    broken = Broken(tmp_path)
    with pytest.warns(AskGaussWarning, match="ConnectionError"):
        trainer(tmp_path, callback, epochs=1, logger=broken, log_every_n_steps=1000).fit(
            Private(), loader()
        )
    assert callback.result is not None


def test_a_release_never_tried_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TRIED", ((9, 0), (9, 1)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback = AuditCallback(claim=claim(), **SMALL)
        trainer(tmp_path, callback, epochs=1).fit(Private(), loader())
    assert any("never tried" in str(item.message) for item in caught)
    assert callback.audit.steps == 16


def test_the_other_lightning_takes_it_too(tmp_path):
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = Private()

        def training_step(self, batch, batch_idx):
            return self.inner.training_step(batch, batch_idx)

        def configure_optimizers(self):
            self.inner.trainer = self.trainer
            return self.inner.configure_optimizers()

    callback = AuditCallback(claim=claim(), **SMALL)
    made = other.Trainer(
        max_epochs=1,
        callbacks=[callback],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        **QUIET,
    )
    made.fit(Other(), loader())
    assert callback.audit.steps == 16


class Clamps(pl.Callback):
    """Writes to the weights between two steps, with or without a word."""

    def __init__(self, callback, declared):
        self.callback, self.declared = callback, declared

    def on_train_batch_end(self, trainer, pl_module, *_):
        with (
            self.callback.audit.postprocessing() if self.declared else contextlib.nullcontext(),
            torch.no_grad(),
        ):
            for item in pl_module.parameters():
                item.clamp_(-0.05, 0.05)


@pytest.mark.parametrize("declared", [True, False])
def test_weights_written_between_steps_are_declared_by_the_callback(tmp_path, declared):
    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback, Clamps(callback, declared), epochs=1).fit(Private(), loader())
    found = finding(callback.result, "weights between steps")
    assert found.status.value == ("pass" if declared else "fail")
    assert ("with callback.audit.postprocessing():" in found.remedy) is not declared
    assert (callback.result.verdict is Verdict.INVALID) is not declared


class Stops(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            raise KeyboardInterrupt


def test_an_interrupted_training_is_let_go_of(tmp_path):
    callback, module = AuditCallback(claim=claim(), **SMALL), Private()
    run = trainer(tmp_path, callback, Stops(), epochs=1)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        run.fit(module, loader())
    optimizer = module.optimizers(use_pl_optimizer=False)
    assert callback.audit.steps == 3
    assert "add_noise" not in vars(optimizer)
    assert optimizer not in canary_audit._attached
