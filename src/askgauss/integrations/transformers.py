"""Hugging Face: a callback that audits the private optimizer of a ``transformers.Trainer``.

::

    from askgauss.integrations.transformers import AuditCallback

    audit = AuditCallback(claim=claim, seed=0)
    trainer.add_callback(audit)
    trainer.train()
    print(audit.result)

Where Opacus comes in is the trainer's affair, usually in its `create_optimizer`; the callback finds
the optimizer that `make_private` returned inside accelerate's wrapper. With accelerate alone,
`CanaryAudit` takes what ``accelerator.prepare`` returned as it is.
"""

from __future__ import annotations

import inspect
import os
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import TextCanaries
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError, MissingExtraError
from askgauss.integrations.opacus.canary_audit import read_state
from askgauss.integrations.trainer_audit import TrainerAudit, warn_untried
from askgauss.loggers import Logger, MLflow, TensorBoard, WeightsAndBiases

try:
    import transformers
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.transformers needs transformers and accelerate: "
        "pip install 'askgauss[transformers]'."
    ) from error

__all__ = ["AuditCallback", "text_losses"]

# Releases that the tests attach to; of others a warning is given.
_TRIED = ((5, 22), (5, 22))
# Beside the trainer's own files in each of its checkpoints.
_FILE = "askgauss_audit.npz"


class AuditCallback(TrainerAudit, transformers.TrainerCallback):  # type: ignore[misc]
    """Audits the Opacus optimizer of a Hugging Face trainer.

    Canaries are inserted from the first step of `train` to its last. Their state is written into
    each checkpoint folder of the trainer, and taken up again from there when the trainer resumes.
    At the end ``transcript.npz``, ``result.json`` and ``report.html`` are written, and what
    ``report_to`` names gets bound, findings and report.

    An exception ends `train` without a word to callbacks: `result` then speaks of the steps until
    there, and `finish` writes the files. No canary is inserted in what is trained afterwards. Its
    arguments are those of `TrainerAudit`.
    """

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Attach, and go on from the checkpoint where the trainer does."""
        warn_untried("transformers", transformers.__version__, _TRIED)
        folder = Path(args.output_dir)
        if state.global_step > 0:
            given = getattr(args, "resume_from_checkpoint", None)
            places = [Path(given)] if isinstance(given, str) else []
            for place in (*places, folder / f"checkpoint-{state.global_step}"):
                if (place / _FILE).is_file():
                    self._restore(read_state(place / _FILE))
                    break
        self._begin(
            optimizers=[optimizer],
            data_loader=train_dataloader,
            model=model,
            done=int(state.global_step),
            planned=int(state.max_steps) if state.max_steps > 0 else None,
            folder=folder,
            loggers=tuple(filter(None, (_adapted(name, folder) for name in args.report_to))),
            first_rank=bool(state.is_world_process_zero),
        )

    def _ended(self) -> Callable[[], bool] | None:
        running = _frame_of_train()
        return None if running is None else lambda: _frame_of_train() is not running

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Attach late, where the callback was added to a training that had begun."""
        if not self._attached:
            self.on_train_begin(args, state, control, **others)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the audit's state beside what the trainer has just saved."""
        place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self._audit is None or not self._first_rank:
            return
        if not place.is_dir():
            warnings.warn(
                f"Expected the trainer's checkpoint in {str(place)!r}, found none: the audit's "
                "state was not saved with it.",
                AskGaussWarning,
                stacklevel=2,
            )
            return
        # The trainer removes and moves such folders, in which nothing may be held.
        self._audit.save(place / _FILE, hold=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write files, tell loggers."""
        self.finish()


def _frame_of_train() -> types.FrameType | None:
    """The call of ``Trainer.train`` that this is called in."""
    code = inspect.unwrap(transformers.Trainer.train).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _adapted(name: str, folder: Path) -> Logger | None:
    """A logger for one of the names in ``report_to``; None for those not known here.

    The trainer closes its own TensorBoard writer before the audit ends, so that this one writes
    beside it.
    """
    if name == "tensorboard":
        base = os.getenv("TENSORBOARD_LOGGING_DIR")
        return TensorBoard((folder / "runs" if base is None else Path(base).expanduser()) / "audit")
    if name == "mlflow":
        return MLflow()
    return WeightsAndBiases() if name == "wandb" else None


def text_losses(
    model: Any, tokenizer: Any, canaries: TextCanaries, *, batch_size: int = 64
) -> NDArray[np.float64]:
    """The loss of a causal language model on the suffix of every canary after its prefix.

    Args:
        model: The model, as it is released.
        tokenizer: Its tokenizer, with the canaries' own tokens in it.
        canaries: Texts, present or not.
        batch_size: How many to ask at a time.

    Returns:
        The sum over the tokens of each suffix, for `TextCanaries.scores`.

    Raises:
        InvalidArgumentError: The tokenizer does not know the canaries' tokens, or a suffix has no
            token before it that it could be predicted from.
    """
    _validate.integer(1, batch_size=batch_size)
    unknown = getattr(tokenizer, "unk_token_id", None)
    for token in canaries.tokens:
        if tokenizer.convert_tokens_to_ids(token) in (None, unknown):
            raise InvalidArgumentError(
                f"Expected a tokenizer that knows {token!r}, got one that does not. Call "
                "tokenizer.add_tokens(list(canaries.tokens)) and model.resize_token_embeddings(...)"
                " before training."
            )
    rows = [
        _tokens(tokenizer, prefix, text)
        for prefix, text in zip(canaries.prefixes, canaries.texts, strict=True)
    ]
    training = model.training
    model.eval()
    try:
        found = [
            _losses_of(model, rows[begin : begin + batch_size])
            for begin in range(0, len(rows), batch_size)
        ]
    finally:
        model.train(training)
    return np.concatenate(found)


def _tokens(tokenizer: Any, prefix: str, text: str) -> tuple[list[int], int]:
    """The tokens of a text, and how many of them are its prefix's."""
    tokens = list(tokenizer(text)["input_ids"])
    before = list(tokenizer(prefix)["input_ids"])
    shared = 0
    while shared < min(len(tokens), len(before)) and tokens[shared] == before[shared]:
        shared += 1
    if shared in (0, len(tokens)):
        raise InvalidArgumentError(
            f"Expected {text!r} to begin with the tokens of {prefix!r} and to go on, got "
            f"{len(tokens)} tokens of which {shared} are shared. Give it a prefix that the "
            "tokenizer keeps apart."
        )
    return tokens, shared


def _losses_of(model: Any, rows: list[tuple[list[int], int]]) -> NDArray[np.float64]:
    device = next(model.parameters()).device
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    seen = torch.zeros_like(tokens)
    scored = torch.zeros_like(tokens, dtype=torch.bool)
    for index, (row, begin) in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
        seen[index, : len(row)] = 1
        scored[index, begin : len(row)] = True
    tokens, seen, scored = tokens.to(device), seen.to(device), scored.to(device)
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=seen).logits[:, :-1].float()
    likely = torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    summed = torch.where(scored[:, 1:], -likely, torch.zeros_like(likely)).sum(dim=1)
    return np.asarray(summed.cpu().double().numpy())
