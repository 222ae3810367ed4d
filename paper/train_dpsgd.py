"""DP-SGD of many linear heads side by side, each with its own noise and its own canaries.

Heads share the features and the random numbers of the sampler: a record is in a head's batch where
one uniform number a record and step falls below that head's rate. Each head alone is an ordinary
DP-SGD run with Poisson batches. The canaries are inserted between clipping and noise, where the
clean sum is known; its projection on each canary is summed too, so that the scores of an auditor
without that knowledge can be computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.canaries import DiracCanaries, Stream
from askgauss.exceptions import FileFormatError
from askgauss.files import archive, codec, schema
from askgauss.files.run_folder import RunFolder
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript
from askgauss.scores import CanaryScores, ScoreMetadata
from paper.heads_plan import DpsgdHead, DpsgdPlan, canary_seed, generator
from paper.linear_heads import Heads, HeadsShape
from paper.scatter import ScatterFeatures

__all__ = ["AuditedHead", "Snapshot", "load_snapshot", "train"]

_KIND = "askgauss-paper-background"
_STATE_KIND = "askgauss-paper-state"
_SCHEMA = 2

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one head had released after some steps.

    Attributes:
        transcript: The transcript, with the background known.
        background: The clean sum along each canary, over all steps, in units of the clip norm.
    """

    transcript: Transcript
    background: NDArray[np.float64]

    def unknown_background_scores(self) -> CanaryScores:
        """The scores of an auditor who cannot see the other records, as the paper's."""
        scores, steps = self.transcript.scores(), self.transcript.number_of_steps
        known = scores.metadata
        return CanaryScores(
            score=scores.score + self.background / np.sqrt(steps),
            member=scores.member,
            metadata=ScoreMetadata(
                steps=known.steps,
                sampling_rate=known.sampling_rate,
                clip_norm=known.clip_norm,
                noise_multiplier=known.noise_multiplier,
                background="unknown",
                fair_coins=known.fair_coins,
            ),
        )


class AuditedHead:
    """A head's canaries, recorder and background.

    Args:
        head: The run.
        plan: The plan it is part of.
        tensors: Sizes of its parameters.
    """

    def __init__(self, head: DpsgdHead, plan: DpsgdPlan, tensors: tuple[int, ...]) -> None:
        self.canaries = DiracCanaries(
            count=head.canaries, tensors=tensors, seed=canary_seed(plan.seed, head.label)
        )
        self.recorder = Recorder(
            self.canaries,
            sampling_rate=head.sampling_rate,
            clip_norm=plan.clip_norm,
            noise_multiplier=head.noise_multiplier,
        )
        self.background = np.zeros(self.canaries.size)
        self._clip_norm = plan.clip_norm

    def release(self, total: NDArray[np.float32], noise: NDArray[np.float32]) -> None:
        """Plant, add the noise, and record, in place."""
        clean, watch = self.canaries.project(total), total[self.canaries.watch]
        # Whoever goes on has held the recorder against the model's step.
        planted = self.recorder.sample(step=self.recorder.steps)
        self.canaries.plant(total, planted, self._clip_norm)
        total += noise
        self.recorder.observe(
            self.canaries.project(total),
            background=clean,
            watch=total[self.canaries.watch].astype(np.float64) - watch,
        )
        self.background += clean.astype(np.float64) / self._clip_norm

    def check_step(self, step: int) -> None:
        """Refuse to go on where model and recorder were saved after different steps."""
        if self.recorder.steps != step:
            raise FileFormatError(
                f"Expected model and recorder to be of one step, got {step} and "
                f"{self.recorder.steps}: the files are of different checkpoints. Restore them."
            )

    def snapshot(self, folder: Path, head: str) -> None:
        """Write what was released so far, for `load_snapshot`."""
        path = _snapshot_path(folder, head, self.recorder.steps)
        arrays = {"background": self.background}
        archive.write_arrays(_background_path(path), _KIND, _SCHEMA, arrays, {"head": head})
        self.recorder.transcript().save(path)


def checkpoint_step(content: dict[str, Any], plan: DpsgdPlan) -> int:
    """The step that a checkpoint of a plan says it was taken after."""
    step: int = codec.from_plain(int, content.get("step"), "step")
    if not 0 <= step <= plan.steps:
        raise FileFormatError(f"Expected a checkpoint of step 0 to {plan.steps}, got {step}.")
    return step


def load_snapshot(folder: Path, head: str, step: int) -> Snapshot:
    """What `train` wrote about a head after a step.

    Raises:
        FileFormatError: The file is not there, or damaged.
    """
    path = _snapshot_path(folder, head, step)
    if not path.exists():
        raise FileFormatError(f"There is no {str(path)!r}: run the training again.")
    transcript = Transcript.load(path)
    if transcript.number_of_steps != step:
        raise FileFormatError(
            f"Expected {str(path)!r} to be of {step} steps, got {transcript.number_of_steps}. "
            "Restore it, or run the training again in another folder."
        )
    arrays, _ = archive.read_arrays(_background_path(path), _KIND, _SCHEMA)
    field = schema.Field(np.float64, transcript.member.shape, finite=True)
    schema.check(arrays, {"background": field})
    return Snapshot(transcript=transcript, background=arrays["background"])


