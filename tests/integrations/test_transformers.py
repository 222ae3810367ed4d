"""Hugging Face: the callback attaches, records, resumes, writes and logs."""

from __future__ import annotations

import difflib
import inspect

import pytest
import torch
from opacus.accountants import PRVAccountant

import askgauss as ag
from askgauss.canaries import TextCanaries
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError, PrivacyAlarm, RecordingError
from askgauss.integrations.opacus import CanaryAudit, canary_audit
from askgauss.recording.transcript import Transcript
from askgauss.results import Verdict

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from askgauss.integrations import transformers as module  # noqa: E402
from askgauss.integrations.transformers import AuditCallback, text_losses  # noqa: E402
from tests.integrations.interrupts import counted  # noqa: E402
from tests.integrations.lightning_runs import weaken  # noqa: E402
from tests.integrations.transformers_runs import (  # noqa: E402
    BATCH,
    RECORDS,
    Lines,
    PrivateTrainer,
    arguments,
    frozen_below,
    small_gpt2,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

RATE, STEPS = BATCH / RECORDS, 64
SMALL = {"present": 60, "absent": 600, "seed": 0, "report": False}


def claim(noise=1.0, steps=STEPS, rate=RATE):
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    return ag.PrivacyClaim(epsilon=accountant.get_epsilon(delta=1e-5), delta=1e-5)


def trainer(folder, *callbacks, steps=STEPS, kind=PrivateTrainer, model=None, **options):
    return kind(
        model=frozen_below(small_gpt2()) if model is None else model,
        args=arguments(folder, steps, **options),
        train_dataset=Lines(),
        callbacks=list(callbacks),
    )


class Weaker(PrivateTrainer):
    def create_optimizer(self, model=None):
        made = self.optimizer
        optimizer = super().create_optimizer(model)
        if made is None:
            weaken(optimizer, 0.5)
        return optimizer


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def without(folder):
    model = frozen_below(small_gpt2(width=64))
    trainer = PrivateTrainer(model, arguments(folder, STEPS), train_dataset=Lines())
    trainer.train()
    return trainer


def audited(folder):
    model = frozen_below(small_gpt2(width=64))
    trainer = PrivateTrainer(model, arguments(folder, STEPS), train_dataset=Lines())
    audit = AuditCallback(claim=claim(), present=900, absent=3100, seed=0, report=False)
    trainer.add_callback(audit)
    trainer.train()
    return trainer, audit


def test_two_lines_more_and_a_bound_near_the_claim(tmp_path):
    """A correct run falls below 90 % of its claim, or is called broken, less than once in 1,000."""
    lines = [inspect.getsource(item).splitlines()[1:-1] for item in (without, audited)]
    changed = [line for line in difflib.ndiff(*lines) if line.startswith("+ ")]
    assert len(changed) == 2  # and the import
    plain = without(tmp_path / "plain")
    run, callback = audited(tmp_path / "audited")
    assert plain.engine.accountant.history == run.engine.accountant.history
    result = callback.result
    assert result.verdict is Verdict.CONSISTENT
    assert result.epsilon_lower > 0.9 * claim().epsilon
    folder = tmp_path / "audited" / "audit"
    assert callback.folder == folder
    assert ag.AuditResult.load(folder / "result.json").verdict is Verdict.CONSISTENT
    recorded = Transcript.load(folder / "transcript.npz")
    assert recorded.number_of_steps == STEPS
    # The trainer clips once more, by its own norm, before the private step: that reaches nothing.
    assert run.args.max_grad_norm == 1.0
    assert recorded.facts.weights.otherwise == 0
    assert recorded.facts.batches.steps == STEPS
    assert finding(result, "sampling rate").status.value == "pass"


def test_half_the_noise_is_a_violation_and_an_alarm(tmp_path):
    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback, kind=Weaker, steps=32, report_to=["tensorboard"]).train()
    assert callback.result.verdict is Verdict.VIOLATION
    assert list((tmp_path / "runs" / "audit").glob("events*"))
    callback = AuditCallback(claim=claim(), monitor=True, folder=tmp_path / "watched", **SMALL)
    with pytest.raises(PrivacyAlarm):
        trainer(tmp_path, callback, kind=Weaker).train()
    # Nobody told the callback; what was recorded is there all the same.
    assert callback.result.verdict is Verdict.VIOLATION
    callback.finish()
    written = {item.name for item in (tmp_path / "watched").iterdir()}
    assert {"transcript.npz", "result.json", "watch.json"} <= written


