"""DP-SGD of deep networks, with random views, averaged weights and the same audit as the heads.

A record's gradient is that of the mean loss over its views, clipped once: augmentation costs no
privacy. A batch goes through in pieces, and is one step. Started by ``torchrun``, processes share
the batch: each clips its part, the parts are added up, and one process plants the canaries, adds
the noise and tells the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from askgauss import _validate
from askgauss.canaries import Stream
from askgauss.files import archive, schema
from askgauss.files.run_folder import RunFolder
from paper import data, train_dpsgd
from paper.augment import random_views
from paper.heads_plan import DpsgdHead, DpsgdPlan, generator
from paper.networks import MODELS

__all__ = ["clipped_sum", "process_rank", "train_heads"]

_KIND = "askgauss-paper-deep"
_SCHEMA = 2
_VIEWS = 100  # a random stream beside those of `Stream`
_AVERAGING = 0.999

Progress = Callable[[int, int], None]


def clipped_sum(model: nn.Module, views: Tensor, labels: Tensor, *, clip_norm: float) -> Tensor:
    """The sum of per-example gradients clipped to a norm, flat, in the order of the parameters.

    Args:
        model: The network.
        views: (n, views, colours, height, width); an example's gradient is of its views' mean loss.
        labels: One an example.
        clip_norm: Largest norm a gradient keeps.
    """
    parameters = {name: item.detach() for name, item in model.named_parameters()}

    def loss(values: dict[str, Tensor], own: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, values, (own,))
        return functional.cross_entropy(logits, label.expand(len(own)))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, views, labels)
    flat = torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)
    factor = torch.clamp(clip_norm / flat.norm(dim=1), max=1.0)
    return factor @ flat


def train_heads(
    images: data.ImageSet,
    plan: DpsgdPlan,
    folder: RunFolder | None,
    *,
    model: str,
    augment: int = 1,
    piece: int = 16,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Train one network for every head of a plan, one after another.

    Args:
        images: The set.
        plan: What to train; its step sizes are for gradients in units of batch times clip norm.
        folder: Where checkpoints and snapshots go; None in every process but the first.
        model: Name of the network, see `MODELS`.
        augment: Random views of each image; 1 trains on the images as they are.
        piece: Examples whose gradients are held at once.
        progress: Told how many steps are done, of how many.

    Returns:
        Test accuracy of the averaged weights by head, then by step of the snapshot.
    """
    _validate.one_of(tuple(MODELS), model=model)
    _validate.integer(1, augment=augment, piece=piece)
    _join_processes()
    accuracies: dict[str, dict[str, float]] = {}
    for number, head in enumerate(plan.heads):
        run = _NetworkRun(images, plan, head, model, augment, piece)
        report = None
        if progress is not None:
            report = _from(progress, number * plan.steps, len(plan.heads) * plan.steps)
        accuracies[head.name] = run.train(folder, report)
    if folder is not None:
        folder.write_json("results/accuracy.json", accuracies)
    return accuracies


def _from(progress: Progress, before: int, of: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, of)