def _snapshot_path(folder: Path, head: str, step: int) -> Path:
    return folder / "results" / f"{head}-{step:06d}.npz"


def _background_path(transcript: Path) -> Path:
    return transcript.with_name(f"{transcript.stem}-background.npz")


def train(
    features: ScatterFeatures,
    plan: DpsgdPlan,
    folder: RunFolder,
    *,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Train every head, going on from the last checkpoint of the folder.

    Returns:
        Test accuracy by head, then by step of the snapshot.
    """
    accuracies: dict[str, dict[str, float]] | None = folder.read_json(
        "results/accuracy.json", dict[str, dict[str, float]]
    )
    if accuracies is not None and str(plan.steps) in accuracies.get(plan.heads[0].name, {}):
        return accuracies
    run = _ParallelRuns(features, plan)
    accuracies = {head.name: {} for head in plan.heads} | (accuracies or {})
    last = folder.last_checkpoint()
    if last is not None:
        run.load(last[1])
    marks = {*plan.snapshots, plan.steps}
    while run.step < plan.steps:
        run.advance()
        if run.step in marks:
            shares = run.heads.accuracy(features.test, features.test_labels)
            for head, share in zip(plan.heads, shares, strict=True):
                accuracies[head.name][str(run.step)] = share
            for name, audited in run.audited.items():
                audited.snapshot(folder.path, name)
            if run.step < plan.steps:
                folder.write_json("results/accuracy.json", accuracies)
        if run.step % plan.checkpoint_every == 0 and run.step < plan.steps:
            folder.save_checkpoint(run.step, run.save)
        if progress is not None:
            progress(run.step, plan.steps)
    # The last entry of this file says that the run is whole.
    folder.write_json("results/accuracy.json", accuracies)
    return accuracies


class _ParallelRuns:
    """The state of the parallel runs."""

    def __init__(self, features: ScatterFeatures, plan: DpsgdPlan) -> None:
        self.plan = plan
        self.features = features
        self.shape = HeadsShape(
            heads=len(plan.heads), features=features.size, classes=features.classes
        )
        self.heads = Heads(self.shape)
        self.velocity = torch.zeros_like(self.heads.flat)
        self.audited = {
            head.name: AuditedHead(head, plan, self.shape.tensors)
            for head in plan.heads
            if head.canaries
        }
        self.step = 0
        self._rates = np.array([head.sampling_rate for head in plan.heads])
        self._noise = np.empty(self.shape.parameters, np.float32)

    def advance(self) -> None:
        """One step of every head."""
        plan, features = self.plan, self.features
        coins = generator(plan.seed, Stream.SAMPLER, self.step).random(len(features.train))
        batch = np.flatnonzero(coins < self._rates.max())
        total = self.heads.clipped_sum(
            lambda part: features.train[batch[part]],
            features.train_labels[batch],
            clip_norm=plan.clip_norm,
            included=coins[batch, None] < self._rates,
        )
        drawn: int | None = None
        for index, head in enumerate(plan.heads):
            if drawn != head.label:
                noise = generator(plan.seed, Stream.NOISE, head.label, self.step)
                noise.standard_normal(dtype=np.float32, out=self._noise)
                drawn = head.label
            scaled = self._noise * np.float32(head.noise_multiplier * plan.clip_norm)
            row = total[index].numpy()
            if head.canaries:
                self.audited[head.name].release(row, scaled)
            else:
                row += scaled
            expected = head.sampling_rate * len(features.train) * plan.clip_norm
            velocity = self.velocity[index]
            velocity.mul_(head.momentum).add_(total[index], alpha=1.0 / expected)
            self.heads.flat[index].add_(velocity, alpha=-head.learning_rate)
        self.step += 1

    def save(self, folder: Path) -> None:
        """Write all of it."""
        arrays = {"flat": self.heads.flat.numpy(), "velocity": self.velocity.numpy()}
        for name, audited in self.audited.items():
            arrays[f"background.{name}"] = audited.background
            audited.recorder.save(folder / f"{name}.npz", hold=False)
        archive.write_arrays(
            folder / "state.npz", _STATE_KIND, _SCHEMA, arrays, {"step": self.step}
        )

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        arrays, content = archive.read_arrays(folder / "state.npz", _STATE_KIND, _SCHEMA)
        weights = schema.Field(np.float32, tuple(self.heads.flat.shape))
        fields = {"flat": weights, "velocity": weights}
        for name, audited in self.audited.items():
            fields[f"background.{name}"] = schema.Field(np.float64, audited.background.shape)
        schema.check(arrays, fields)
        step = checkpoint_step(content, self.plan)
        self.heads.flat.copy_(torch.from_numpy(arrays["flat"]))
        self.velocity.copy_(torch.from_numpy(arrays["velocity"]))
        for name, audited in self.audited.items():
            audited.background[:] = arrays[f"background.{name}"]
            audited.recorder.load(folder / f"{name}.npz", hold=False)
            audited.check_step(step)
        self.step = step
