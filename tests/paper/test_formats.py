from __future__ import annotations

import gzip
import io
import struct

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError
from paper import formats


def _images(count: int = 3, seed: int = 0):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, generator.integers(0, 10, count).astype(np.uint8)


def test_cifar_binary_and_back():
    images, labels = _images()
    raw = formats.cifar_binary(images, labels)
    # By hand: the label, then every red value row by row, then green, then blue.
    assert raw[0] == labels[0]
    assert raw[1 + 32 * 5 + 7] == images[0, 5, 7, 0]
    assert raw[3073 + 1 + 2 * 1024 + 32 * 5 + 7] == images[1, 5, 7, 2]
    again = formats.read_cifar_binary(raw, "x")
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


def test_a_damaged_binary_batch_is_refused():
    raw = formats.cifar_binary(*_images())
    for bad, said in (
        (b"", "rows of 3073"),
        (raw[:-1], "rows of 3073"),
        (b"\x0a" + raw[1:], "0 to 9"),
    ):
        with pytest.raises(FileFormatError, match=said):
            formats.read_cifar_binary(bad, "x")


def test_idx(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 3, 4) + values.tobytes()
    for name, content in (("plain", raw), ("packed", gzip.compress(raw))):
        path = tmp_path / name
        path.write_bytes(content)
        np.testing.assert_array_equal(formats.read_idx(path), values)
    for bad in (b"", b"\x00\x00\x08", raw[:-1], raw + b"x", b"\x00\x00\x0d" + raw[3:],
                gzip.compress(raw)[:-9]):  # fmt: skip
        path.write_bytes(bad)
        with pytest.raises(FileFormatError):
            formats.read_idx(path)


def test_idx_with_a_size_nobody_has(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x00\x00\x08\x04" + struct.pack(">4I", *[2**32 - 1] * 4))
    with pytest.raises(FileFormatError, match="at most"):
        formats.read_idx(path)


@pytest.mark.parametrize("claims_little", [True, False])
def test_no_more_of_an_idx_file_is_unpacked_than_its_header_says(tmp_path, claims_little):
    """Sixteen megabytes of zeros in a few kilobytes, whatever the header says they are."""
    path = tmp_path / "packed.gz"
    shape = (2, 3, 4) if claims_little else (1 << 10, 1 << 10, 1 << 10)
    head = b"\x00\x00\x08\x03" + struct.pack(">3I", *shape)
    path.write_bytes(gzip.compress(head + bytes(1 << 24)))
    with pytest.raises(FileFormatError, match="got more" if claims_little else "at most"):
        formats.read_idx(path)


def test_an_npz_of_a_size_nobody_has_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, train_images=np.zeros((2, 64, 64), np.int64))
    monkeypatch.setattr(formats, "_MOST_VALUES", 1 << 12)
    with pytest.raises(FileFormatError, match="at most"):
        formats.read_npz(path, ["train_images"])


def test_npz_of_other_things(tmp_path):
    path = tmp_path / "x.npz"
    good = np.arange(24).reshape(1, 2, 3, 4)
    np.savez(path, train_images=good)
    np.testing.assert_array_equal(formats.read_npz(path, ["train_images"])["train_images"], good)
    np.savez(path, train_images=good[0], test_labels=np.arange(3, dtype=">i2"))
    arrays = formats.read_npz(path, ["train_images", "test_labels"])
    assert arrays["train_images"].shape == (2, 3, 4, 1)
    assert arrays["test_labels"].tolist() == [0, 1, 2]
    for bad in (good * 100, -good, good / 2, good[0, 0], np.array([None]), good.transpose()):
        np.savez(path, train_images=bad)
        with pytest.raises(FileFormatError, match=r"train_images|Object arrays"):
            formats.read_npz(path, ["train_images"])
    np.savez(path, train_images=good)
    raw = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(2000):
        mutated = bytearray(raw)
        mutated[generator.integers(len(raw))] = generator.integers(256)
        path.write_bytes(mutated)
        try:
            arrays = formats.read_npz(path, ["train_images"])
        except FileFormatError:
            continue
        np.testing.assert_array_equal(arrays["train_images"], good)


def test_sprites(tmp_path):
    from PIL import Image

    images, _ = _images()
    stream = io.BytesIO()
    Image.fromarray(images.reshape(3, 1024, 3)).save(stream, "PNG")
    np.testing.assert_array_equal(formats.read_sprite(stream.getvalue(), "x", size=32), images)
    with pytest.raises(FileFormatError, match="wide"):
        formats.read_sprite(stream.getvalue(), "x", size=16)
    with pytest.raises(FileFormatError, match="PNG"):
        formats.read_sprite(stream.getvalue()[:200], "x", size=32)
    with pytest.raises(FileFormatError, match="PNG"):
        formats.read_sprite(b"GIF89a" + bytes(100), "x", size=32)
