"""Every reader, a small file of what it reads, and what the file says."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.files import archive, atomic, codec
from askgauss.files.run_folder import RunFolder, RunRecord
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.mechanisms.strategy import numpy_draw
from askgauss.mechanisms.tree import TreeNoise
from askgauss.recording.inputs import load_audit_input
from askgauss.recording.linear_recorder import LinearRecorder, SampledRecorder
from askgauss.recording.step_store import StepStore
from askgauss.sampling import CyclicPoisson
from paper import data, formats, sweep
from tests.fuzz import mutations
from tests.fuzz.mutations import Mutation

CANARIES = ag.DiracCanaries(present=10, absent=14, dimension=200, seed=3)
PLAN = TreePlan(steps=8, estimator="honaker", release="prefixes")
STRATEGY = BandedStrategy.toeplitz([1.0, 0.5], 12)
# Few enough rows that the kept canaries show how their noise hangs together.
FULL_RANK = BandedStrategy.toeplitz([1.0, 0.5], 6)
NOTHING, WATCHED = np.zeros(CANARIES.size), np.zeros(CANARIES.watch.size)
CLAIM = ag.PrivacyClaim(epsilon=1.0, delta=1e-5)
CONFIG = {"seed": 1}


@dataclass(frozen=True)
class Subject:
    """A reader and what it is given.

    Attributes:
        name: What it reads.
        content: A file of it.
        read: What the content says, in a form that can be compared.
        protected: Whether damage must never be taken for content.
        forgeries: Mutations that leave checksums and digests in order.
    """

    name: str
    content: bytes
    read: Callable[[bytes], Any]
    protected: bool = True
    forgeries: tuple[Mutation, ...] = ()


def sampled() -> SampledRecorder:
    """A recorder of correlated noise with sampling, before its first step."""
    sampling = CyclicPoisson(rate=0.5, cycle=2)
    return LinearRecorder.sampled(CANARIES, STRATEGY, sampling=sampling, noise_multiplier=1.0)


def with_batches() -> ag.Recorder:
    """A recorder that is shown the batches of the training too, before its first step."""
    return ag.Recorder(CANARIES, sampling_rate=0.2, noise_multiplier=1.0, records=60)


def plain(value: Any) -> Any:
    """Something to compare: nested arrays as digests."""
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return (value.dtype.str, value.shape, digest)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return repr(codec.to_plain(value))


def said(data_: Any) -> Any:
    """What scores or a transcript say."""
    if isinstance(data_, ag.CanaryScores):
        return plain(
            {
                "score": data_.score,
                "member": data_.member,
                "ids": None if data_.ids is None else data_.ids,
                "shift": data_.relative_shift,
                "metadata": data_.metadata,
            }
        )
    if isinstance(data_, ag.Transcript):
        return plain({**data_.arrays(), "facts": data_.facts})
    return plain({**data_.arrays(), "facts": data_.facts, "plan": data_.plan})


def audit(found: Any) -> ag.AuditResult:
    """What is accepted must bring neither an auditor down nor whoever reads the result."""
    with np.errstate(all="ignore"):
        result = ag.audit(found, claim=CLAIM)
    str(result)
    assert ag.AuditResult.from_json(result.to_json()).verdict is result.verdict
    return result


def audited(content: bytes) -> Any:
    """Also audited."""
    found = load_audit_input(io.BytesIO(content))
    audit(found)
    return said(found)


def gone_on(recorder: Any, width: int, steps: int = 2, **more: Any) -> Any:
    """What a recorder holds; then it goes on for some steps, and what it recorded is audited."""
    held = plain(recorder.state_dict())
    noise = np.random.default_rng(5)
    for _ in range(steps):
        # The checkpoint may have been taken between the two halves of a step.
        with contextlib.suppress(RecordingError):
            recorder.sample()
        recorder.observe(noise.normal(size=width), **more)
    audit(recorder.transcript())
    return held


class Workshop:
    """A folder for the readers that want a path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def recorder(self, content: bytes) -> Any:
        recorder = ag.Recorder(CANARIES, sampling_rate=0.5, noise_multiplier=1.0)
        recorder.load(self.path("recorder.npz", content))
        return gone_on(recorder, CANARIES.size, background=0, watch=WATCHED)

    def batches_recorder(self, content: bytes) -> Any:
        recorder = with_batches()
        recorder.load(self.path("batches.npz", content))
        drawn = np.arange(0, 60, 5)
        return gone_on(recorder, CANARIES.size, background=0, watch=WATCHED, batch=drawn)

    def stored_recorder(self, steps: bytes) -> Callable[[bytes], Any]:
        """A checkpoint that goes with a store."""

        def read(content: bytes) -> Any:
            store = self.path("resumed", steps)
            recorder = ag.Recorder(CANARIES, sampling_rate=0.5, noise_multiplier=1.0, store=store)
            recorder.load(self.path("recorder.npz", content))
            return gone_on(recorder, CANARIES.size, background=0, watch=WATCHED)

        return read

    def linear_recorder(self, content: bytes) -> Any:
        recorder = LinearRecorder(CANARIES, PLAN, noise_multiplier=1.0)
        recorder.load(self.path("linear.npz", content))
        return gone_on(recorder, CANARIES.size, background=NOTHING)

    def strategy_recorder(self, content: bytes) -> Any:
        recorder = LinearRecorder(CANARIES, FULL_RANK, noise_multiplier=1.0)
        recorder.load(self.path("strategy.npz", content))
        return gone_on(recorder, CANARIES.size, background=NOTHING)

    def sampled_recorder(self, content: bytes) -> Any:
        recorder = sampled()
        recorder.load(self.path("sampled.npz", content))
        return gone_on(recorder, CANARIES.size, background=NOTHING)

    def steps(self, content: bytes) -> Any:
        store = StepStore(self.path("steps", content))
        found = {
            "values": np.array(store.values),
            "planted": store.planted,
            "member": store.member,
            "facts": store.facts,
            "fingerprint": store.fingerprint,
        }
        return plain(found)

    def command_run(self, content: bytes) -> Any:
        self.path("run.json", content)
        return plain(RunFolder(self.folder).read())

    def run_folder(self, content: bytes) -> Any:
        self.path("run/run.json", content)
        with RunFolder(self.folder / "run", CONFIG):
            return "entered"

    def run_content(self, content: bytes) -> Any:
        self.path("run2/results/accuracy.json", content)
        folder = RunFolder(self.folder / "run2", CONFIG)
        return folder.read_json("results/accuracy.json", dict[str, dict[str, float]])

    def cell(self, content: bytes) -> Any:
        return sweep._read_cell(self.path("cell.json", content), _cell())

    def table(self, name: str, digest: bytes | None) -> Callable[[bytes], Any]:
        def read(content: bytes) -> Any:
            path = self.path(name, content)
            beside = path.with_name(f"{name}.sha256")
            beside.unlink(missing_ok=True)
            if digest is not None:
                beside.write_bytes(digest)
            return repr(sweep.read_table(path))

        return read

    def images(self, content: bytes) -> Any:
        recipe = data._RECIPES["fashion-mnist"]
        return plain(data._from_source(recipe, self.path("images.npz", content)))

    def idx(self, content: bytes) -> Any:
        return plain(formats.read_idx(self.path("images.idx", content)))

    def cached_images(self, content: bytes) -> Any:
        self.path("fashion-mnist.npz", content)
        found = data.load("fashion-mnist", folder=self.folder)
        return plain({"images": found.train_images, "labels": found.train_labels})

    def auditbench(self, name: str) -> Callable[[bytes], Any]:
        def read(content: bytes) -> Any:
            for side in ("in", "out"):
                self.path(f"bench/{side}_scores_ndis_3.csv", b"1.0\n2.0\n3.5\n")
            self.path("bench/hparams.json", b'{"max_grad_norm": 1.0, "noise_multiplier": 2.0}')
            self.path(f"bench/{name}", content)
            return said(ag.CanaryScores.from_auditbench(self.folder / "bench"))

        return read


