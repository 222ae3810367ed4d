"""The demo: train a small private model with canaries in it, audit it, and report."""

from __future__ import annotations

import importlib.util
import signal
import threading
import time
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askgauss.cli.options import Documents, RunSteps, Seed, claim_of
from askgauss.cli.program import ExitCode, Interrupted
from askgauss.cli.terminal import PRIVATE, ProgressBar, note, say, say_result
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    MissingExtraError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from askgauss.cli.demo_training import Trainer
    from askgauss.files.run_folder import RunFolder, RunRecord


_KIND = "askgauss-demo"
_SCHEMA = 2
# A demo is over some day, its network fits into memory and its weights are numbers.
_MOST_STEPS = 10**6
_WIDEST = 4096
_LARGEST_FACTOR = 1e6
_SECONDS_BETWEEN_CHECKPOINTS = 5.0


class Backend(StrEnum):
    """What trains the demo's network."""

    AUTO = "auto"
    OPACUS = "opacus"
    NUMPY = "numpy"


def demo(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of the run; made if need be.")
    ] = Path("askgauss-demo"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.")
    ] = False,
    epsilon: Annotated[float, typer.Option(help="Epsilon the run claims.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Delta the run claims.")] = 1e-5,
    steps: RunSteps = 1500,
    batches: Annotated[
        int, typer.Option(help="Batches an epoch; the sampling rate is one over it.")
    ] = 8,
    clip_norm: Annotated[float, typer.Option(help="Clip norm.")] = 1.0,
    learning_rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.3,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layer.")] = 64,
    noise_factor: Annotated[
        float, typer.Option(help="Add only so much of the noise that is claimed: 0.5 is a fault.")
    ] = 1.0,
    backend: Annotated[
        Backend, typer.Option(help="What trains; auto is Opacus where it is installed.")
    ] = Backend.AUTO,
    seed: Seed = 0,
) -> None:
    """Train a small private network with canaries in it, audit it, and write a report.

    Trains on the digits of scikit-learn by Opacus' DP-SGD, in about half a minute. Without those
    extras it trains the same network in numpy. Ctrl-C keeps what was done; --resume goes on.

    Exits like askgauss audit.
    """
    from askgauss.files.run_folder import RunFolder

    folder = RunFolder(run)
    options = {
        name: str(value) if isinstance(value, Backend) else value
        for name, value in context.params.items()
        if name not in ("run", "resume")
    }
    if resume:
        _check_resumable(folder, _given(context, options))
    else:
        _check_free(folder)
        _check_options(options)
        folder.path.mkdir(parents=True, exist_ok=True)
    with folder:
        # From here on: packages that are being imported may swallow a Ctrl-C.
        with _StopSign() as stop:
            if not resume:
                _check_free(folder)  # once more: another process may have begun a run meanwhile
            described = folder.read() if resume else _begin(folder, options)
            if described.status != "finished":
                _train(folder, described, stop)
        code = _finish(folder)
    raise typer.Exit(code)