def test_a_resumed_run_is_audited_as_one(tmp_path):
    first = AuditCallback(claim=claim(), **SMALL)
    kept = {"save_strategy": "steps", "save_steps": 16}
    trainer(tmp_path, first, steps=16, **kept).train()
    saved = tmp_path / "checkpoint-16"
    assert (saved / "askgauss_audit.npz").is_file()
    again = AuditCallback(claim=claim(), present=60, absent=600, report=False)
    trainer(tmp_path, again, steps=32).train(resume_from_checkpoint=str(saved))
    transcript = again.audit.transcript()
    assert (transcript.number_of_steps, transcript.facts.accounted_steps) == (32, 32)
    assert (again.audit.canaries.member == first.audit.canaries.member).all()
    assert again.result.verdict is not Verdict.VIOLATION
    assert finding(again.result, "weights between steps").status.value == "pass"

    class Forgetful(PrivateTrainer):
        def _load_optimizer_and_scheduler(self, checkpoint):
            transformers.Trainer._load_optimizer_and_scheduler(self, checkpoint)

    callback = AuditCallback(claim=claim(), **SMALL)
    forgetful = trainer(tmp_path, callback, steps=32, kind=Forgetful)
    with pytest.raises(RecordingError, match="accountant"):
        forgetful.train(resume_from_checkpoint=str(saved))
    callback.finish()
    # A checkpoint without the audit's part: it joins late, and says so.
    (saved / "askgauss_audit.npz").unlink()
    late = AuditCallback(claim=claim(), **SMALL)
    with pytest.warns(AskGaussWarning, match="16 steps"):
        trainer(tmp_path, late, steps=20).train(resume_from_checkpoint=str(saved))
    assert late.audit.steps == 4


def test_mixed_precision_and_early_stopping(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = state.global_step >= 16

    callback = AuditCallback(claim=claim(), **SMALL)
    trainer(tmp_path, callback, Stop(), bf16=True).train()
    assert callback.audit.steps == 16
    assert callback.result.verdict is Verdict.INCONCLUSIVE, str(callback.result)
    found = finding(callback.result, "record contributions")
    assert found.status.value == "pass"
    assert "bfloat16" in found.summary
    assert "raises epsilon from" in found.summary


def test_gradient_accumulation(tmp_path):
    """Opacus allows it for batches of fixed size; the trainer divides each loss by their number."""

    class FillsUp(PrivateTrainer):
        def get_train_dataloader(self):
            chance = torch.Generator().manual_seed(0)
            return torch.utils.data.DataLoader(
                self.train_dataset, BATCH, shuffle=True, generator=chance
            )

        def create_optimizer(self, model=None):
            optimizer = super().create_optimizer(model)
            self.hooks.allow_grad_accumulation()
            return optimizer

        def training_step(self, model, inputs, num_items_in_batch=None):
            return transformers.Trainer.training_step(self, model, inputs, num_items_in_batch)

    class Clears(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **others):
            optimizer.optimizer.zero_grad()

    callback = AuditCallback(claim=claim(), **SMALL)
    made = trainer(
        tmp_path, callback, Clears(), kind=FillsUp, steps=12, gradient_accumulation_steps=2
    )
    made.train()
    assert callback.audit.steps == 12
    assert callback.result.verdict is not Verdict.VIOLATION, str(callback.result)


def test_a_trainer_without_opacus_is_said(tmp_path):
    with pytest.raises(InvalidArgumentError, match="nothing private"):
        trainer(tmp_path, AuditCallback(claim=claim()), kind=transformers.Trainer).train()


def test_two_audits_a_late_one_and_a_release_never_tried(tmp_path, monkeypatch):
    callbacks = [AuditCallback(claim=claim(), **SMALL) for _ in range(2)]
    with pytest.raises(RecordingError, match="has an audit"):
        trainer(tmp_path, *callbacks, steps=2).train()
    callbacks[0].finish()
    late = AuditCallback(claim=claim(), **SMALL)

    class Late(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            if state.global_step == 3:
                made.add_callback(late)

    monkeypatch.setattr(module, "_TRIED", ((9, 0), (9, 1)))
    made = trainer(tmp_path, Late(), steps=8)
    with pytest.warns(AskGaussWarning) as caught:
        made.train()
    said = " ".join(str(item.message) for item in caught)
    assert "has taken 3 steps" in said
    assert "never tried" in said
    assert late.audit.steps == 5


def test_accelerate_alone_needs_no_callback(tmp_path):
    """What `Accelerator.prepare` returned is unwrapped by the audit."""
    accelerate = pytest.importorskip("accelerate")
    made = trainer(tmp_path, steps=1)
    optimizer, loader = made.create_optimizer(), made.get_train_dataloader()
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(made.model, optimizer)
    with CanaryAudit(optimizer, data_loader=loader, model=model, present=60, absent=600) as audit:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch).loss)
            optimizer.step()
    assert audit.steps == RECORDS // BATCH
    assert audit.transcript().facts.weights.otherwise == 0