def result(content: bytes) -> Any:
    return ag.AuditResult.from_json(content).to_json()


def _grid() -> sweep.Grid:
    return sweep.Grid(
        epsilons=(1.0,), seeds=1, auditors=("gaussian-shift",), steps=10, present=50, absent=50
    )


@functools.cache
def _cell() -> sweep.Cell:
    return next(iter(_grid().cells()))


def _recorded(folder: Path) -> dict[str, bytes]:
    """The files of two runs, one of each kind."""
    found, noise = {}, np.random.default_rng(1)
    store = folder / "made-steps"
    recorder = ag.Recorder(CANARIES, sampling_rate=0.5, noise_multiplier=1.0, store=store)

    def observe(recorder: ag.Recorder) -> None:
        clean = np.zeros(200)
        CANARIES.plant(clean, recorder.sample(), clip_norm=1.0)
        released = clean + noise.normal(0, 1.0, 200)
        watch = released[CANARIES.watch]
        recorder.observe(CANARIES.project(released), background=0, watch=watch)

    for _ in range(4):
        observe(recorder)
    recorder.save(folder / "made.npz")
    found["stored recorder"] = (folder / "made.npz").read_bytes()
    found["earlier steps"] = store.read_bytes()
    observe(recorder)
    found["transcript"] = _saved(recorder.transcript())
    found["steps"] = store.read_bytes()
    other = ag.Recorder(CANARIES, sampling_rate=0.5, noise_multiplier=1.0)
    for _ in range(3):
        observe(other)
    other.sample()
    other.save(folder / "made.npz")
    found["recorder"] = (folder / "made.npz").read_bytes()
    shown = with_batches()
    for _ in range(4):
        shown.sample()
        drawn = np.flatnonzero(noise.random(60) < 0.2)
        shown.observe(noise.normal(size=CANARIES.size), background=0, watch=WATCHED, batch=drawn)
    shown.save(folder / "made.npz")
    found["recorder of batches"] = (folder / "made.npz").read_bytes()
    linear = LinearRecorder(CANARIES, PLAN, noise_multiplier=1.0)
    tree = TreeNoise(numpy_draw(noise, 200), steps=8, estimator="honaker")
    clean = np.zeros(200)
    for step in range(8):
        CANARIES.plant(clean, linear.sample(), clip_norm=1.0)
        linear.observe(CANARIES.project(clean + tree.next()), background=np.zeros(24))
        if step == 5:
            linear.save(folder / "made.npz")
            found["linear recorder"] = (folder / "made.npz").read_bytes()
    found["linear transcript"] = _saved(linear.transcript())
    mixed = LinearRecorder(CANARIES, FULL_RANK, noise_multiplier=1.0)
    draws, clean = FULL_RANK.stream(numpy_draw(noise, 200)), np.zeros(200)
    for step in range(6):
        clean[:] = 0.0
        CANARIES.plant(clean, mixed.sample(), clip_norm=1.0)
        mixed.observe(CANARIES.project(clean + draws.next()), background=NOTHING)
        if step == 3:
            mixed.save(folder / "made.npz")
            found["strategy recorder"] = (folder / "made.npz").read_bytes()
    found["strategy transcript"] = _saved(mixed.transcript())
    nodes = ag.simulate_dpftrl(
        steps=8, noise_multiplier=1.0, present=12, absent=40, restart_every=4, seed=1
    )
    found["nodes transcript"] = _saved(nodes)
    rounds = sampled()
    for _ in range(5):
        rounds.sample()
        rounds.observe(noise.normal(size=24), background=np.zeros(24))
    rounds.save(folder / "made.npz")
    found["sampled recorder"] = (folder / "made.npz").read_bytes()
    return found


