"""Runs that are started again until they are done, and what came out of them.

Each is a function of a folder that goes on from whatever it finds there. Everything random in it
comes from its step, so that a run that was killed must end exactly as one that never was.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.federated import AuditedAggregator
from askgauss.files import atomic, codec
from askgauss.files.run_folder import RunFolder
from askgauss.integrations.opacus import CanaryAudit
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.recording.facts import RunFacts
from askgauss.recording.inputs import load_audit_input
from askgauss.recording.step_store import StepStore
from askgauss.results import Status
from askgauss.sampling import CyclicPoisson
from paper import heads_plan, page, reproduce, sweep, train_dpsgd
from paper.csv_rows import csv_text
from paper.scatter import ScatterFeatures
from tests.integrations.runs import SIZES, make_run

STEPS, EVERY = 11, 3
CANARIES = ag.DiracCanaries(present=20, absent=30, dimension=500, seed=3)


class RefusedError(Exception):
    """The run said that what it found does not belong together, and went no further."""


@dataclass(frozen=True)
class Restarted:
    """A run, and what is to be had of it at its end.

    Attributes:
        run: Goes on in a folder, to the end.
        said: What came of it, in a form that can be compared.
        may_refuse: Whether it may say that its files are of different steps.
    """

    run: Callable[[Path], None]
    said: Callable[[Path], Any]
    may_refuse: bool = False


def _digest(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _digest(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
    return repr(codec.to_plain(value))


def _transcript(path: Path) -> Any:
    found = ag.Transcript.load(path)
    return _digest({**found.arrays(), "facts": _compared(found.facts)})


def _compared(facts: RunFacts) -> RunFacts:
    """What runs have of their own left out: name, nonce, and where they went on after a kill."""
    return replace(facts, run=None, commitment=None, resumed=())


def _record(folder: Path, store: Path | None) -> None:
    checkpoint = folder / "recorder.npz"
    if store is not None and not checkpoint.exists():
        # As the recorder asks for: a run that left no checkpoint begins again without its steps.
        store.unlink(missing_ok=True)
    recorder = ag.Recorder(CANARIES, sampling_rate=0.5, noise_multiplier=1.0, store=store)
    if checkpoint.exists():
        recorder.load(checkpoint)
    while recorder.steps < STEPS:
        noise = np.random.default_rng([7, recorder.steps])
        released = np.zeros(500)
        CANARIES.plant(released, recorder.sample(), clip_norm=1.0)
        released += noise.normal(0.0, 1.0, 500)
        watch = released[CANARIES.watch]
        recorder.observe(CANARIES.project(released), background=0, watch=watch)
        if recorder.steps % EVERY == 0:
            recorder.save(checkpoint)
    recorder.transcript().save(folder / "transcript.npz")


def _stored(folder: Path) -> Any:
    store = StepStore(folder / "steps")
    steps = {"values": np.array(store.values), "planted": store.planted}
    return (_transcript(folder / "transcript.npz"), _digest(steps))


def _correlated(folder: Path, recorder: Any) -> None:
    """Recorders of correlated noise; the noise itself is none of their business."""
    checkpoint = folder / "recorder.npz"
    if checkpoint.exists():
        recorder.load(checkpoint)
    while recorder.steps < STEPS:
        step = recorder.steps
        released = np.random.default_rng([7, step]).normal(0.0, 1.0, CANARIES.size)
        recorder.sample(step=step)
        recorder.observe(released, background=np.zeros(CANARIES.size))
        if recorder.steps % EVERY == 0:
            recorder.save(checkpoint)
    recorder.save(folder / "finished.npz", finished=True)


def _by_tree(folder: Path) -> None:
    plan = TreePlan(steps=STEPS, release="prefixes", participations=2, min_separation=3)
    _correlated(folder, ag.LinearRecorder(CANARIES, plan))


def _by_bands(folder: Path) -> None:
    strategy = BandedStrategy.toeplitz([1.0, 0.5], STEPS + 1)
    sampling = CyclicPoisson(rate=0.5, cycle=2)
    _correlated(folder, ag.LinearRecorder.sampled(CANARIES, strategy, sampling=sampling))


def _finished(folder: Path) -> Any:
    found = load_audit_input(folder / "finished.npz")
    facts = replace(found.facts, run=None, resumed=())
    return (_digest(repr(facts)), _digest(found.scores().score))


class _Server:
    """An aggregator whose noise comes from its round."""

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, updates: Any, weights: Any) -> Any:
        noise = np.random.default_rng([9, self.rounds]).normal(0.0, 1.0, 500)
        self.rounds += 1
        clipped = [item / max(1.0, float(np.linalg.norm(item))) for item in updates]
        return (np.sum(clipped, axis=0) + noise) / len(updates)


def _aggregate(folder: Path) -> None:
    """A server; its rounds are saved before its audit, so that a kill may come in between."""
    server, place, saved = _Server(), folder / "server.txt", folder / "audit.npz"
    given = {"dimension": 500, "present": 20, "absent": 30, "clip_norm": 1.0, "seed": 3}
    aggregate = AuditedAggregator(server, noise_multiplier=1.0, **given)
    if place.exists():
        server.rounds = int(place.read_text())
    if saved.exists():
        aggregate.load(saved)
    while server.rounds < STEPS:
        generator = np.random.default_rng([5, server.rounds])
        try:
            aggregate(list(generator.normal(0.0, 0.1, (6, 500))), step=server.rounds)
        except RecordingError as error:
            raise RefusedError(str(error)) from error
        if server.rounds % EVERY == 0:
            with atomic.atomic_write(place) as stream:
                stream.write(b"%d" % server.rounds)
            aggregate.save(saved)
    aggregate.transcript().save(folder / "transcript.npz")


def _train(folder: Path, audit_first: bool) -> None:
    """Opacus; model and audit are saved one after the other, each whole or not at all."""
    run = make_run()
    inputs, targets = run.loader.dataset.tensors
    model, recorded, done = folder / "model.pt", folder / "audit.npz", 0
    if model.exists():
        state = torch.load(model, weights_only=True)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.engine.accountant.load_state_dict(state["accountant"])
        torch.set_rng_state(state["random"])
        done = state["step"]
    canaries = ag.DiracCanaries(present=20, absent=30, tensors=SIZES, seed=1)
    given = {"canaries": canaries, "sampling_rate": 0.25, "model": run.model}
    audit = CanaryAudit(run.optimizer, checkpoint=recorded, **given)

    def save_model() -> None:
        state = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "accountant": dict(run.engine.accountant.state_dict()),
            "random": torch.get_rng_state(),
            "step": step + 1,
        }
        with atomic.atomic_write(model) as stream:
            torch.save(state, stream)

    with audit:
        for step in range(done, STEPS):
            chosen = torch.rand(len(inputs)) < 0.25
            run.optimizer.zero_grad()
            run.criterion(run.model(inputs[chosen]), targets[chosen]).backward()
            run.optimizer.step()
            if (step + 1) % EVERY == 0:
                for save in (audit.save, save_model) if audit_first else (save_model, audit.save):
                    save()
        audit.transcript().save(folder / "transcript.npz")


def _trained(folder: Path) -> Any:
    found = ag.Transcript.load(folder / "transcript.npz")
    if found.number_of_steps != found.facts.accounted_steps:
        # Begun before the audit's first checkpoint: it must say which steps it did not see.
        result = ag.audit(found, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
        told = [item for item in result.findings if item.check == "step count"]
        assert told, result
        assert all(item.status is not Status.PASS for item in told), result
        raise RefusedError(f"{found.number_of_steps} of {found.facts.accounted_steps} steps seen")
    return _transcript(folder / "transcript.npz")


def _features() -> ScatterFeatures:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(40, 10)).astype(np.float16)
    labels = np.arange(40) % 2
    half = {"train": rows[:20], "train_labels": labels[:20]}
    return ScatterFeatures(name="blobs", test=rows[20:], test_labels=labels[20:], **half)


def _reproduce(folder: Path) -> None:
    """What a reproduction does: training with checkpoints, tables, a page, the minutes."""
    heads = tuple(
        heads_plan.DpsgdHead(name=f"head{label}", epsilon=8.0, noise_multiplier=1.0, canaries=8,
                             sampling_rate=0.5, learning_rate=0.1, label=label)
        for label in range(2)
    )  # fmt: skip
    plan = heads_plan.DpsgdPlan(heads=heads, steps=9, snapshots=(4,), seed=5, checkpoint_every=2)
    with reproduce._timed(folder) as minutes, RunFolder(folder / "run", {"plan": plan}) as place:
        train_dpsgd.train(_features(), plan, place)
        (folder / "figures").mkdir(exist_ok=True)
        rows = csv_text(page.ConvergenceFigure().rows()).encode()
        atomic.write_with_digest(folder / "figures" / "convergence.csv", rows)
        page.write(folder, scale="smoke", model="scatter-linear", minutes=minutes)


def _reproduced(folder: Path) -> Any:
    found = {}
    for head in ("head0", "head1"):
        for step in (4, 9):
            snapshot = train_dpsgd.load_snapshot(folder / "run", head, step)
            facts = _compared(snapshot.transcript.facts)
            found[f"{head} {step}"] = _digest(
                {**snapshot.transcript.arrays(), "facts": facts, "b": snapshot.background}
            )
    accuracy = RunFolder(folder / "run").read_json("results/accuracy.json")
    lines = (folder / "reproduction.md").read_text().splitlines()
    return (found, accuracy, [line for line in lines if line.startswith("|")])


def _sweep(folder: Path) -> None:
    grid = sweep.Grid(
        epsilons=(1.0, 4.0), seeds=3, auditors=("gaussian-shift",), steps=10, present=50, absent=50
    )
    sweep.run(grid, folder=folder)


def _swept(folder: Path) -> Any:
    table = sweep.find_table(folder)
    assert table is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return sweep.read_table(table)


def _opacus(audit_first: bool) -> Restarted:
    def run(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                _train(folder, audit_first)
            except RecordingError as error:
                if "not of the same step" not in str(error):
                    raise
                raise RefusedError(str(error)) from error

    return Restarted(run, _trained, may_refuse=True)


RUNS = {
    "recorder": Restarted(
        lambda folder: _record(folder, None), lambda folder: _transcript(folder / "transcript.npz")
    ),
    "step store": Restarted(lambda folder: _record(folder, folder / "steps"), _stored),
    "tree": Restarted(_by_tree, _finished),
    "sampled bands": Restarted(_by_bands, _finished),
    "aggregator": Restarted(
        _aggregate, lambda folder: _transcript(folder / "transcript.npz"), may_refuse=True
    ),
    "Opacus, audit first": _opacus(audit_first=True),
    "Opacus, model first": _opacus(audit_first=False),
    "reproduction": Restarted(_reproduce, _reproduced),
    "sweep": Restarted(_sweep, _swept),
}
