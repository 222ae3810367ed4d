from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule

from paper.linear_heads import Heads, HeadsShape
from paper.networks import ScatterLinear

CHANNELS, PLACES, CLASSES, ROWS = 6, 9, 4, 13


def _run(heads: int = 3):
    """Heads with random parameters, and rows that group normalisation leaves as they are."""
    generator = torch.Generator().manual_seed(3)
    raw = torch.randn(ROWS, CHANNELS, 3, 3, generator=generator) ** 2
    rows = torch.nn.functional.group_norm(raw, 3).flatten(1).numpy().astype(np.float16)
    shape = HeadsShape(heads=heads, features=CHANNELS * PLACES, classes=CLASSES)
    stack = Heads(shape)
    stack.flat += 0.3 * torch.randn(stack.flat.shape, generator=generator)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator).numpy()
    return stack, rows, labels


def _opacus_gradients(stack: Heads, head: int, rows, labels):
    """Per-example gradients of the same head by Opacus' hooks, in the order of the flat row."""
    model = ScatterLinear(CHANNELS, PLACES, CLASSES, groups=CHANNELS)
    model.norm = torch.nn.Identity()  # the rows are normalised already
    weight, bias = torch.split(stack.flat[head], list(stack.shape.tensors))
    model.head.weight.data = weight.view(CLASSES, -1).clone()
    model.head.bias.data = bias.clone()
    hooked = GradSampleModule(model, loss_reduction="sum")
    images = torch.from_numpy(rows).float().view(len(rows), CHANNELS, 3, 3)
    logits = hooked(images)
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="sum").backward()
    parts = (model.head.weight, model.head.bias)
    return torch.cat([part.grad_sample.flatten(1) for part in parts], dim=1)


def test_same_gradients_as_opacus():
    stack, rows, labels = _run()
    for head in range(3):
        gradients = _opacus_gradients(stack, head, rows, labels)
        norms = gradients.norm(dim=1)
        torch.testing.assert_close(
            stack.gradient_norms(rows, labels)[:, head], norms, rtol=1e-5, atol=0
        )
        clip = float(norms.median())
        wanted = (gradients * torch.clamp(clip / norms, max=1.0)[:, None]).sum(dim=0)
        found = stack.clipped_sum(rows, labels, clip_norm=clip)[head]
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5
        assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5


def test_scatter_linear_itself_has_these_gradients():
    """The whole model through Opacus against features cached behind the normalisation."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand(7, CHANNELS, 3, 3, generator=generator)
    labels = torch.arange(7) % CLASSES
    model = ScatterLinear(CHANNELS, PLACES, CLASSES, groups=3)
    hooked = GradSampleModule(model, loss_reduction="sum")
    torch.nn.functional.cross_entropy(hooked(raw), labels, reduction="sum").backward()
    gradients = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], dim=1)
    stack = Heads(HeadsShape(heads=1, features=CHANNELS * PLACES, classes=CLASSES))
    stack.flat[0] = torch.cat([p.detach().flatten() for p in model.parameters()])
    rows = torch.nn.functional.group_norm(raw, 3).flatten(1).numpy()
    found = stack.clipped_sum(rows, labels.numpy(), clip_norm=1e9)[0]
    torch.testing.assert_close(found, gradients.sum(dim=0), rtol=1e-5, atol=1e-5)


def test_each_head_has_its_own_batch():
    stack, rows, labels = _run()
    included = np.random.default_rng(0).random((ROWS, 3)) < 0.5
    together = stack.clipped_sum(rows, labels, clip_norm=2.0, included=included)
    for head in range(3):
        own = included[:, head]
        alone = stack.clipped_sum(rows[own], labels[own], clip_norm=2.0)[head]
        torch.testing.assert_close(together[head], alone, rtol=1e-5, atol=1e-6)


def test_pieces_of_a_batch_add_up(monkeypatch):
    stack, rows, labels = _run()
    whole = stack.clipped_sum(rows, labels, clip_norm=1.0)
    monkeypatch.setattr("paper.linear_heads._CHUNK", 5)
    pieces = stack.clipped_sum(lambda part: rows[part], labels, clip_norm=1.0)
    torch.testing.assert_close(whole, pieces, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_is_a_sum_of_nothing():
    stack, rows, labels = _run()
    total = stack.clipped_sum(rows[:0], labels[:0], clip_norm=1.0)
    assert total.shape == stack.flat.shape
    assert not total.any()


def test_accuracy():
    stack, rows, labels = _run()
    features = torch.from_numpy(rows).float()
    for head, share in enumerate(stack.accuracy(rows, labels)):
        weight, bias = torch.split(stack.flat[head], list(stack.shape.tensors))
        guess = (features @ weight.view(CLASSES, -1).T + bias).argmax(dim=1).numpy()
        assert share == pytest.approx(np.mean(guess == labels))
