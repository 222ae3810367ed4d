"""What the callbacks of all trainers share: one audit, its checkpoints, its files, its loggers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError, RecordingError
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.integrations.opacus.opacus_versions import DPOptimizer
from askgauss.integrations.opacus.run_description import unwrapped
from askgauss.loggers import Logger, log_numbers, log_result
from askgauss.monitor import Monitor
from askgauss.results import AuditResult
from askgauss.sampling import Scheme

__all__ = ["TrainerAudit", "warn_untried"]


class _TrainerRun(CanaryAudit):
    """The audit of a trainer, whose user reaches it through the callback."""

    _declare = "callback.audit.postprocessing()"


class TrainerAudit:
    """One audit of the private optimizer of a trainer, from its first step to its report.

    Args:
        claim: What the run claims; without it there is a bound and no verdict.
        canaries: How many, or canaries made by you; see `CanaryAudit`.
        present: How many present canaries, instead of ``canaries``.
        absent: How many absent canaries, instead of ``canaries``.
        inject: Where canaries go in; see `CanaryAudit`.
        seed: Root of the audit's random choices; drawn and recorded if not given.
        optimizer: Which of the trainer's optimizers, from 0; needed where several are private.
        accountant: The run's accountant or PrivacyEngine; found behind the optimizer if not given.
        sampling_rate: The run's sampling rate, where neither loader nor accountant tells.
        sampling: How the loader draws its batches, where that is not Poisson sampling.
        observation: How steps are observed; see `CanaryAudit`.
        monitor: Watches every step, and may stop the run: a monitor, or True for one that also
            keeps ``watch.json`` in the folder and tells the loggers.
        folder: Where ``transcript.npz``, ``result.json`` and ``report.html`` go; a folder ``audit``
            beside the trainer's own files if not given.
        report: Whether to write ``report.html``, which takes some seconds.
        loggers: Further loggers, beside the trainer's own; see `askgauss.loggers`.
        delta: Where the bound is stated, if there is no claim to say so.
    """

    def __init__(
        self,
        *,
        claim: PrivacyClaim | None = None,
        canaries: int | DiracCanaries | BlockCanaries | None = None,
        present: int | None = None,
        absent: int | None = None,
        inject: Literal["auto", "sum", "sample"] = "auto",
        seed: int | None = None,
        optimizer: int | None = None,
        accountant: Any = None,
        sampling_rate: float | None = None,
        sampling: Scheme | None = None,
        observation: Observation | None = None,
        monitor: Monitor | bool | None = None,
        folder: str | os.PathLike[str] | None = None,
        report: bool = True,
        loggers: Sequence[Logger] = (),
        delta: float = 1e-5,
    ) -> None:
        super().__init__()
        if optimizer is not None:
            _validate.integer(0, optimizer=optimizer)
        _validate.probability(delta=delta)
        given: Sequence[object] = loggers
        for logger in given:
            if not isinstance(logger, Logger):
                hint = "It needs numbers(), text() and document(): see askgauss.loggers."
                raise _validate.fail("loggers", logger, "to be loggers", hint)
        self._claim, self._delta = claim, float(delta)
        self._seed, self._optimizer, self._monitor = seed, optimizer, monitor
        # What is passed on to the audit as it is.
        self._options: dict[str, Any] = {
            "canaries": canaries,
            "present": present,
            "absent": absent,
            "inject": inject,
            "accountant": accountant,
            "sampling_rate": sampling_rate,
            "sampling": sampling,
            "observation": observation,
        }
        self._folder = None if folder is None else Path(folder)
        self._report = report
        self._own_loggers = tuple(loggers)
        self._loggers: tuple[Logger, ...] = ()
        self._audit: CanaryAudit | None = None
        self._first_rank = True
        self._result: AuditResult | None = None
        self._pending: dict[str, Any] | None = None

    @property
    def _attached(self) -> bool:
        return self._audit is not None and self._audit._entered

    @property
    def audit(self) -> CanaryAudit | None:
        """The audit of the optimizer, from the beginning of the training on."""
        return self._audit

    @property
    def folder(self) -> Path | None:
        """Where the files go, from the beginning of the training on."""
        return self._folder

    @property
    def result(self) -> AuditResult | None:
        """The result at the end of the training, or of the steps so far; None before the first."""
        if self._result is not None or self._audit is None or self._audit.steps == 0:
            return self._result
        return self._judged(self._audit)

    def _judged(self, audit: CanaryAudit) -> AuditResult:
        if self._claim is None:
            return audit.result(delta=self._delta)
        return audit.result(claim=self._claim)

    def _begin(
        self,
        *,
        optimizers: Sequence[Any],
        data_loader: Any,
        model: nn.Module,
        done: int,
        planned: int | None,
        folder: Path,
        loggers: tuple[Logger, ...],
        first_rank: bool,
    ) -> None:
        """Attach to the private optimizer, and resume from a checkpoint where one was restored.

        Args:
            optimizers: All optimizers, as the trainer keeps them.
            data_loader: The training loader, or whatever the trainer has in its place.
            model: The model, for the names of its parameters and those that train outside.
            done: Optimizer steps taken before, in the trainer's count.
            planned: Optimizer steps in all, where that is known.
            folder: Where the trainer keeps its files.
            loggers: The trainer's own, adapted.
            first_rank: Whether this process writes files.
        """
        if self._attached:
            self._leave(RecordingError("The training before did not end."))
        if self._folder is None:
            self._folder = folder / "audit"
        self._first_rank, self._result = first_rank, None
        self._loggers = (*loggers, *self._own_loggers) if first_rank else ()
        optimizer = self._chosen(optimizers)
        resumed = self._pending is not None
        audit = _TrainerRun(
            optimizer,
            data_loader if hasattr(data_loader, "batch_sampler") else None,
            self._claim,
            **self._options,
            planned_steps=planned,
            seed=self._kept_seed() if self._seed is None else self._seed,
            # What other optimizers train may see records only through what is private, as a
            # generator does behind a private critic: whether it does is not known here.
            model=model if len(optimizers) == 1 else None,
            monitor=self._watching(),
        )
        if self._pending is not None:
            audit.load_state_dict(self._pending)
            self._pending = None
        elif done > 0:
            warnings.warn(
                f"The audit joins a training that has taken {done:,} steps, and knows "
                "nothing of those: its bound is one on the steps from here on. Give the callback "
                "to the trainer before the first step, or resume from a checkpoint written with "
                "it.",
                AskGaussWarning,
                stacklevel=4,
            )
        # A trainer's estimate counts batches that are split for memory, and steps before the audit.
        audit._planned_end = None if self._claim is None else self._claim.steps
        audit._ended = self._ended()
        self._audit = audit
        audit.__enter__()
        if resumed and done != audit.steps:
            # Not an error: the trainer may count otherwise, and weights and accountant are held
            # against the checkpoint in the first step.
            warnings.warn(
                f"The trainer resumes after {done:,} steps, the audit after {audit.steps:,}.",
                AskGaussWarning,
                stacklevel=4,
            )

    def _ended(self) -> Callable[[], bool] | None:
        """What tells that the training is over, for a trainer that may end without saying so."""
        return None

    def _kept_seed(self) -> int | None:
        """The seed of the checkpoint to go on from, so that the canaries are the same."""
        if self._pending is None or isinstance(
            self._options["canaries"], (DiracCanaries, BlockCanaries)
        ):
            return None
        kept = self._pending.get("audit")
        return kept.get("seed") if isinstance(kept, Mapping) else None

    def _watching(self) -> Monitor | bool | None:
        if self._monitor is not True:
            return self._monitor
        return Monitor(
            claim=self._claim,
            folder=self._folder if self._first_rank else None,
            log=self._log_live,
            delta=self._delta,
        )

    def _log_live(self, numbers: Mapping[str, float], step: int) -> None:
        log_numbers(numbers, self._loggers, step=step)

    def _chosen(self, optimizers: Sequence[Any]) -> Any:
        inner = [unwrapped(item) for item in optimizers]
        if self._optimizer is not None:
            if self._optimizer >= len(inner):
                raise _validate.fail(
                    "optimizer", self._optimizer, f"to be below {len(inner)}", "Count from 0."
                )
            return inner[self._optimizer]
        private = [item for item in inner if isinstance(item, DPOptimizer)]
        if len(private) == 1:
            return private[0]
        if not private:
            names = ", ".join(type(item).__name__ for item in inner) or "none"
            raise InvalidArgumentError(
                f"Expected a trainer with an Opacus optimizer, got {names}: there is nothing "
                "private to audit. Let the trainer use the optimizer that "
                "PrivacyEngine().make_private(...) returns, or leave the callback out."
            )
        raise InvalidArgumentError(
            f"Expected one Opacus optimizer, got {len(private)}. Say which with optimizer=, and "
            "give the trainer one callback for each."
        )

    def _state(self) -> dict[str, Any]:
        """What to put into a checkpoint of the trainer."""
        if self._audit is not None:
            return self._audit.state_dict()
        return self._pending or {}

    def _restore(self, state: dict[str, Any]) -> None:
        """What a checkpoint of the trainer held, to go on from when the training begins."""
        self._pending = dict(state) or None

    def _leave(self, error: BaseException | None) -> None:
        if self._audit is not None and self._attached:
            self._audit.__exit__(None if error is None else type(error), error, None)

    def finish(self, error: BaseException | None = None) -> None:
        """Leave the optimizer; write transcript, result and report, and tell the loggers.

        Called at the end of the training. Once it is done, nothing more happens.

        Args:
            error: What ended the training, if something did: the steps until then are written.
        """
        if self._audit is None or not self._attached:
            return
        self._leave(error)
        if self._audit.steps == 0:
            warnings.warn(
                "The training ended without a private step: there is nothing to audit.",
                AskGaussWarning,
                stacklevel=4,
            )
            return
        self._result = result = self._judged(self._audit)
        if not self._first_rank:
            return
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        self._audit.transcript().save(self._folder / "transcript.npz")
        documents = [self._folder / "result.json"]
        result.to_json(documents[0])
        if self._report:
            documents.append(self._folder / "report.html")
            result.to_html(documents[1])
        log_result(result, self._loggers, step=self._audit.steps, documents=documents)


def warn_untried(name: str, version: str, tried: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Say so where a release of a trainer is outside those the callback was tried with."""
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not tried[0] <= release <= tried[1]:
        warnings.warn(
            f"{name} {version} is a release this callback was never tried with: compare its "
            "findings with those of a run whose noise you halved.",
            AskGaussWarning,
            stacklevel=4,
        )
