from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from askgauss.files.run_folder import RunFolder
from paper import data, deep, heads_plan, train_dpsgd
from paper.augment import random_views
from paper.networks import MODELS, SmallCNN, StandardisedConv2d, WideResNet
from tests import forks


def few_digits(train, test):
    """The first digits only."""
    images = data.load("digits")
    return dataclasses.replace(
        images,
        train_images=images.train_images[:train],
        train_labels=images.train_labels[:train],
        test_images=images.test_images[:test],
        test_labels=images.test_labels[:test],
    )


def _plan(steps: int, canaries: int = 100, **more):
    head = heads_plan.DpsgdHead(
        name="head",
        epsilon=8.0,
        noise_multiplier=1.0,
        sampling_rate=0.1,
        canaries=canaries,
        learning_rate=1.0,
    )
    return heads_plan.DpsgdPlan(heads=(head,), steps=steps, seed=1, **more)


@pytest.mark.parametrize("views", [1, 3])
def test_clipped_sum_is_that_of_the_mean_over_views(views):
    torch.manual_seed(0)
    model = SmallCNN(1, 10)
    images = torch.rand(5, views, 1, 8, 8)
    labels = torch.arange(5)
    gradients = []
    for own, label in zip(images, labels, strict=True):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(own), label.expand(views)).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    flat = torch.stack(gradients)
    norms = flat.norm(dim=1)
    clip = float(norms.median())
    wanted = (flat * torch.clamp(clip / norms, max=1.0)[:, None]).sum(dim=0)
    found = deep.clipped_sum(model, images, labels, clip_norm=clip)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_wide_resnet_mixes_no_records():
    torch.manual_seed(0)
    model = WideResNet()
    assert sum(p.numel() for p in model.parameters()) == 2_751_146
    model = WideResNet(3, 10, depth=10, width=1, groups=4)
    images = torch.rand(3, 3, 16, 16)
    together, alone = model(images), torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_filters_are_standardised():
    torch.manual_seed(0)
    layer = StandardisedConv2d(3, 4, 3, bias=False)
    images = torch.rand(1, 3, 5, 5)
    weight = layer.weight.detach()
    mean = weight.mean(dim=(1, 2, 3), keepdim=True)
    spread = ((weight - mean) ** 2).mean(dim=(1, 2, 3), keepdim=True)
    plain = torch.nn.functional.conv2d(images, (weight - mean) / (spread * 27 + 1e-4).sqrt())
    torch.testing.assert_close(layer(images), plain)
    layer.weight.data = 5.0 * weight + 2.0
    torch.testing.assert_close(layer(images), plain, rtol=0.02, atol=1e-3)


def test_views_are_the_image_moved():
    image = torch.arange(1.0, 26.0).view(1, 1, 5, 5)
    padded = np.pad(image[0, 0].numpy(), 2, mode="reflect")
    crops = [padded[i : i + 5, j : j + 5] for i in range(5) for j in range(5)]
    possible = {crop.tobytes() for crop in crops} | {
        np.ascontiguousarray(crop[:, ::-1]).tobytes() for crop in crops
    }
    views = random_views(image, 1500, np.random.default_rng(0), shift=2, jitter=0.0)
    found = {np.ascontiguousarray(view).tobytes() for view in views[0, :, 0].numpy()}
    assert found == possible  # any of the 40 is missed with probability below 1e-11
    same = random_views(image, 2, np.random.default_rng(0), shift=0, flip=False, jitter=0.0)
    assert (same == image[:, None]).all()
    assert random_views(image, 4, np.random.default_rng(0)).isfinite().all()


