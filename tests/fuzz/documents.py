"""What is neither scores nor a checkpoint: documents, tables and pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import typer
from click.testing import CliRunner

import askgauss as ag
from askgauss.cli import app
from askgauss.cli.program import ExitCode
from askgauss.cli.watch_view import Follower
from askgauss.exceptions import FileFormatError
from askgauss.files import atomic
from askgauss.mechanism_audit import MechanismResult
from askgauss.monitor import feed
from paper import data, formats, page, reproduce, scatter
from paper.csv_rows import csv_text
from tests.fuzz import mutations
from tests.fuzz.subjects import Subject, Workshop, plain

_OPTIONS = b"delta = 1e-5\n[audit]\nepsilon = 8\nconfidence = 0.9\n"
CLAIM = ag.PrivacyClaim(epsilon=1.0, delta=1e-5)


def make(shop: Workshop) -> list[Subject]:
    """One of every kind."""
    documents = (mutations.forge_json, mutations.hostile_json)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    labels = np.array([3, 8], np.uint8)
    return [
        Subject("result of a mechanism", _mechanism(), _read_mechanism, forgeries=documents),
        Subject("watch file", _watch(shop), _reader(shop, _read_watch), forgeries=documents),
        Subject("minutes", _minutes(shop), _reader(shop, _read_minutes), forgeries=documents),
        Subject("figure's table", *_figure(shop)),
        Subject("features", *_features(shop)),
        Subject("features begun", *_begun(shop)),
        Subject("CIFAR binary", formats.cifar_binary(images, labels), _read_binary, False),
        Subject("sprite", _sprite(images), _read_sprite, False),
        Subject("options", _OPTIONS, _toml(shop), False),
    ]


def _reader(shop: Workshop, read: Any) -> Any:
    return lambda content: read(shop, content)


class _Laplace:
    def sample(self, given: float, n: int, seed: int) -> Any:
        return given + np.random.default_rng(seed).laplace(0.0, 1.0, n)


def _mechanism() -> bytes:
    claim = ag.PrivacyClaim(epsilon=0.5, delta=0.0)
    found = ag.audit_mechanism(_Laplace(), 0.0, 1.0, claim=claim, max_samples=2000, seed=1)
    return found.to_json().encode()


def _read_mechanism(content: bytes) -> Any:
    found = MechanismResult.from_json(content)
    str(found)
    found.epsilon_at(delta=0.01)
    return found.to_json()


def _watch(shop: Workshop) -> bytes:
    course = feed.Course(step=(1, 2), evidence=(0.1, 0.2), noise=(1.0, 0.9), bound=(0.0, 0.5))
    feed.write_feed(
        shop.folder / "watch",
        feed.Feed(
            claim=CLAIM,
            error=0.01,
            confidence=0.95,
            steps=2,
            planned=10,
            status="running",
            written=1e9,
            elapsed=4.0,
            declared=((1.0, 2),),
            evidence={"noise": 0.2},
            untested={"weights": "nobody said"},
            bound=(0.5, 2),
            projection=feed.Projection(step=2, steps=10, epsilon=1.0, low=0.5, high=2.0),
            alarm=feed.Alarm(step=2, cause="noise", evidence=3.0, epsilon=2.0, summary="little"),
            course=course,
            delta=CLAIM.delta,
        ),
    )
    return (shop.folder / "watch" / feed.FEED_NAME).read_bytes()


def _read_watch(shop: Workshop, content: bytes) -> Any:
    path = shop.path("watch.json", content)
    found = feed.read_feed(path)
    # What is accepted must not bring the view down either.
    str(Follower(path).look().line)
    return plain(found)


def _minutes(shop: Workshop) -> bytes:
    with reproduce._timed(shop.folder):
        pass
    return (shop.folder / "minutes.json").read_bytes()


def _read_minutes(shop: Workshop, content: bytes) -> Any:
    shop.path("minutes.json", content)
    with reproduce._timed(shop.folder) as minutes:
        return list(minutes)


def _figure(shop: Workshop) -> tuple[bytes, Any]:
    place = shop.folder / "page"
    (place / "figures").mkdir(parents=True)
    table = place / "figures" / "convergence.csv"
    rows = page.ConvergenceFigure().rows()
    atomic.write_with_digest(table, csv_text(rows).encode())

    def read(content: bytes) -> Any:
        table.write_bytes(content)
        written = page.write(place, scale="smoke", model="scatter-linear", minutes=[1.0])
        return written.read_bytes()

    return table.read_bytes(), read


def _computed(folder: Path) -> scatter.ScatterFeatures:
    """Features of three pictures, by something quicker than a scattering transform."""
    shape = (8, 8, 1)
    images = data.ImageSet(
        name="noise",
        train_images=np.arange(128, dtype=np.uint8).reshape(2, *shape),
        train_labels=np.zeros(2, np.uint8),
        test_images=np.ones((1, *shape), np.uint8),
        test_labels=np.zeros(1, np.uint8),
    )

    def transform(size: Any) -> Any:
        return lambda tensor: tensor[:, :, :2, :2].repeat(1, 81, 1, 1)

    with mock.patch.object(scatter, "transform", transform):
        return scatter.features(images, folder=folder, groups=9)


def _features(shop: Workshop) -> tuple[bytes, Any]:
    folder = shop.folder / "cache"
    _computed(folder)
    path = next((folder / "scatter").glob("*.npy"))

    def read(content: bytes) -> Any:
        path.write_bytes(content)
        found = _computed(folder)
        return plain({"train": np.array(found.train), "test": np.array(found.test)})

    return path.read_bytes(), read


def _begun(shop: Workshop) -> tuple[bytes, Any]:
    """The note of a computation that was stopped; the answer is always the whole of it."""
    folder = shop.folder / "begun"
    whole = _computed(folder)
    path = next((folder / "scatter").glob("*.npy"))
    features, note = path.read_bytes(), path.with_suffix(".json")
    half = {"done": 2, "sha256": _sha256(np.array(whole.train))}
    content = scatter.codec.dumps(scatter._NOTE_KIND, scatter._NOTE_SCHEMA, half).encode()

    def read(content: bytes) -> Any:
        path.unlink(missing_ok=True)
        path.with_suffix(".part").write_bytes(features)
        note.write_bytes(content)
        found = _computed(folder)
        if note.exists():
            raise FileFormatError("The note was left behind.")
        return plain({"train": np.array(found.train), "test": np.array(found.test)})

    return content, read


def _sha256(array: Any) -> str:
    return scatter.hashlib.sha256(array).hexdigest()


def _read_binary(content: bytes) -> Any:
    images, labels = formats.read_cifar_binary(content, "x")
    return plain({"images": images, "labels": labels})


def _sprite(images: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(images.reshape(2, -1, 3)).save(stream, "PNG")
    return stream.getvalue()


def _read_sprite(content: bytes) -> Any:
    return plain(formats.read_sprite(content, "x", size=32))


def _toml(shop: Workshop) -> Any:
    scores = shop.folder / "some.npz"
    ag.CanaryScores.from_groups(present=[2.0, 3.0, 4.0], absent=[0.0, 1.0, 0.5]).save(scores)

    # Built once: there are many commands.
    command: Any = typer.main.get_command(app)

    def read(content: bytes) -> Any:
        path = shop.path("options.toml", content)
        found = CliRunner().invoke(command, ["audit", str(scores), "--config", str(path)])
        if found.exit_code == ExitCode.FAILURE and "Unexpected" not in found.stderr:
            raise FileFormatError(found.stderr)
        if found.exit_code not in (0, 1, 3):
            raise AssertionError(f"exit code {found.exit_code}: {found.stderr}")
        return found.stdout

    return read
