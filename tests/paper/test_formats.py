from __future__ import annotations

import gzip
import pickle
import struct

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError
from askgauss.paper import formats


def _images(count: int = 3, seed: int = 0):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, generator.integers(0, 10, count).astype(np.uint8)


def _batch(images, labels, **more):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return {b"data": planes, b"labels": labels.tolist(), b"batch_label": b"x", **more}


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


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickled_batches_are_read(protocol):
    images, labels = _images()
    batch = {b"data": _batch(images, labels)[b"data"], b"labels": labels.tolist()}
    raw = pickle.dumps(batch, protocol=protocol)
    if protocol < 3:
        # Python 3 writes bytes for old protocols by way of a codec, which official files do not.
        with pytest.raises(FileFormatError, match="_codecs"):
            formats.read_cifar_pickle(raw, "x")
        return
    again = formats.read_cifar_pickle(raw, "x")
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


def test_an_official_batch_is_read():
    """Bytes as Python 2 with numpy wrote them: protocol 2, short strings, numpy.core names."""
    images, labels = _images(2)
    planes = images.transpose(0, 3, 1, 2).reshape(2, -1)

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    )
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    data = planes.tobytes()
    state = b"(K\x01" + number(2) + number(3072) + b"\x86" + kind + b"\x89"
    state += b"T" + struct.pack("<i", len(data)) + data + b"tb"
    raw = b"\x80\x02}(" + text(b"data") + array + state + text(b"labels")
    raw += b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    raw += text(b"batch_label") + text(b"training batch 1 of 5") + b"u."
    again = formats.read_cifar_pickle(raw, "x")
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


class _Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit(99)",))


def test_a_pickle_executes_nothing():
    images, labels = _images()
    for extra in (_Evil(), np.random.default_rng, print):
        with pytest.raises(FileFormatError, match="Refused a pickle that asks for"):
            formats.read_cifar_pickle(pickle.dumps({b"x": extra}), "x")
    raw = pickle.dumps(_batch(images, labels))
    for cut in (0, 1, 10, len(raw) // 2, len(raw) - 1):
        with pytest.raises(FileFormatError):
            formats.read_cifar_pickle(raw[:cut], "x")


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {b"data": 3, b"labels": []},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]},
        {b"data": np.zeros((1, 3072), np.float64), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["x"]},
    ],
)
def test_pickles_that_are_no_batch(batch):
    with pytest.raises(FileFormatError):
        formats.read_cifar_pickle(pickle.dumps(batch), "x")


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
    with pytest.raises(FileFormatError, match="truncated"):
        formats.read_idx(path)


def test_sprites(tmp_path):
    import io

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
