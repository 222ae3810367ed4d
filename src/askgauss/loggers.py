"""Results where people look anyway: TensorBoard, MLflow, Weights & Biases, or a logger of your own.

::

    from askgauss.loggers import TensorBoard, log_result

    log_result(result, [TensorBoard(writer)], step=1000, documents=["audit/report.html"])

A logger that fails is warned about and left alone: training and audit go on.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from askgauss.exceptions import AskGaussWarning, MissingExtraError
from askgauss.results import PRIVATE_NOTE, AuditResult, Status, Verdict

__all__ = ["Logger", "MLflow", "TensorBoard", "WeightsAndBiases", "log_numbers", "log_result"]

_FOLDER = "askgauss"


@runtime_checkable
class Logger(Protocol):
    """What a logger has to do; any object with these three methods is one."""

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """Keep some numbers of one step by their names."""

    def text(self, name: str, content: str, *, step: int) -> None:
        """Keep a text in Markdown."""

    def document(self, path: Path) -> None:
        """Keep a file."""


class TensorBoard:
    """Writes to TensorBoard.

    Args:
        writer: A ``torch.utils.tensorboard.SummaryWriter``, or anything with its ``add_scalar`` and
            ``add_text``; or a folder to make one in. Files stay where they are: TensorBoard has no
            place for them.
    """

    def __init__(self, writer: Any) -> None:
        self._given = writer

    @functools.cached_property
    def _writer(self) -> Any:
        if not isinstance(self._given, (str, os.PathLike)):
            return self._given
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoard is not installed: pip install tensorboard."
            ) from error
        return SummaryWriter(os.fspath(self._given))

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """Each as a scalar."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def text(self, name: str, content: str, *, step: int) -> None:
        """Under the tab of texts."""
        self._writer.add_text(name, content, step)
        self._writer.flush()

    def document(self, path: Path) -> None:
        """Say where the file is."""
        self._writer.add_text(f"{_FOLDER}/{path.name}", f"`{path}`")
        self._writer.flush()


class MLflow:
    """Writes to a run of MLflow.

    Args:
        client: An ``mlflow.MlflowClient``; one for the present tracking server if not given.
        run_id: Which run; the active one if not given.
    """

    def __init__(self, client: Any = None, run_id: str | None = None) -> None:
        self._client, self._run_id = client, run_id

    def _run(self) -> tuple[Any, str]:
        client, run_id = self._client, self._run_id
        if client is None or run_id is None:
            try:
                import mlflow
            except ImportError as error:
                raise MissingExtraError("MLflow is not installed: pip install mlflow.") from error
            client = mlflow.MlflowClient() if client is None else client
            if run_id is None:
                active = mlflow.active_run() or mlflow.last_active_run()
                if active is None:
                    raise RuntimeError("no run of MLflow is active: call mlflow.start_run() first")
                run_id = active.info.run_id
        return client, run_id

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """Each as a metric."""
        client, run_id = self._run()
        for name, value in values.items():
            client.log_metric(run_id, name, value, step=step)

    def text(self, name: str, content: str, *, step: int) -> None:
        """As an artifact in Markdown."""
        client, run_id = self._run()
        client.log_text(run_id, content, f"{name}.md")

    def document(self, path: Path) -> None:
        """As an artifact."""
        client, run_id = self._run()
        client.log_artifact(run_id, str(path), _FOLDER)


class WeightsAndBiases:
    """Writes to a run of Weights & Biases, which may be offline.

    Args:
        run: What ``wandb.init`` returned; the present run if not given.
    """

    def __init__(self, run: Any = None) -> None:
        self._given = run

    @property
    def _run(self) -> Any:
        if self._given is not None:
            return self._given
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb is not installed: pip install wandb.") from error
        if wandb.run is None:
            raise RuntimeError("no run of Weights & Biases is open: call wandb.init() first")
        return wandb.run

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """Logged, and the last of each in the summary.

        The step is a value of its own: the count of the run's own calls may be further already.
        """
        self._run.log({**values, f"{_FOLDER}/step": step})

    def text(self, name: str, content: str, *, step: int) -> None:
        """In the summary of the run."""
        self._run.summary[name] = content

    def document(self, path: Path) -> None:
        """Among the files of the run."""
        self._run.save(str(path.absolute()), base_path=str(path.absolute().parent), policy="now")


def log_numbers(values: Mapping[str, float], loggers: Iterable[Logger], *, step: int) -> None:
    """Give numbers to every logger; one that fails is warned about.

    Args:
        values: Numbers by their names.
        loggers: Where to.
        step: The step they are of.
    """
    for logger in loggers:
        _tried(logger, functools.partial(logger.numbers, values, step=step))


def log_result(
    result: AuditResult,
    loggers: Iterable[Logger],
    *,
    step: int = 0,
    documents: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Give bound, verdict, findings and documents to every logger; one that fails is warned about.

    Args:
        result: The audit.
        loggers: Where to.
        step: The step it was made after.
        documents: Files to keep with it, such as the report. Of a private result none is given, nor
            any measured number: whoever reads the logger may not see the training data.
    """
    values, page = _numbers_of(result), result.to_markdown()
    if result.private:
        documents = ()
        page = f"{'no claim' if result.verdict is None else result.verdict.value}. {PRIVATE_NOTE}\n"
    for logger in loggers:
        _tried(logger, functools.partial(logger.numbers, values, step=step))
        _tried(logger, functools.partial(logger.text, f"{_FOLDER}/audit", page, step=step))
        for path in documents:
            _tried(logger, functools.partial(logger.document, Path(path)))


def _numbers_of(result: AuditResult) -> dict[str, float]:
    """The numbers of an audit, by names beside those of the monitor."""
    failed = sum(item.status is Status.FAIL for item in result.findings)
    values = {"audit_findings_failed": float(failed)}
    if result.carries_bound and not result.private:
        values["audit_epsilon_lower"] = result.epsilon_lower
    if result.epsilon_point is not None and not result.private:
        values["audit_epsilon_point"] = result.epsilon_point
    if result.claim is not None:
        values["audit_epsilon_claimed"] = result.claim.epsilon
        values["audit_violation"] = float(result.verdict is Verdict.VIOLATION)
    return {f"{_FOLDER}/{name}": float(value) for name, value in values.items()}


def _tried(logger: Logger, call: Callable[[], None]) -> None:
    try:
        call()
    # Whatever a tracking server does, a private run that took days must not end for it.
    except Exception as error:  # noqa: BLE001
        warnings.warn(
            f"{type(logger).__name__} failed with {type(error).__name__}: {error}. The audit goes "
            "on without it; its files are written all the same.",
            AskGaussWarning,
            stacklevel=3,
        )
