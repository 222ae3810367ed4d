"""DP-FTRL of linear heads in one pass: every record in one leaf, noise from a binary tree.

Weights after a leaf are the start less a step along the noisy sum of all gradients so far. Two
kinds of runs: *sound* ones, in which every complete node has noise and prefixes are averaged from
them (Honaker), audited by the matched filter of the nodes or of the prefixes alone; and runs *as
published*, in which only the nodes a plain tree uses have noise, and a canary's score adds up
whichever of its ancestors those are, over the root of all of them.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries, Stream
from askgauss.files.run_folder import RunFolder
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import NodeSums, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import numpy_draw
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.transcript import LinearTranscript
from askgauss.scores import CanaryScores, ScoreMetadata
from paper.heads_plan import Head, TreeRunPlan, canary_seed, generator
from paper.linear_heads import Heads, HeadsShape
from paper.scatter import ScatterFeatures

__all__ = ["RELEASES", "load_published_scores", "load_transcript", "train"]

Progress = Callable[[int, int], None]
Release = Literal["nodes", "prefixes"]
RELEASES: tuple[Release, ...] = ("nodes", "prefixes")


class _Noisy:
    """A head that adds up its leaves and releases noisy prefixes; no canaries."""

    def __init__(self, head: Head, plan: TreeRunPlan, shape: HeadsShape) -> None:
        self._head, self._plan = head, plan
        self._clean = np.zeros(shape.parameters)
        draw = numpy_draw(
            generator(plan.seed, Stream.NOISE, head.label),
            shape.parameters,
            scale=head.noise_multiplier * plan.clip_norm,
        )

        def seen(out: Any) -> Any:
            noise = draw(out)
            self._see(noise)
            return noise

        self._noise = tree.TreeNoise(seen, steps=plan.steps, estimator=head.estimator)

    def _see(self, noise: NDArray[np.float32]) -> None:
        """Hear of the noise of one more node."""

    def release(self, leaf: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take in the clipped sum of a leaf; the noisy prefix that ends with it."""
        self._clean += leaf
        return np.asarray(self._clean + self._noise.next(), np.float32)

    def save(self, folder: Path) -> None:
        """Nothing was audited."""


class _Audited(_Noisy, abc.ABC):
    """The same with canaries, each with a coordinate and a leaf of its own."""

    def __init__(self, head: Head, plan: TreeRunPlan, shape: HeadsShape) -> None:
        super().__init__(head, plan, shape)
        self._canaries = DiracCanaries(
            count=head.canaries, tensors=shape.tensors, seed=canary_seed(plan.seed, head.label)
        )
        self._tree = TreePlan(steps=plan.steps, estimator=head.estimator, release="nodes")
        self._seen: list[NDArray[np.float64]] = []
        # Node sums along the canaries, of everybody and of the records alone.
        self._all, self._others = NodeSums(self._tree), NodeSums(self._tree)

    def _see(self, noise: NDArray[np.float32]) -> None:
        self._seen.append(self._canaries.project(noise).astype(np.float64))

    def release(self, leaf: NDArray[np.float32]) -> NDArray[np.float32]:
        others = self._canaries.project(leaf).astype(np.float64)
        self._canaries.plant(leaf, self._entering(), self._plan.clip_norm)
        everybody = self._canaries.project(leaf).astype(np.float64)
        self._seen.clear()
        prefix = super().release(leaf)
        self._observe(self._all.push(everybody), self._others.push(others), prefix)
        return prefix

    @abc.abstractmethod
    def _entering(self) -> NDArray[np.int64]:
        """The canaries that enter at this leaf."""

    @abc.abstractmethod
    def _observe(
        self,
        nodes: list[NDArray[np.float64]],
        clean: list[NDArray[np.float64]],
        prefix: NDArray[np.float32],
    ) -> None:
        """Record what was released about them."""


class _Sound(_Audited):
    """Every complete node has noise; audited from the nodes, and from the prefixes alone."""

    def __init__(self, head: Head, plan: TreeRunPlan, shape: HeadsShape) -> None:
        super().__init__(head, plan, shape)
        # The leaves come from the canaries' own seed, so both recorders have the same.
        self._recorders = {
            release: LinearRecorder(
                self._canaries,
                replace(self._tree, release=release),
                clip_norm=plan.clip_norm,
                noise_multiplier=head.noise_multiplier,
            )
            for release in RELEASES
        }
        self._background = np.zeros(head.canaries)
        self._before = np.zeros(shape.parameters, np.float32)

    def _entering(self) -> NDArray[np.int64]:
        nodes, prefixes = (self._recorders[release].sample() for release in RELEASES)
        assert np.array_equal(nodes, prefixes)
        return nodes

    def _observe(
        self,
        nodes: list[NDArray[np.float64]],
        clean: list[NDArray[np.float64]],
        prefix: NDArray[np.float32],
    ) -> None:
        cosines = np.array(
            [
                self._canaries.project(vector) / np.linalg.norm(vector)
                for vector in (prefix, prefix - self._before)
            ]
        )
        self._before = prefix
        self._background += clean[0]
        self._recorders["nodes"].observe(
            np.array(nodes) + np.array(self._seen), background=np.array(clean), cosines=cosines
        )
        self._recorders["prefixes"].observe(
            self._canaries.project(prefix), background=self._background, cosines=cosines
        )

    def save(self, folder: Path) -> None:
        for release, recorder in self._recorders.items():
            recorder.transcript().save(_path(folder, self._head.name, release))


