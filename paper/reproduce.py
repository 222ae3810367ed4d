"""The paper's experiments and figures, one call: train what is missing, draw, write the page."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from askgauss import _validate, accounting
from askgauss.auditing import audit
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError, MissingExtraError
from askgauss.files import atomic, codec
from askgauss.files.run_folder import RunFolder
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.transcript import LinearTranscript, Transcript
from paper import data
from paper.heads_plan import DpsgdHead, DpsgdPlan, Head, TreeRunPlan
from paper.progress import Report, stages

try:
    from paper import deep, page, scatter, train_dpftrl, train_dpsgd
    from paper.figures_dpftrl import UtilityTable
    from paper.paper_figure import PaperFigure, Runs, save_rows
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"The paper's experiments need {error.name}: install askgauss[paper]."
    ) from error

__all__ = ["FIGURES", "SCALES", "Scale", "is_helper", "publish", "run", "train_once"]

_FIGURES = {table.name: table for table in page.TABLES if isinstance(table, PaperFigure)}
FIGURES = tuple(_FIGURES)
"""Names of the figures."""

_DELTA = 1e-5
_MINUTES_KIND = "askgauss-minutes"
_SCHEMA = 2
# Of an image; a batch of more of them fits into no memory.
_MOST_VIEWS = 1000
# What the paper's public code was calibrated for: its loader had 12 batches, 209 epochs of them.
_PUBLISHED_STEPS = 2508
_PUBLISHED_NOISE = {8.0: 2.6245}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a reproduction is.

    Args:
        data: Name of the image set.
        groups: Groups of the normalisation.
        epsilons: Claimed epsilons.
        sampling_rate: Poisson rate of sound DP-SGD runs.
        published_rate: The rate of runs as published.
        published_steps: The steps those were calibrated for.
        steps: Steps of DP-SGD.
        snapshots: Steps after which DP-SGD is looked at.
        canaries: Canaries of every audited run, half of them present.
        counts: Numbers of canaries in the figures over them.
        repeats: Audits behind an average.
        tree_steps: Leaves of DP-FTRL.
        tree_batch: Records of a leaf.
        clip_norm: Clip norm.
        learning_rate: Step size of DP-SGD by epsilon, see `dpsgd.Head`.
        tree_learning_rate: Step size of DP-FTRL by epsilon.
        deep_learning_rate: Step size of deep models, without momentum (De et al. 2022).
    """

    data: str
    groups: int
    epsilons: tuple[float, ...]
    sampling_rate: float
    published_rate: float
    published_steps: int
    steps: int
    snapshots: tuple[int, ...]
    canaries: int
    counts: tuple[int, ...]
    repeats: int
    tree_steps: int
    tree_batch: int
    clip_norm: float = 1.0
    learning_rate: tuple[float, ...]
    tree_learning_rate: tuple[float, ...]
    deep_learning_rate: float = 2.0


SCALES = {
    "full": Scale(
        data="cifar10",
        groups=27,
        epsilons=(1.0, 2.0, 4.0, 8.0),
        sampling_rate=4096 / 50_000,
        published_rate=1 / 12,
        published_steps=_PUBLISHED_STEPS,
        steps=2500,
        snapshots=(50, 100, 250, 500, 1000),
        canaries=5000,
        counts=(100, 250, 500, 1000, 2500, 5000),
        repeats=10,
        tree_steps=128,
        tree_batch=380,
        learning_rate=(0.012, 0.02, 0.03, 0.04),
        tree_learning_rate=(0.2, 0.3, 0.5, 0.7),
    ),
    "smoke": Scale(
        data="digits",
        groups=9,
        epsilons=(2.0, 8.0),
        sampling_rate=0.1,
        published_rate=1 / 9,
        published_steps=60,
        steps=60,
        snapshots=(20,),
        canaries=400,
        counts=(100, 400),
        repeats=2,
        tree_steps=32,
        tree_batch=40,
        learning_rate=(1.0, 1.0),
        tree_learning_rate=(0.1, 0.1),
    ),
}
"""The scales by name: ``full`` is the paper's, ``smoke`` runs everything in seconds."""


def dpsgd_plan(scale: Scale, *, seed: int, deep: bool = False) -> DpsgdPlan:
    """Sound runs with canaries and without, and runs as published, for every epsilon."""
    heads = []
    for label, (epsilon, rate) in enumerate(zip(scale.epsilons, scale.learning_rate, strict=True)):
        noise = accounting.dpsgd_noise_multiplier(
            epsilon=epsilon,
            delta=_DELTA,
            sampling_rate=scale.sampling_rate,
            steps=scale.steps,
        )
        published = accounting.dpsgd_noise_multiplier(
            epsilon=epsilon,
            delta=_DELTA,
            sampling_rate=scale.published_rate,
            steps=scale.published_steps,
        )
        if scale.published_steps == _PUBLISHED_STEPS:
            published = _PUBLISHED_NOISE.get(epsilon, published)
        for name, sampling_rate, sigma, canaries in (
            ("sound", scale.sampling_rate, noise, scale.canaries),
            ("clean", scale.sampling_rate, noise, 0),
            ("published", scale.published_rate, published, scale.canaries),
        ):
            heads.append(
                DpsgdHead(
                    name=f"{name}-{epsilon:g}",
                    epsilon=epsilon,
                    noise_multiplier=sigma,
                    sampling_rate=sampling_rate,
                    canaries=canaries,
                    learning_rate=scale.deep_learning_rate if deep else rate,
                    momentum=0.0 if deep else 0.9,
                    published=name == "published",
                    label=label,
                )
            )
    return DpsgdPlan(
        heads=tuple(heads),
        steps=scale.steps,
        snapshots=scale.snapshots,
        clip_norm=scale.clip_norm,
        seed=seed,
    )


