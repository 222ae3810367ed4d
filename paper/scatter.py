"""Scattering features of images, normalised in groups and cached on disk.

The front of ScatterLinear has nothing to learn (Tramèr and Boneh 2021, arXiv 2011.11660): a
scattering transform of two scales, then group normalisation. So its output is computed once.
"""

from __future__ import annotations

import hashlib
import os
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askgauss import _validate
from askgauss.exceptions import FileFormatError, MissingExtraError
from askgauss.files import atomic, codec
from askgauss.files.atomic import locked
from paper import data

__all__ = ["ScatterFeatures", "features", "group_normalise", "transform"]

_SCHEMA = 1
_NOTE_KIND = "askgauss-features-begun"
_NOTE_SCHEMA = 2
_CHUNK = 125
_SCALES = 2

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScatterFeatures:
    """Features of a set, one row an image, as half-precision numbers.

    Attributes:
        name: Name of the set.
        train: ScatterFeatures to train on; a memory map where they came from the cache.
        train_labels: Their labels.
        test: ScatterFeatures to test on.
        test_labels: Their labels.
    """

    name: str
    train: NDArray[np.float16]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float16]
    test_labels: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Length of a row."""
        return int(self.train.shape[1])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.train_labels.max()) + 1


def transform(shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The scattering transform of images of this shape: (n, channels, ...) in and out.

    Raises:
        MissingExtraError: Kymatio is not installed.
    """
    try:
        from kymatio import Scattering2D
    except ImportError as error:
        raise MissingExtraError("Scattering needs Kymatio: install askgauss[paper].") from error
    scattering: Any = Scattering2D(J=_SCALES, shape=shape, frontend="torch")

    def apply(images: Tensor) -> Tensor:
        output: Tensor = scattering(images.contiguous())
        return output.flatten(1, 2)

    return apply


def group_normalise(channels: Tensor, groups: int) -> Tensor:
    """Mean zero and variance one within every group of channels of every image, no scale."""
    return torch.nn.functional.group_norm(channels, groups)


def features(
    images: data.ImageSet,
    *,
    folder: str | os.PathLike[str] | None = None,
    groups: int = 27,
    progress: Progress | None = None,
) -> ScatterFeatures:
    """Scattering features of a set; computed once, and gone on with if that was interrupted.

    Args:
        images: The set.
        folder: The cache, see `data.cache_folder`.
        groups: Groups of channels normalised together; must divide their number.
        progress: Told how many images are done, of how many.

    Raises:
        MissingExtraError: Kymatio is not installed.
        RunFolderBusyError: Another process is computing them.
    """
    _validate.integer(1, groups=groups)
    pixels = (images.train_images, images.test_images)
    height, width, colours = images.train_images.shape[1:]
    # 1 + 8 J + 8^2 J (J - 1) / 2 paths, for each colour.
    channels = colours * (1 + 8 * _SCALES + 32 * _SCALES * (_SCALES - 1))
    if channels % groups:
        raise _validate.fail("groups", groups, f"to divide {channels}, the number of channels")
    digest = hashlib.sha256(f"{_SCHEMA} {groups} {images.white}".encode())
    for part in pixels:
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(part).data)
    place = data.cache_folder(folder) / "scatter"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{images.name}-{digest.hexdigest()[:16]}.npy"
    rows = sum(map(len, pixels))
    size = channels * (height >> _SCALES) * (width >> _SCALES)
    if not path.exists():
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                _fill(path, images, groups, (rows, size), progress)
    atomic.check_digest(path, "features", "Delete it, and they are computed again.")
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise FileFormatError(f"{str(path)!r} is damaged: {error}. Delete it.") from error
    if stored.shape != (rows, size) or stored.dtype != np.float16:
        raise FileFormatError(f"Expected {str(path)!r} to hold these features. Delete it.")
    return ScatterFeatures(
        name=images.name,
        train=stored[: len(pixels[0])],
        train_labels=images.train_labels.astype(np.int64),
        test=stored[len(pixels[0]) :],
        test_labels=images.test_labels.astype(np.int64),
    )


def _fill(
    path: Path,
    images: data.ImageSet,
    groups: int,
    shape: tuple[int, int],
    progress: Progress | None,
) -> None:
    """Write the features next to their place, then move them there."""
    part, note = path.with_suffix(".part"), path.with_suffix(".json")
    stored, done, digest = _begun(part, note, shape)
    # The training images set the scale; a rehearsal on fewer of them has its own.
    train = images.train_images
    mean = train.mean(axis=(0, 1, 2)) / images.white
    deviation = train.std(axis=(0, 1, 2)) / images.white
    scatter = transform((train.shape[1], train.shape[2]))
    with torch.no_grad():
        while done < shape[0]:
            end = min(done + _CHUNK, shape[0])
            end = len(train) if done < len(train) < end else end
            inside = done < len(train)
            chunk = train[done:end] if inside else (
                images.test_images[done - len(train) : end - len(train)]
            )  # fmt: skip
            scaled = (chunk / images.white - mean) / deviation
            tensor = torch.from_numpy(scaled.astype(np.float32)).permute(0, 3, 1, 2)
            rows = group_normalise(scatter(tensor), groups).flatten(1)
            stored[done:end] = rows.numpy().astype(np.float16)
            digest.update(stored[done:end])
            done = end
            if done % (16 * _CHUNK) == 0 or done == shape[0]:
                stored.flush()
                progress_so_far = {"done": done, "sha256": digest.hexdigest()}
                atomic.write_text(note, codec.dumps(_NOTE_KIND, _NOTE_SCHEMA, progress_so_far))
            if progress is not None:
                progress(done, shape[0])
    del stored
    atomic.write_digest(path, part)
    part.replace(path)
    note.unlink(missing_ok=True)


def _begun(part: Path, note: Path, shape: tuple[int, int]) -> tuple[Any, int, Any]:
    """Where a computation that was stopped goes on: its file, rows done, and their digest."""
    digest = hashlib.sha256()
    if part.exists() and note.exists():
        try:
            content = codec.loads(atomic.read_bytes(note, regular=True), _NOTE_KIND, _NOTE_SCHEMA)
            done: int = codec.from_plain(int, content.get("done"), "done")
            stored = np.load(part, mmap_mode="r+", allow_pickle=False)
            if stored.shape == shape and stored.dtype == np.float16 and 0 < done <= shape[0]:
                digest.update(stored[:done])
                if digest.hexdigest() == content.get("sha256"):
                    return stored, done, digest
        except (FileFormatError, ValueError, EOFError, SyntaxError, tokenize.TokenError):
            # Nothing is lost with it but some minutes: begun again.
            pass
    fresh = np.lib.format.open_memmap(part, mode="w+", dtype=np.float16, shape=shape)
    return fresh, 0, hashlib.sha256()