def adapted(scaling=None):
    """LoRA on GPT-2's own kind of layer; dead where its output counts for nothing."""
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], lora_dropout=0.0)
    model = peft.get_peft_model(small_gpt2(), options)
    for layer in model.modules():
        if scaling is not None and isinstance(getattr(layer, "scaling", None), dict):
            layer.scaling = dict.fromkeys(layer.scaling, scaling)
    return model


def test_adapters_are_audited_and_dead_ones_named(tmp_path):
    callback = AuditCallback(claim=claim(steps=8), present=40, absent=300, seed=0, report=False)
    trainer(tmp_path, callback, steps=8, model=adapted()).train()
    facts = callback.audit.transcript().facts
    assert all("lora" in name for name in facts.tensors)
    assert (facts.outside, facts.outside_moved) == ((), ())
    assert finding(callback.result, "weights that never train").status.value == "pass"
    dead = AuditCallback(claim=claim(steps=8), present=40, absent=300, seed=0, report=False)
    trainer(tmp_path, dead, steps=8, model=adapted(scaling=0.0)).train()
    found = finding(dead.result, "weights that never train")
    assert found.status.value == "warn"
    assert "nothing was learned" in found.summary


def test_losses_of_texts_are_those_of_the_model_alone():
    """The oracle: one text at a time, its tokens one by one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"w{index}" for index in range(20)]
    known = {word: index for index, word in enumerate(["<pad>", "<unk>", *words])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>"
    )
    model = small_gpt2(words=len(known)).train()
    canaries = TextCanaries.random_words(words, length=5, given=2, count=7, seed=0)
    losses = text_losses(model, tokenizer, canaries, batch_size=3)
    assert model.training
    for text, loss in zip(canaries.texts, losses, strict=True):
        tokens = torch.tensor([[known[word] for word in text.split()]])
        with torch.no_grad():
            likely = torch.log_softmax(model(tokens).logits[0], dim=-1)
        expected = -sum(float(likely[at - 1, tokens[0, at]]) for at in range(2, 5))
        assert loss == pytest.approx(expected, rel=1e-4)
    added = TextCanaries.new_tokens(["w1 ", "w2 "], count=6, seed=0)
    with pytest.raises(InvalidArgumentError, match="add_tokens"):
        text_losses(model, tokenizer, added)
    tokenizer.add_tokens(list(added.tokens))
    model.resize_token_embeddings(len(tokenizer))
    assert text_losses(model, tokenizer, added).shape == (6,)
    apart = TextCanaries(("",) * 4, ("w1", "w2", "w3", "w4"), seed=0)
    with pytest.raises(InvalidArgumentError, match="prefix"):
        text_losses(model, tokenizer, apart)


class Stops(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_an_interrupted_training_is_let_go_of(tmp_path):
    """Nobody tells a callback: what is trained afterwards gets no canaries all the same."""
    callback = AuditCallback(claim=claim(), **SMALL)
    run = trainer(tmp_path, callback, steps=8)
    run.add_callback(Stops())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    optimizer = run.optimizer.optimizer if hasattr(run.optimizer, "optimizer") else run.optimizer
    with counted() as calls:
        for rows in run.get_train_dataloader():
            optimizer.zero_grad()
            run.model(**rows).loss.backward()
            optimizer.step()
            break
    assert calls == []
    assert "add_noise" not in vars(optimizer)
    assert optimizer not in canary_audit._attached
    assert callback.audit.steps == 3