def dpftrl_plan(scale: Scale, *, seed: int) -> TreeRunPlan:
    """The same for DP-FTRL."""
    heads = []
    for label, (epsilon, rate) in enumerate(
        zip(scale.epsilons, scale.tree_learning_rate, strict=True)
    ):
        noise = TreePlan(steps=scale.tree_steps).noise_multiplier(epsilon=epsilon, delta=_DELTA)
        for name, canaries in (("sound", scale.canaries), ("clean", 0), ("published", None)):
            heads.append(
                Head(
                    name=f"{name}-{epsilon:g}",
                    epsilon=epsilon,
                    noise_multiplier=noise,
                    canaries=scale.canaries if canaries is None else canaries,
                    learning_rate=rate,
                    published=canaries is None,
                    label=label,
                )
            )
    return TreeRunPlan(
        heads=tuple(heads),
        steps=scale.tree_steps,
        batch_size=scale.tree_batch,
        clip_norm=scale.clip_norm,
        seed=seed,
    )


def run(
    scale: Literal["full", "smoke"] = "full",
    *,
    folder: str | os.PathLike[str],
    figures: Sequence[str] | None = None,
    data_folder: str | os.PathLike[str] | None = None,
    model: Literal["scatter-linear", "wrn16-4", "small-cnn"] = "scatter-linear",
    augment: int = 1,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Reproduce figures of the paper; what the folder has already is not done again.

    Args:
        scale: ``full`` is the paper's, on CIFAR-10; ``smoke`` runs everything in seconds.
        folder: Where runs, figures and the page go.
        figures: Names of figures, see `FIGURES`; all if not given.
        data_folder: Where the data is cached.
        model: What DP-SGD trains. The deep ones want a GPU at full scale.
        augment: Random views of each image behind its gradient; deep models only.
        seed: Root of every random choice.
        progress: Show how far it is.

    Returns:
        The page, ``reproduction.md`` in the folder.

    Raises:
        DataError: The data has not been fetched.
        RunFolderBusyError: Another process is at work in the folder.
    """
    _validate.one_of(tuple(SCALES), scale=scale)
    _validate.integer(0, seed=seed)
    _validate.count(maximum=_MOST_VIEWS, augment=augment)
    names = FIGURES if figures is None else tuple(figures)
    for name in names:
        _validate.one_of(FIGURES, figures=name)
    place, size = Path(folder), SCALES[scale]
    place.mkdir(parents=True, exist_ok=True)
    if is_helper():
        # The first process does everything else.
        _help_train(size, data_folder, model, augment, seed)
        return place / "reproduction.md"
    with _timed(place) as minutes, stages(progress) as report:
        runs = None
        if any(_FIGURES[name].needs_runs for name in names):
            runs = _runs(size, place, data_folder, model, augment, seed, report)
        for number, name in enumerate(names):
            report("figures", number, len(names))
            _FIGURES[name].save(runs, place / "figures")
        report("figures", len(names), len(names))
        if runs is not None:
            accuracy = UtilityTable()
            save_rows(accuracy.rows(runs), place / "figures", accuracy.name)
    return page.write(place, scale=scale, model=model, minutes=minutes)


def train_once(
    scale: Scale,
    *,
    epsilon: float,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    canaries: int,
    seed: int,
) -> Transcript:
    """Train one ScatterLinear; nothing of it is kept but what it released about the canaries."""
    head = DpsgdHead(
        name="run",
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        canaries=canaries,
        learning_rate=float(np.interp(epsilon, scale.epsilons, scale.learning_rate)),
    )
    plan = DpsgdPlan(heads=(head,), steps=steps, seed=seed, clip_norm=scale.clip_norm)
    features = scatter.features(data.load(scale.data), groups=scale.groups)
    with tempfile.TemporaryDirectory() as place, RunFolder(place, {}) as folder:
        train_dpsgd.train(features, plan, folder)
        return train_dpsgd.load_snapshot(folder.path, head.name, plan.steps).transcript


def is_helper() -> bool:
    """Whether this is a process of ``torchrun`` that only helps the first one train."""
    return deep.process_rank() > 0


def publish(folder: str | os.PathLike[str], docs: str | os.PathLike[str]) -> None:
    """Copy the page and its figures into a folder of documentation."""
    source, target = Path(folder), Path(docs)
    pictures = target / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    for path in sorted((source / "figures").iterdir()):
        if path.suffix in (".svg", ".csv") and path.stat().st_size < 1 << 20:
            shutil.copyfile(path, pictures / path.name)
    text = (source / "reproduction.md").read_text(encoding="utf-8")
    atomic.write_text(target / "reproduction.md", text)


def _runs(
    scale: Scale,
    place: Path,
    data_folder: str | os.PathLike[str] | None,
    model: str,
    augment: int,
    seed: int,
    report: Report,
) -> Runs:
    images = data.load(scale.data, folder=data_folder)
    sgd = dpsgd_plan(scale, seed=seed, deep=model != "scatter-linear")
    ftrl = dpftrl_plan(scale, seed=seed)
    features = scatter.features(
        images,
        folder=data_folder,
        groups=scale.groups,
        progress=lambda done, of: report("scattering features", done, of),
    )
    about = {"data": scale.data, "model": model}
    trained = RunFolder(place / "dpsgd", {**about, "augment": augment, "plan": codec.to_plain(sgd)})
    with trained as folder:
        # What the folder was started with, to the last digit of the calibrated noise.
        sgd = codec.from_plain(DpsgdPlan, folder.config["plan"], "plan")
        if model == "scatter-linear":
            sgd_accuracy = train_dpsgd.train(
                features, sgd, folder, progress=lambda done, of: report("DP-SGD", done, of)
            )
        else:
            sgd_accuracy = deep.train_heads(
                images,
                sgd,
                folder,
                model=model,
                augment=augment,
                progress=lambda done, of: report(f"DP-SGD, {model}", done, of),
            )
        for head in sgd.heads:
            if head.canaries:
                snapshot = train_dpsgd.load_snapshot(folder.path, head.name, sgd.steps)
                claim = PrivacyClaim(
                    epsilon=head.epsilon,
                    delta=_DELTA,
                    noise_multiplier=head.noise_multiplier,
                    sampling_rate=head.sampling_rate,
                    steps=sgd.steps,
                    clip_norm=sgd.clip_norm,
                )
                _audit(folder, head.name, snapshot.transcript, claim)
    with RunFolder(place / "dpftrl", {**about, "plan": codec.to_plain(ftrl)}) as folder:
        ftrl = codec.from_plain(TreeRunPlan, folder.config["plan"], "plan")
        ftrl_accuracy = train_dpftrl.train(
            features, ftrl, folder, progress=lambda done, of: report("DP-FTRL", done, of)
        )
        for tree_head in ftrl.heads:
            if tree_head.canaries and not tree_head.published:
                transcript = train_dpftrl.load_transcript(folder.path, tree_head.name, "nodes")
                claim = PrivacyClaim(
                    epsilon=tree_head.epsilon,
                    delta=_DELTA,
                    noise_multiplier=tree_head.noise_multiplier,
                    steps=ftrl.steps,
                    clip_norm=ftrl.clip_norm,
                )
                _audit(folder, tree_head.name, transcript, claim)
    return Runs(
        dpsgd_folder=place / "dpsgd",
        dpsgd_plan=sgd,
        dpftrl_folder=place / "dpftrl",
        dpftrl_plan=ftrl,
        dpsgd_accuracy=sgd_accuracy,
        dpftrl_accuracy=ftrl_accuracy,
        delta=_DELTA,
        repeats=scale.repeats,
        counts=scale.counts,
    )


def _audit(
    folder: RunFolder, name: str, transcript: Transcript | LinearTranscript, claim: PrivacyClaim
) -> None:
    """Audit one run as its owner would; ``askgauss report`` finds the result in the folder."""
    path = folder.path / "runs" / name / "result.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        audit(transcript, claim=claim).to_json(path)


def _help_train(
    scale: Scale,
    data_folder: str | os.PathLike[str] | None,
    model: str,
    augment: int,
    seed: int,
) -> None:
    """Take part in the training of a deep model that the first process leads."""
    if model != "scatter-linear":
        images = data.load(scale.data, folder=data_folder)
        plan = dpsgd_plan(scale, seed=seed, deep=True)
        deep.train_heads(images, plan, None, model=model, augment=augment)


@contextmanager
def _timed(place: Path) -> Iterator[list[float]]:
    """The minutes of every start so far, the present one among them once it is over."""
    path, started = place / "minutes.json", time.monotonic()
    minutes: list[float] = []
    if path.exists():
        try:
            content = codec.loads(atomic.read_bytes(path, regular=True), _MINUTES_KIND, _SCHEMA)
            found = codec.from_plain(tuple[float, ...], content.get("minutes"), "minutes")
            if not all(0.0 <= value < math.inf for value in found):
                raise FileFormatError("Expected minutes >= 0.")
        except FileFormatError as error:
            raise FileFormatError(f"{str(path)!r} is damaged: {error} Delete it.") from error
        minutes = list(found)
    try:
        yield minutes
    finally:
        minutes.append((time.monotonic() - started) / 60.0)
        atomic.write_text(path, codec.dumps(_MINUTES_KIND, _SCHEMA, {"minutes": minutes}))