def test_small_cnn_learns_and_goes_on(tmp_path):
    images = data.load("digits")
    plan = _plan(8, checkpoint_every=3)

    class Stop(Exception):
        pass

    def stop(done, of):
        if done == 5:
            raise Stop

    with RunFolder(tmp_path / "a", {}) as folder:
        whole = deep.train_heads(images, plan, folder, model="small-cnn", piece=64)
    assert whole["head"]["8"] > 0.4
    with pytest.raises(Stop), RunFolder(tmp_path / "b", {}) as folder:
        deep.train_heads(images, plan, folder, model="small-cnn", piece=64, progress=stop)
    with RunFolder(tmp_path / "b", {}) as folder:
        resumed = deep.train_heads(images, plan, folder, model="small-cnn", piece=64)
    assert resumed == whole
    first, second = (train_dpsgd.load_snapshot(tmp_path / name, "head", 8) for name in ("a", "b"))
    np.testing.assert_array_equal(first.background, second.background)
    for name, array in first.transcript.arrays().items():
        np.testing.assert_array_equal(array, second.transcript.arrays()[name], err_msg=name)


def test_wide_resnet_takes_a_step(tmp_path):
    generator = np.random.default_rng(0)
    images = data.ImageSet(
        name="noise",
        train_images=generator.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8),
        train_labels=(np.arange(30) % 10).astype(np.uint8),
        test_images=generator.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        test_labels=np.arange(4, dtype=np.uint8),
    )
    with RunFolder(tmp_path / "run", {}) as folder:
        found = deep.train_heads(images, _plan(1), folder, model="wrn16-4", augment=2, piece=2)
    assert "1" in found["head"]
    transcript = train_dpsgd.load_snapshot(tmp_path / "run", "head", 1).transcript
    assert transcript.finite
    assert set(MODELS) == {"wrn16-4", "small-cnn"}


@pytest.mark.parametrize(
    ("name", "size", "shift", "flip"), [("digits", 8, 1, False), ("cifar10", 32, 4, True)]
)
def test_views_fit_the_images(tmp_path, monkeypatch, name, size, shift, flip):
    asked = []

    def spy(images, views, generator, **options):
        asked.append((views, options))
        return random_views(images, views, generator, **options)

    monkeypatch.setattr(deep, "random_views", spy)
    images = data.ImageSet(
        name=name,
        train_images=np.full((30, size, size, 1), 9, np.uint8),
        train_labels=np.zeros(30, np.uint8),
        test_images=np.zeros((1, size, size, 1), np.uint8),
        test_labels=np.zeros(1, np.uint8),
    )
    with RunFolder(tmp_path / "run", {}) as folder:
        deep.train_heads(images, _plan(2), folder, model="small-cnn", augment=3)
    assert asked
    assert all(call == (3, {"shift": shift, "flip": flip}) for call in asked)


_WORKER = """
import contextlib, sys
from askgauss.files.run_folder import RunFolder
from paper import deep
from tests.paper.test_deep import _plan, few_digits
first = deep.process_rank() == 0
with RunFolder(sys.argv[1], {}) if first else contextlib.nullcontext() as folder:
    deep.train_heads(few_digits(300, 60), _plan(3), folder, model="small-cnn")
"""


def test_two_processes_are_one_run(tmp_path):
    """Under torchrun: gradients add up over processes, noise and canaries come once."""
    script = tmp_path / "worker.py"
    script.write_text(_WORKER)
    done = forks.ran_as_ranks(script, 2, str(tmp_path / "two"))
    assert [rank.returncode for rank in done] == [0, 0], [rank.stderr for rank in done]
    with RunFolder(tmp_path / "one", {}) as folder:
        one = deep.train_heads(few_digits(300, 60), _plan(3), folder, model="small-cnn")
    two = RunFolder(tmp_path / "two").read_json("results/accuracy.json")
    # Sums of floats in another order may move a test image or two.
    assert abs(two["head"]["3"] - one["head"]["3"]) < 0.05
    first, second = (
        train_dpsgd.load_snapshot(tmp_path / name, "head", 3) for name in ("one", "two")
    )
    np.testing.assert_allclose(first.background, second.background, atol=1e-3)
    np.testing.assert_allclose(
        first.transcript.canaries.total, second.transcript.canaries.total, atol=1e-3
    )