def _saved(item: Any) -> bytes:
    stream = io.BytesIO()
    item.save(stream)
    return stream.getvalue()


def make(folder: Path) -> list[Subject]:
    """Every subject; files of its own go into the folder."""
    shop = Workshop(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = _recorded(folder)
    arrays, text = (mutations.forge_archive,), (mutations.forge_json,)
    documents = (*text, mutations.hostile_json)
    generator = np.random.default_rng(0)
    scores = ag.CanaryScores(
        score=generator.normal(size=12) + 2.0 * (np.arange(12) < 6),
        member=np.arange(12) < 6,
        ids=np.array([f"c{index}" for index in range(12)]),
        relative_shift=np.linspace(0.5, 1.0, 12),
        metadata=ag.scores.ScoreMetadata(steps=5, noise_multiplier=2.0),
    )
    results = {
        "result of a transcript": ag.audit(
            load_audit_input(io.BytesIO(files["transcript"])), claim=CLAIM
        ),
        "result of scores": ag.audit(
            ag.CanaryScores.from_groups(
                present=generator.normal(3, 1, 60), absent=generator.normal(0, 1, 60)
            ),
            claim=CLAIM,
        ),
        "result without a claim": ag.audit(scores, delta=1e-5, auditor=ag.OneRun()),
    }
    RunFolder(folder).write(RunRecord(command="demo", config={"options": {"seed": 1}}, versions={}))
    with RunFolder(folder / "run2", CONFIG) as place:
        place.write_json("results/accuracy.json", {"head": {"10": 0.5, "20": 0.75}})
    config = (folder / "run2" / "run.json").read_bytes()
    accuracy = (folder / "run2" / "results" / "accuracy.json").read_bytes()
    table = sweep.run(_grid(), folder=folder / "swept")
    cell = next((folder / "swept" / "results" / "cells").iterdir())
    digest = table.with_name(f"{table.name}.sha256").read_bytes()
    lines = sweep.csv_text(sweep.read_table(table)).encode()
    sums = atomic._digest_line(Path("results.csv"), hashlib.sha256(lines).hexdigest()).encode()
    images = {
        name: np.zeros((2, 4, 4, 1) if name.endswith("images") else 2, np.uint8)
        for name in data._PARTS
    }
    stream, packed = io.BytesIO(), io.BytesIO()
    np.savez_compressed(stream, **images)
    archive.write_arrays(packed, data._KIND, data._SCHEMA, images, {"name": "x"}, private=False)
    idx = struct.pack(">4B2I", 0, 0, 8, 2, 5, 7) + bytes(35)
    subjects = [
        Subject("scores", _saved(scores), audited, forgeries=arrays),
        Subject("transcript", files["transcript"], audited, forgeries=arrays),
        Subject("linear transcript", files["linear transcript"], audited, forgeries=arrays),
        Subject("strategy transcript", files["strategy transcript"], audited, forgeries=arrays),
        Subject("nodes transcript", files["nodes transcript"], audited, forgeries=arrays),
        Subject("recorder", files["recorder"], shop.recorder, forgeries=arrays),
        Subject(
            "stored recorder",
            files["stored recorder"],
            shop.stored_recorder(files["earlier steps"]),
            forgeries=arrays,
        ),
        Subject(
            "recorder of batches",
            files["recorder of batches"],
            shop.batches_recorder,
            forgeries=arrays,
        ),
        Subject(
            "linear recorder", files["linear recorder"], shop.linear_recorder, forgeries=arrays
        ),
        Subject(
            "strategy recorder",
            files["strategy recorder"],
            shop.strategy_recorder,
            forgeries=arrays,
        ),
        Subject(
            "sampled recorder", files["sampled recorder"], shop.sampled_recorder, forgeries=arrays
        ),
        Subject("step store", files["steps"], shop.steps),
        *(
            Subject(name, item.to_json().encode(), result, forgeries=documents)
            for name, item in results.items()
        ),
        Subject(
            "run of a command",
            (folder / "run.json").read_bytes(),
            shop.command_run,
            forgeries=documents,
        ),
        Subject("run folder", config, shop.run_folder, forgeries=text),
        Subject("content of a run folder", accuracy, shop.run_content, forgeries=documents),
        Subject("cell of a sweep", cell.read_bytes(), shop.cell, forgeries=documents),
        Subject("Parquet table", table.read_bytes(), shop.table("results.parquet", digest)),
        Subject("CSV table", lines, shop.table("results.csv", sums)),
        Subject("cached images", packed.getvalue(), shop.cached_images, forgeries=arrays),
        Subject("bare Parquet table", table.read_bytes(), shop.table("bare.parquet", None), False),
        Subject("bare CSV table", lines, shop.table("bare.csv", None), False),
        Subject("npz of images", stream.getvalue(), shop.images, False),
        Subject("IDX", gzip.compress(idx), shop.idx, False),
        Subject(
            "hyperparameters",
            b'{"max_grad_norm": 1.0, "noise_multiplier": 2.0}',
            shop.auditbench("hparams.json"),
            False,
        ),
        Subject(
            "auditbench scores", b"1.0\n2.0\n3.5\n", shop.auditbench("in_scores_ndis_3.csv"), False
        ),
    ]
    from tests.fuzz import documents as others
    from tests.fuzz import handed, trainings

    made = [*others.make(shop), *trainings.make(shop), *handed.make(shop)]
    return [*subjects, *made]


def is_json(subject: Subject) -> bool:
    try:
        return isinstance(json.loads(subject.content), dict)
    except ValueError:
        return False
