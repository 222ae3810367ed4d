"""Lightning: a callback that audits the private optimizer of a Trainer.

::

    from askgauss.integrations.lightning import AuditCallback

    audit = AuditCallback(claim=claim, seed=0)
    Trainer(..., callbacks=[audit]).fit(module)
    print(audit.result)

Where Opacus comes in is the module's affair, usually in its `configure_optimizers`; the callback
finds the optimizer that `make_private` returned wherever the trainer keeps it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askgauss.exceptions import MissingExtraError
from askgauss.integrations.trainer_audit import TrainerAudit, warn_untried
from askgauss.loggers import Logger, MLflow, TensorBoard, WeightsAndBiases

try:
    import lightning.pytorch as pytorch_lightning
except ImportError:
    try:
        import pytorch_lightning
    except ImportError as error:
        raise MissingExtraError(
            "askgauss.integrations.lightning needs Lightning: pip install 'askgauss[lightning]'."
        ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AuditCallback"]

# Releases that the tests attach to; of others a warning is given.
_TRIED = ((2, 6), (2, 6))


class AuditCallback(TrainerAudit, pytorch_lightning.Callback):  # type: ignore[misc]
    """Audits the Opacus optimizer of a Lightning trainer.

    Canaries are inserted from the first step of `fit` to its last. Their state is part of the
    trainer's own checkpoints, so that a run resumed with ``ckpt_path`` goes on being audited. At
    the end, or when an exception ends the training, ``transcript.npz``, ``result.json`` and
    ``report.html`` are written, and the trainer's loggers get bound, findings and report.

    It also works with the separate package ``pytorch_lightning``, whose trainers ask a callback
    for nothing but its methods. Its arguments are those of `TrainerAudit`.
    """

    @property
    def state_key(self) -> str:
        """Under which the state is kept in checkpoints: one for each optimizer."""
        return f"askgauss.AuditCallback{{optimizer={self._optimizer}}}"

    def state_dict(self) -> dict[str, Any]:
        """What goes into the trainer's checkpoint."""
        return self._state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint held; taken up when the training begins."""
        self._restore(state_dict)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Say so where this release of Lightning was never tried."""
        if stage == "fit":
            warn_untried("Lightning", pytorch_lightning.__version__, _TRIED)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach."""
        planned = trainer.estimated_stepping_batches
        self._begin(
            optimizers=trainer.optimizers,
            data_loader=trainer.train_dataloader,
            model=pl_module,
            done=int(trainer.global_step),
            planned=int(planned) if math.isfinite(planned) and planned > 0 else None,
            folder=Path(trainer.log_dir or trainer.default_root_dir),
            loggers=tuple(_adapted(item) for item in trainer.loggers),
            first_rank=bool(trainer.is_global_zero),
        )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Attach late, where the callback was added to a training that had begun."""
        if not self._attached:
            self.on_train_start(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write files, tell loggers."""
        self.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same for the steps until then."""
        self.finish(exception)


class _Numbers:
    """A logger of Lightning that is not known here: it takes numbers, and no more."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """By the method every logger of Lightning has."""
        self._logger.log_metrics(dict(values), step)

    def text(self, name: str, content: str, *, step: int) -> None:
        """Nowhere to go."""

    def document(self, path: Path) -> None:
        """Nowhere to go."""


def _adapted(logger: Any) -> Logger:
    kinds = {kind.__name__ for kind in type(logger).__mro__}
    if "TensorBoardLogger" in kinds:
        return TensorBoard(logger.experiment)
    if "MLFlowLogger" in kinds:
        return MLflow(logger.experiment, logger.run_id)
    if "WandbLogger" in kinds:
        return WeightsAndBiases(logger.experiment)
    return _Numbers(logger)
