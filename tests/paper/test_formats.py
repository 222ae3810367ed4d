from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import struct
import subprocess
import sys
import zipfile

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
        with pytest.raises(FileFormatError, match=r"_codecs|opcode"):
            formats.read_cifar_pickle(raw, "x")
        return
    again = formats.read_cifar_pickle(raw, "x")
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


def _official(images, labels) -> bytes:
    """Bytes as Python 2 with numpy wrote them: protocol 2, short strings, numpy.core names."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)

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
    state = b"(K\x01" + number(len(images)) + number(3072) + b"\x86" + kind + b"\x89"
    state += b"T" + struct.pack("<i", len(data)) + data + b"tb"
    raw = b"\x80\x02}(" + text(b"data") + array + state + text(b"labels")
    raw += b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return raw + text(b"batch_label") + text(b"training batch 1 of 5") + b"u."


def test_an_official_batch_is_read():
    images, labels = _images(2)
    again = formats.read_cifar_pickle(_official(images, labels), "x")
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


def _small_pickle(protocol: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A batch, as official ones are (protocol 2 of Python 2) or as numpy writes it today."""
    images, labels = _images(2)
    if protocol == 4:
        return pickle.dumps(_batch(images, labels), protocol=4), images, labels
    return _official(images, labels), images, labels


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_mutated_batch_is_refused_or_read_as_it_is(protocol):
    """10,000 mutations each: a typed error, or arrays that differ where a byte was changed."""
    raw, images, labels = _small_pickle(protocol)
    start = raw.index(images.transpose(0, 3, 1, 2).tobytes())
    structure = [*range(start), *range(start + images.size, len(raw))]
    generator = np.random.default_rng(protocol)
    read = 0
    for trial in range(10_000):
        mutated = bytearray(raw)
        # Nine in ten in what is not pixels, where a change can do more than change a pixel; every
        # fourth of several bytes, or cut.
        many = 1 if trial % 4 else int(generator.integers(2, 8))
        for _ in range(many):
            pixels = generator.random() < 0.1
            place = generator.integers(len(raw)) if pixels else generator.choice(structure)
            mutated[place] = generator.integers(256)
        if trial % 40 == 0:
            del mutated[generator.integers(len(raw)) :]
        try:
            found, their_labels = formats.read_cifar_pickle(bytes(mutated), "x")
        except FileFormatError:
            continue
        read += 1
        assert found.dtype == their_labels.dtype == np.uint8
        assert found.shape == images.shape
        wrong = np.count_nonzero(found != images) + np.count_nonzero(their_labels != labels)
        assert wrong <= many
    assert read > 500  # changes of a pixel or of what nobody reads


def test_a_pickle_that_builds_on_numpy_is_only_walked():
    """BUILD on numpy's dtype and ndarray, which wrote out of bounds where it was carried out."""
    images, labels = _images(2)
    raw = _official(images, labels)
    # An array that says it has far more rows than bytes, and a dtype with a state of its own.
    for found, evil in ((b"K\x02M\x00\x0c\x86", b"M\xff\xffM\x00\x0c\x86"),
                        (b"U\x02u1", b"U\x02O8"), (b"NNN", b"N]N")):  # fmt: skip
        assert found in raw
        with pytest.raises(FileFormatError) if found != b"NNN" else contextlib.nullcontext():
            formats.read_cifar_pickle(raw.replace(found, evil), "x")
    # A list that holds itself, tuples that double without end, and items set on an array.
    nested = b"\x80\x02)" + b"q\x00h\x00\x86" * 200 + b"."
    for evil in (b"\x80\x02]q\x00h\x00a.", nested, b"\x80\x02}q\x00(h\x00h\x00u.",
                 raw[:-2] + b"s.", b"\x80\x02cnumpy\nndarray\nK\x00K\x01s."):  # fmt: skip
        with pytest.raises(FileFormatError):
            formats.read_cifar_pickle(evil, "x")


class _Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit(99)",))


def test_a_pickle_executes_nothing():
    images, labels = _images()
    for extra in (_Evil(), np.random.default_rng, print):
        with pytest.raises(FileFormatError, match="Refused a pickle that asks for"):
            formats.read_cifar_pickle(pickle.dumps({b"x": extra}, protocol=4), "x")
    raw = pickle.dumps(_batch(images, labels), protocol=4)
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
        formats.read_cifar_pickle(pickle.dumps(batch, protocol=4), "x")


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


def _peak_megabytes(script: str, *arguments: str) -> tuple[int, str]:
    """What a process of its own needed at most, beyond what importing the reader needs."""
    start = "import resource, sys\nfrom pathlib import Path\nfrom askgauss.paper import formats\n"
    start += "from askgauss.exceptions import FileFormatError\n"
    start += "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    end = "\nprint((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)"
    done = subprocess.run(
        [sys.executable, "-c", start + script + end, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    *said, peak = done.stdout.splitlines()
    return int(peak), "\n".join(said)


_TRY = """
try:
    {call}
    print("read")
except FileFormatError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="measures with getrusage")
@pytest.mark.parametrize("claims_little", [True, False])
def test_a_small_gzipped_idx_takes_little_memory(tmp_path, claims_little):
    """1 MB that unpacks to 1 GB, whatever its head says it holds."""
    path = tmp_path / "bomb.gz"
    shape = (2, 3, 4) if claims_little else (1 << 10, 1 << 10, 1 << 10)
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(b"\x00\x00\x08\x03" + struct.pack(">3I", *shape))
        for _ in range(64):
            stream.write(bytes(1 << 24))
    peak, said = _peak_megabytes(_TRY.format(call="formats.read_idx(Path(sys.argv[1]))"), str(path))
    assert "got more" in said if claims_little else "at most" in said
    assert peak < 200


@pytest.mark.skipif(sys.platform == "win32", reason="measures with getrusage")
def test_a_small_npz_takes_little_memory(tmp_path):
    """Wide integers of a size that could be a set's, and of one that cannot."""
    parts = "['train_images', 'train_labels']"
    call = _TRY.format(call=f"formats.read_npz(Path(sys.argv[1]), {parts})")
    path = tmp_path / "bomb.npz"
    for rows, told in ((1 << 12, "train_labels"), (1 << 24, "at most")):
        head = io.BytesIO()
        description = {"descr": "<i8", "fortran_order": False, "shape": (rows, 128, 128)}
        np.lib.format.write_array_header_1_0(head, description)
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
            archive.open("train_images.npy", "w", force_zip64=True) as stream,
        ):
            stream.write(head.getvalue())
            for _ in range(min(rows, 1 << 12) >> 6):
                stream.write(bytes(8 << 20))
        peak, said = _peak_megabytes(call, str(path))
        assert told in said
        assert peak < 300


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