def _given(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """The options that somebody gave, rather than the defaults."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: options[name]
        for name, source in sources.items()
        if source is not None and source.name != "DEFAULT"
    }


def _check_free(folder: RunFolder) -> None:
    if folder.path.exists() and (not folder.path.is_dir() or not folder.is_empty()):
        known = folder.description.exists()
        step = "Go on with it by --resume, or name another folder." if known else "Name another."
        raise InvalidArgumentError(
            f"Expected {str(folder.path)!r} to be a new or empty folder, got "
            f"{'one with a run in it' if known else 'something else'}. {step}"
        )


def _check_options(options: dict[str, Any]) -> None:
    from askgauss import _validate
    from askgauss.claims import PrivacyClaim

    PrivacyClaim(epsilon=options["epsilon"], delta=options["delta"])
    _validate.count(maximum=_MOST_STEPS, steps=options["steps"])
    _validate.count(maximum=_WIDEST, hidden=options["hidden"])
    _validate.count(2, maximum=_MOST_STEPS, batches=options["batches"])
    _validate.integer(0, seed=options["seed"])
    _validate.magnitude(clip_norm=options["clip_norm"])
    _validate.within(0, _LARGEST_FACTOR, learning_rate=options["learning_rate"])
    _validate.magnitude(
        zero=True,
        smallest=1.0 / _LARGEST_FACTOR,
        largest=_LARGEST_FACTOR,
        hint="",
        noise_factor=options["noise_factor"],
    )


def _check_resumable(folder: RunFolder, given: dict[str, Any]) -> None:
    if not folder.description.exists():
        raise FileFormatError(
            f"Expected a run in {str(folder.path)!r}, found no run.json. Start one without "
            "--resume."
        )
    run = folder.read()
    if run.command != "demo":
        raise FileFormatError(
            f"Expected a run of askgauss demo in {str(folder.path)!r}, got one of askgauss "
            f"{run.command}. Name the folder of a demo."
        )
    saved = run.config["options"]
    for name, value in given.items():
        if saved.get(name) != value:
            raise InvalidArgumentError(
                f"Expected --{name.replace('_', '-')} {saved.get(name)} as the run was started "
                f"with, got {value}. Leave options out when you resume."
            )


def _begin(folder: RunFolder, options: dict[str, Any]) -> RunRecord:
    """Choose what trains and how much noise the claim needs, and write it down."""
    from askgauss import accounting
    from askgauss.claims import PrivacyClaim
    from askgauss.cli.demo_training import DemoPlan
    from askgauss.files import codec
    from askgauss.files.run_folder import RunRecord

    backend = _backend(options["backend"])
    claimed: dict[str, Any] = {name: options[name] for name in ("epsilon", "delta", "steps")}
    claimed["sampling_rate"] = 1.0 / options["batches"]
    noise = accounting.dpsgd_noise_multiplier(**claimed)
    claim = PrivacyClaim(**claimed, noise_multiplier=noise, clip_norm=options["clip_norm"])
    plan = DemoPlan(
        sampling_rate=claimed["sampling_rate"],
        noise_multiplier=noise,
        **{field.name: options[field.name] for field in fields(DemoPlan) if field.name in options},
    )
    asked = {"options": options, "backend": backend.value, "plan": plan, "claim": claim}
    run = RunRecord(command="demo", config=codec.to_plain(asked))
    folder.write(run)
    return run


def _backend(wanted: str) -> Backend:
    installed = all(importlib.util.find_spec(name) is not None for name in ("torch", "opacus"))
    if wanted == Backend.OPACUS and not installed:
        raise MissingExtraError(
            "--backend opacus needs torch and Opacus: pip install 'askgauss[opacus,sklearn]', or "
            "take --backend numpy."
        )
    return Backend.OPACUS if installed and wanted != Backend.NUMPY else Backend.NUMPY


def save_checkpoint(path: Path, trainer: Trainer) -> None:
    """Write where a training run stands, whole or not at all."""
    from askgauss.files import archive, codec

    arrays, values = trainer.state()
    archive.write_arrays(path, _KIND, _SCHEMA, arrays, codec.to_plain(values))


def load_checkpoint(path: Path, trainer: Trainer) -> None:
    """Let a training run go on from what `save_checkpoint` wrote."""
    from askgauss.files import archive

    arrays, values = archive.read_arrays(path, _KIND, _SCHEMA)
    trainer.restore(arrays, values)


def _train(folder: RunFolder, run: RunRecord, stop: _StopSign) -> None:
    """Train to the end, or until Ctrl-C; what was done is kept either way."""
    from askgauss.cli.demo_training import DemoPlan, load_digits
    from askgauss.files import codec

    plan: DemoPlan = codec.from_plain(DemoPlan, run.config.get("plan"), "plan")
    digits = load_digits(plan.seed)
    if run.facts.get("data", digits.name) != digits.name:
        raise UnsupportedError(
            f"Expected {run.facts['data']}, which the run was started on, got {digits.name}. "
            "Resume with the packages it was started with."
        )
    backend = Backend(run.config["backend"])
    trainer = _trainer(backend, plan, digits)
    if folder.checkpoint.exists():
        load_checkpoint(folder.checkpoint, trainer)

    def keep(status: str) -> None:
        save_checkpoint(folder.checkpoint, trainer)
        facts = {"data": digits.name, "test accuracy": trainer.accuracy()}
        folder.update(status=status, done=trainer.done, facts=facts)

    how = "Opacus" if backend is Backend.OPACUS else "numpy (no Opacus involved)"
    note(
        f"training on {digits.name} with {how}, claiming {claim_of(run)} with noise multiplier "
        f"{plan.noise_multiplier:.4g}."
    )
    last = time.monotonic()
    with ProgressBar("training", plan.steps, trainer.done) as progress:
        while trainer.done < plan.steps and not stop.seen:
            trainer.step()
            progress.advance()
            if time.monotonic() - last > _SECONDS_BETWEEN_CHECKPOINTS:
                keep("started")
                last = time.monotonic()
        keep("started")
    if trainer.done < plan.steps:
        folder.update(status="interrupted")
        raise Interrupted(
            f"stopped at step {trainer.done} of {plan.steps}, which are kept in "
            f"{str(folder.path)!r}. Go on with: askgauss demo {folder.path} --resume"
        )
    transcript = trainer.transcript()
    transcript.save(folder.transcript)
    transcript.scores().save(folder.scores)
    note(f"wrote {folder.transcript} and {folder.scores} ({PRIVATE}).")
    folder.update(status="finished")


def _trainer(backend: Backend, plan: Any, digits: Any) -> Trainer:
    if backend is Backend.OPACUS:
        from askgauss.integrations.opacus.demo_run import OpacusTrainer

        return OpacusTrainer(plan, digits)
    from askgauss.cli.demo_training import NumpyTrainer

    return NumpyTrainer(plan, digits)


def _finish(folder: RunFolder) -> int:
    """Audit the finished run, and write what came of it."""
    from askgauss.auditing import audit
    from askgauss.recording.transcript import Transcript

    run = folder.read()
    result = audit(Transcript.load(folder.transcript), claim=claim_of(run))
    say_result(result, verbose=False)
    say(f"  accuracy    {run.facts['test accuracy']:.0%} of the test images")
    Documents(json=str(folder.result), html=str(folder.report)).write(result)
    note(f"the run is in {str(folder.path)!r}. Look at it with: askgauss report {folder.path}")
    return ExitCode.of(result)


class _StopSign:
    """Catches Ctrl-C until the step at hand is done; a second one stops at once."""

    def __init__(self) -> None:
        self.seen = False
        self._previous: Any = None

    def __enter__(self) -> _StopSign:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._raise)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
