"""DP-SGD of ScatterLinear: closed-form clipping against Opacus hooks, same model and batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule

from paper.linear_heads import Heads, HeadsShape
from paper.networks import ScatterLinear

CHANNELS, PLACES, CLASSES = 243, 64, 10
BATCH = 1024
# Opacus holds every gradient of a batch at once: 155,530 numbers an example.
PIECE = 256
HEADS = 12


def rows() -> Iterator[tuple[str, str]]:
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand(BATCH, CHANNELS, 8, 8, generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    model = ScatterLinear(CHANNELS, PLACES, CLASSES)
    features = model.norm(raw).flatten(1).numpy().astype(np.float16)
    # Both get the same rounded features, behind the normalisation that has nothing to learn.
    images = torch.from_numpy(features).float()
    hooked = GradSampleModule(model.head, loss_reduction="sum")
    shape = HeadsShape(heads=1, features=CHANNELS * PLACES, classes=CLASSES)
    one = Heads(shape)
    one.flat[0] = torch.cat([p.detach().flatten() for p in model.head.parameters()])

    def by_hooks(clip_norm: float = 1.0) -> torch.Tensor:
        total = torch.zeros(shape.parameters)
        for start in range(0, BATCH, PIECE):
            part = slice(start, start + PIECE)
            loss = torch.nn.functional.cross_entropy(
                hooked(images[part]), labels[part], reduction="sum"
            )
            loss.backward()
            samples = [p.grad_sample.flatten(1) for p in hooked.parameters()]
            norms = torch.stack([s.norm(dim=1) for s in samples]).norm(dim=0)
            factor = torch.clamp(clip_norm / norms, max=1.0)
            total += torch.cat([torch.einsum("n,np->p", factor, s) for s in samples])
            hooked.zero_grad()
        return total

    def closed_form(clip_norm: float = 1.0) -> torch.Tensor:
        return one.clipped_sum(features, labels.numpy(), clip_norm=clip_norm)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hooks, ours = by_hooks(), closed_form()
        error = float((hooks - ours).norm() / hooks.norm())
        yield "relative difference of the clipped sums (wanted 1e-5)", f"{error:.1e}"
        slow, fast = _alternating(by_hooks, closed_form)
    yield f"steps a second by Opacus hooks, batch {BATCH:,}", f"{1.0 / slow:.2f}"
    yield f"steps a second in closed form, batch {BATCH:,}", f"{1.0 / fast:.2f}"
    yield "closed form over hooks (wanted at least 3)", f"{slow / fast:.1f} x"
    many = Heads(HeadsShape(heads=HEADS, features=CHANNELS * PLACES, classes=CLASSES))
    single, stacked = _alternating(
        closed_form, lambda: many.clipped_sum(features, labels.numpy(), clip_norm=1.0)
    )
    yield f"{HEADS} heads at once over one head", f"{stacked / single:.1f} x the time"


def _alternating(
    first: Callable[[], object], second: Callable[[], object], repeats: int = 5
) -> tuple[float, float]:
    """Best times of two calls taken in turn, so that a busy machine disturbs both alike."""
    best = [np.inf, np.inf]
    for _ in range(repeats):
        for index, call in enumerate((first, second)):
            started = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - started)
    return best[0], best[1]


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what}: {measured}")
