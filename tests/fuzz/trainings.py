"""Checkpoints of training runs: what audits, demos and experiments go on from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch

import askgauss as ag
from askgauss.cli import demo
from askgauss.cli.demo_training import DemoPlan, Digits, NumpyTrainer
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus.demo_run import OpacusTrainer
from paper import data, deep, heads_plan, train_dpsgd
from paper.scatter import ScatterFeatures
from tests.fuzz import mutations
from tests.fuzz.subjects import WATCHED, Subject, Workshop, audit, gone_on, plain
from tests.integrations.runs import make_run

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
# A fork of a process that has threads of torch would wait for them for ever.
torch.set_num_threads(1)


def make(shop: Workshop) -> list[Subject]:
    """A checkpoint of every kind of run, a step or two old."""
    forgeries = (mutations.forge_archive,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [
            ("Opacus checkpoint", *_opacus(shop)),
            ("watched recorder", *_watched(shop)),
            ("checkpoint of a demo", *_demo(shop, NumpyTrainer)),
            ("checkpoint of an Opacus demo", *_demo(shop, OpacusTrainer)),
            *_paper(shop),
        ]
    return [Subject(name, content, read, forgeries=forgeries) for name, content, read in made]


class _Fresh:
    """Something that reads checkpoints, made anew once one was accepted.

    What was refused must have left nothing behind that the next one does not replace.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._item = make, make()

    def read(self, load: Callable[[Any], None], said: Callable[[Any], Any]) -> Any:
        item = self._item
        load(item)
        self._item = self._make()
        return said(item)


def _state(state: dict[str, Any]) -> Any:
    return plain(
        {
            key: value.numpy() if isinstance(value, torch.Tensor) else value
            for key, value in state.items()
        }
    )


def _held_by(found: CanaryAudit) -> Any:
    """What an audit holds; what it recorded is audited too."""
    held = _state(found.state_dict())
    audit(found.transcript())
    return held


def _opacus(shop: Workshop) -> tuple[bytes, Any]:
    run = make_run(model=torch.nn.Linear(10, 4))
    canaries = ag.DiracCanaries(present=6, absent=6, tensors=(40, 4), seed=1)
    path = shop.folder / "opacus.npz"
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, canaries=canaries)
    with audit:
        run.train()
        audit.save(path)
    fresh = make_run(model=torch.nn.Linear(10, 4))

    reader = _Fresh(
        lambda: CanaryAudit(fresh.optimizer, data_loader=fresh.loader, canaries=canaries)
    )

    def read(content: bytes) -> Any:
        place = shop.path("opacus.npz", content)
        return reader.read(lambda item: item.load(place), _held_by)

    return path.read_bytes(), read


def _watched(shop: Workshop) -> tuple[bytes, Any]:
    canaries = ag.DiracCanaries(present=10, absent=14, dimension=200, seed=3)

    def recorder() -> ag.Recorder:
        return ag.Recorder(
            canaries, sampling_rate=0.5, noise_multiplier=1.0, monitor=ag.Monitor(claim=CLAIM)
        )

    noise, first = np.random.default_rng(2), recorder()
    for _ in range(6):
        released = np.zeros(200)
        canaries.plant(released, first.sample(), clip_norm=1.0)
        released += noise.normal(0, 1.0, 200)
        first.observe(canaries.project(released), background=0, watch=released[canaries.watch])
    path = shop.folder / "watched.npz"
    first.save(path)

    reader = _Fresh(recorder)

    def read(content: bytes) -> Any:
        place = shop.path("watched.npz", content)
        return reader.read(
            lambda item: item.load(place),
            lambda item: gone_on(item, canaries.size, background=0, watch=WATCHED),
        )

    return path.read_bytes(), read


def _demo(shop: Workshop, kind: Any) -> tuple[bytes, Any]:
    generator = np.random.default_rng(0)
    digits = Digits(
        name="noise",
        images=generator.random((30, 64)),
        labels=np.arange(30) % 10,
        test_images=generator.random((10, 64)),
        test_labels=np.arange(10),
    )
    plan = DemoPlan(
        steps=4,
        sampling_rate=0.5,
        noise_multiplier=1.0,
        noise_factor=1.0,
        clip_norm=1.0,
        learning_rate=0.1,
        hidden=1,
        seed=1,
    )
    trainer, path = kind(plan, digits), shop.folder / "demo.npz"
    trainer.step()
    demo.save_checkpoint(path, trainer)

    reader = _Fresh(lambda: kind(plan, digits))

    def said(trainer: Any) -> Any:
        arrays, values = trainer.state()
        return plain({**arrays, **values})

    def read(content: bytes) -> Any:
        place = shop.path("demo.npz", content)
        return reader.read(lambda item: demo.load_checkpoint(place, item), said)

    return path.read_bytes(), read


def _paper(shop: Workshop) -> list[tuple[str, bytes, Any]]:
    generator = np.random.default_rng(0)
    head = heads_plan.DpsgdHead(
        name="head",
        epsilon=8.0,
        noise_multiplier=1.0,
        sampling_rate=0.5,
        canaries=8,
        learning_rate=0.1,
    )
    plan = heads_plan.DpsgdPlan(heads=(head,), steps=4, clip_norm=1.0, seed=5)
    labels = np.arange(20) % 2
    features = ScatterFeatures(
        name="blobs",
        train=generator.normal(size=(20, 10)).astype(np.float16),
        train_labels=labels,
        test=generator.normal(size=(20, 10)).astype(np.float16),
        test_labels=labels,
    )
    run = train_dpsgd._ParallelRuns(features, plan)
    run.advance()
    folder = shop.folder / "paper"
    (folder / "results").mkdir(parents=True)
    run.save(folder)
    run.audited["head"].snapshot(folder, "head")
    background = folder / "results" / "head-000001-background.npz"
    images = data.ImageSet(
        name="noise",
        train_images=generator.integers(0, 256, (8, 8, 8, 12), dtype=np.uint8),
        train_labels=(np.arange(8) % 2).astype(np.uint8),
        test_images=generator.integers(0, 256, (2, 8, 8, 12), dtype=np.uint8),
        test_labels=np.arange(2, dtype=np.uint8),
    )

    def network() -> Any:
        with mock.patch.dict(deep.MODELS, tiny=torch.nn.Linear):
            return deep._NetworkRun(images, plan, head, "tiny", 1, 8)

    network()._save(folder / "deep.npz")

    def state(content: bytes) -> Any:
        again = train_dpsgd._ParallelRuns(features, plan)
        shop.path("paper/state.npz", content)
        again.load(folder)
        own = plain(again.audited["head"].recorder.state_dict())
        return (plain(again.heads.flat.numpy()), plain(again.velocity.numpy()), own, again.step)

    def snapshot(content: bytes) -> Any:
        shop.path(str(background.relative_to(shop.folder)), content)
        return plain(train_dpsgd.load_snapshot(folder, "head", 1).background)

    reader = _Fresh(network)

    def deep_state(run: Any) -> Any:
        tensors = plain({name: item.cpu().numpy() for name, item in run._state().items()})
        return (tensors, plain(run.audited.recorder.state_dict()), run.step)

    def deeper(content: bytes) -> Any:
        place = shop.path("paper/deep.npz", content)
        return reader.read(lambda item: item._load(place), deep_state)

    return [
        ("checkpoint of DP-SGD", (folder / "state.npz").read_bytes(), state),
        ("background of DP-SGD", background.read_bytes(), snapshot),
        ("checkpoint of a network", (folder / "deep.npz").read_bytes(), deeper),
    ]