class _Published(_Audited):
    """Only the nodes a plain tree uses have noise; scores add up whichever a canary is under."""

    def __init__(self, head: Head, plan: TreeRunPlan, shape: HeadsShape) -> None:
        super().__init__(head, plan, shape)
        coins = generator(plan.seed, Stream.PLANTING, head.label)
        self._leaves = coins.integers(plan.steps, size=head.canaries)
        self._score = np.zeros(head.canaries)
        self._step = 0

    def _entering(self) -> NDArray[np.int64]:
        return np.flatnonzero((self._leaves == self._step) & self._canaries.member)

    def _observe(
        self,
        nodes: list[NDArray[np.float64]],
        clean: list[NDArray[np.float64]],
        prefix: NDArray[np.float32],
    ) -> None:
        _, level, index = released_nodes(self._tree, self._step)[-1]
        below = self._leaves >> level == index
        self._score += np.where(below, nodes[-1] - clean[-1] + self._seen[-1], 0.0)
        self._step += 1

    def save(self, folder: Path) -> None:
        depth = tree.levels(self._plan.steps)
        CanaryScores(
            score=self._score / (math.sqrt(depth) * self._plan.clip_norm),
            member=self._canaries.member,
            metadata=ScoreMetadata(
                steps=self._plan.steps,
                sampling_rate=1.0,
                clip_norm=self._plan.clip_norm,
                noise_multiplier=self._head.noise_multiplier,
                background="known",
                fair_coins=True,
            ),
        ).save(_path(folder, self._head.name, "scores"))


def _run(head: Head, plan: TreeRunPlan, shape: HeadsShape) -> _Noisy:
    if not head.canaries:
        return _Noisy(head, plan, shape)
    return _Published(head, plan, shape) if head.published else _Sound(head, plan, shape)


def train(
    features: ScatterFeatures,
    plan: TreeRunPlan,
    folder: RunFolder,
    *,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train every head in one pass over the records; nothing to do if the folder has it already.

    Returns:
        Test accuracy by head.
    """
    found: dict[str, float] | None = folder.read_json("results/accuracy.json", dict[str, float])
    if found is not None:
        return found
    needed = plan.steps * plan.batch_size
    if needed > len(features.train):
        raise _validate.fail(
            "steps * batch_size", needed, f"<= {len(features.train)}, the records there are"
        )
    shape = HeadsShape(heads=len(plan.heads), features=features.size, classes=features.classes)
    heads = Heads(shape)
    runs = [_run(head, plan, shape) for head in plan.heads]
    order = generator(plan.seed, Stream.SAMPLER).permutation(len(features.train))
    for step in range(plan.steps):
        records = np.sort(order[step * plan.batch_size : (step + 1) * plan.batch_size])
        total = heads.clipped_sum(
            features.train[records], features.train_labels[records], clip_norm=plan.clip_norm
        )
        for index, (head, run) in enumerate(zip(plan.heads, runs, strict=True)):
            prefix = torch.from_numpy(run.release(total[index].numpy()))
            rate = head.learning_rate / (plan.batch_size * plan.clip_norm)
            heads.flat[index] = -rate * prefix
        if progress is not None:
            progress(step + 1, plan.steps)
    for run in runs:
        run.save(folder.path)
    shares = heads.accuracy(features.test, features.test_labels)
    accuracy = {head.name: share for head, share in zip(plan.heads, shares, strict=True)}
    # Written last: it says that the run is whole.
    folder.write_json("results/accuracy.json", accuracy)
    return accuracy


def _path(folder: Path, name: str, kind: str) -> Path:
    return folder / "results" / f"{name}-{kind}.npz"


def load_transcript(folder: Path, head: str, release: Release) -> LinearTranscript:
    """What `train` wrote about a sound head."""
    return LinearTranscript.load(_path(folder, head, release))


def load_published_scores(folder: Path, head: str) -> CanaryScores:
    """What `train` wrote about a head as published."""
    return CanaryScores.load(_path(folder, head, "scores"))