def _join_processes() -> None:
    """Join the other processes where ``torchrun`` started several."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def process_rank() -> int:
    """Which process of a ``torchrun`` this is; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def _several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class _NetworkRun:
    """One network in training."""

    def __init__(
        self,
        images: data.ImageSet,
        plan: DpsgdPlan,
        head: DpsgdHead,
        model: str,
        augment: int,
        piece: int,
    ) -> None:
        self.plan, self.head = plan, head
        self._augment, self._piece = augment, piece
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._images = images
        seed = generator(plan.seed, Stream.PLACES, 1, head.label)
        with torch.random.fork_rng():
            torch.manual_seed(int(seed.integers(1 << 31)))
            self.model = MODELS[model](images.train_images.shape[3], images.classes)
        self.model.to(self._device).requires_grad_(False)
        self._parameters = list(self.model.parameters())
        tensors = tuple(item.numel() for item in self._parameters)
        self.flat = self._read()
        self.velocity, self.average = torch.zeros_like(self.flat), self.flat.clone()
        self.step = 0
        self.audited = None
        if head.canaries and process_rank() == 0:
            self.audited = train_dpsgd.AuditedHead(head, plan, tensors)

    def _read(self) -> Tensor:
        return torch.cat([item.flatten() for item in self._parameters])

    def _write(self, flat: Tensor) -> None:
        sizes = [item.numel() for item in self._parameters]
        for item, values in zip(self._parameters, torch.split(flat, sizes), strict=True):
            item.copy_(values.view_as(item))

    def train(
        self, folder: RunFolder | None, progress: Callable[[int], None] | None
    ) -> dict[str, float]:
        """Train to the end, from the last checkpoint on."""
        name, plan = self.head.name, self.plan
        accuracy: dict[str, float] = {}
        place = None if folder is None else folder.path / "checkpoints" / f"{name}.npz"
        if folder is not None and place is not None:
            accuracy = folder.read_json(f"results/accuracy-{name}.json", dict[str, float]) or {}
            if place.exists():
                self._load(place)
        self._share()
        marks = {*plan.snapshots, plan.steps}
        while self.step < plan.steps:
            self._advance()
            if folder is not None and place is not None:
                if self.step in marks:
                    accuracy[str(self.step)] = self._accuracy()
                    folder.write_json(f"results/accuracy-{name}.json", accuracy)
                    if self.audited is not None:
                        self.audited.snapshot(folder.path, name)
                if self.step % plan.checkpoint_every == 0 or self.step == plan.steps:
                    self._save(place)
            if progress is not None:
                progress(self.step)
        return accuracy

    def _advance(self) -> None:
        plan, head = self.plan, self.head
        records = len(self._images.train_images)
        coins = generator(plan.seed, Stream.SAMPLER, self.step).random(records)
        batch = np.flatnonzero(coins < head.sampling_rate)
        total = self._gradient(self._part(batch))
        noise = generator(plan.seed, Stream.NOISE, head.label, self.step)
        if process_rank() == 0:
            released = total.cpu().numpy()
            scale = np.float32(head.noise_multiplier * plan.clip_norm)
            drawn = noise.standard_normal(released.size, dtype=np.float32) * scale
            if self.audited is not None:
                self.audited.release(released, drawn)
            else:
                released += drawn
            total = torch.from_numpy(released).to(self._device)
        if _several():
            torch.distributed.broadcast(total, 0)
        self.velocity.mul_(head.momentum).add_(
            total, alpha=1.0 / (head.sampling_rate * records * plan.clip_norm)
        )
        self.flat.add_(self.velocity, alpha=-head.learning_rate)
        self.step += 1
        # Few steps in, an average over a thousand would be the start.
        decay = min(_AVERAGING, self.step / (self.step + 10.0))
        self.average.lerp_(self.flat, 1.0 - decay)

    def _part(self, batch: NDArray[np.int64]) -> NDArray[np.int64]:
        """The part of the batch that is this process's."""
        if not _several():
            return batch
        return batch[process_rank() :: torch.distributed.get_world_size()]

    def _gradient(self, batch: NDArray[np.int64]) -> Tensor:
        """The clipped sum over the batch, over all processes."""
        self._write(self.flat)
        total = torch.zeros_like(self.flat)
        views = generator(self.plan.seed, _VIEWS, self.step, process_rank())
        for start in range(0, len(batch), self._piece):
            rows = batch[start : start + self._piece]
            pixels = self._pixels(self._images.train_images[rows])
            several = self._views(pixels, views)
            labels = torch.from_numpy(self._images.train_labels[rows].astype(np.int64))
            total += clipped_sum(
                self.model,
                several.to(self._device),
                labels.to(self._device),
                clip_norm=self.plan.clip_norm,
            )
        if _several():
            torch.distributed.all_reduce(total)
        return total

    def _views(self, pixels: Tensor, draws: np.random.Generator) -> Tensor:
        if self._augment == 1:
            return pixels[:, None]
        return random_views(
            pixels,
            self._augment,
            draws,
            shift=pixels.shape[2] // 8,
            flip=self._images.name != "digits",  # a mirrored digit is none
        )

    def _pixels(self, images: NDArray[np.uint8]) -> Tensor:
        scaled = torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32)
        return scaled / self._images.white

    @torch.no_grad()
    def _accuracy(self) -> float:
        self._write(self.average)
        right = 0
        for start in range(0, len(self._images.test_images), 250):
            part = slice(start, start + 250)
            logits = self.model(self._pixels(self._images.test_images[part]).to(self._device))
            labels = torch.from_numpy(self._images.test_labels[part].astype(np.int64))
            right += int((logits.argmax(dim=1).cpu() == labels).sum())
        return right / len(self._images.test_images)

    def _state(self) -> dict[str, Tensor]:
        return {"flat": self.flat, "velocity": self.velocity, "average": self.average}

    def _save(self, path: Path) -> None:
        arrays: dict[str, NDArray[Any]] = {
            name: tensor.cpu().numpy() for name, tensor in self._state().items()
        }
        metadata: dict[str, Any] = {"step": self.step}
        if self.audited is not None:
            state = self.audited.recorder.state_dict()
            metadata["recorder"] = state.pop("state")
            arrays |= {f"recorder.{name}": array for name, array in state.items()}
            arrays["background"] = self.audited.background
        archive.write_arrays(path, _KIND, _SCHEMA, arrays, metadata)

    def _load(self, path: Path) -> None:
        arrays, content = archive.read_arrays(path, _KIND, _SCHEMA)
        step = train_dpsgd.checkpoint_step(content, self.plan)
        fields = {
            name: schema.Field(np.float32, tuple(tensor.shape))
            for name, tensor in self._state().items()
        }
        if self.audited is not None:
            fields["background"] = schema.Field(np.float64, self.audited.background.shape)
        own = {name: array for name, array in arrays.items() if not name.startswith("recorder.")}
        schema.check(own, fields)
        for name, tensor in self._state().items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        if self.audited is not None:
            recorded = {
                name.removeprefix("recorder."): array
                for name, array in arrays.items()
                if name.startswith("recorder.")
            }
            self.audited.recorder.load_state_dict({**recorded, "state": content.get("recorder")})
            self.audited.check_step(step)
            self.audited.background[:] = arrays["background"]
        self.step = step

    def _share(self) -> None:
        """Tell the other processes where the first one goes on."""
        if not _several():
            return
        step = torch.tensor([self.step], device=self._device)
        for tensor in (step, *self._state().values()):
            torch.distributed.broadcast(tensor, 0)
        self.step = int(step.item())
