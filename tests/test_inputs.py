"""What an audit reads is told apart by what it says it is; anything else is refused, whole."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import struct
import threading
import zipfile

import numpy as np
import pytest

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.exceptions import (
    AskGaussError,
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
)
from askgauss.files import codec
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.inputs import load_audit_input
from askgauss.recording.transcript import LinearTranscript
from askgauss.simulation import simulate_dpftrl


@pytest.fixture(scope="module")
def transcript():
    return ag.simulate_dpsgd(
        steps=10, sampling_rate=0.3, noise_multiplier=1.0, present=10, absent=10, seed=0
    )


def _bytes(item):
    stream = io.BytesIO()
    item.save(stream)
    return stream.getvalue()


def _archive(members, packing=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _listed(members):
    """Members and a header of scores that lists them, its digests in order."""
    described = {
        name.removesuffix(".npy"): {
            "dtype": "|b1",
            "shape": [4],
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for name, content in members.items()
    }
    text = codec.dumps("askgauss-scores", 2, {"members": described})
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(text.encode(), np.uint8))
    return {"askgauss.npy": stream.getvalue(), **members}


def _header(**content):
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(json.dumps(content).encode(), np.uint8))
    return stream.getvalue()


def _array(description, shape, data=b""):
    text = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': {shape}, }}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def test_each_kind_comes_back_as_itself(transcript, tmp_path):
    linear = simulate_dpftrl(steps=8, noise_multiplier=2.0, present=5, absent=5, seed=0)
    for item, kind in (
        (transcript, ag.Transcript),
        (transcript.scores(), ag.CanaryScores),
        (linear, LinearTranscript),
    ):
        item.save(tmp_path / "file.npz")
        for source in (tmp_path / "file.npz", str(tmp_path / "file.npz"), io.BytesIO(_bytes(item))):
            found = load_audit_input(source)
            assert type(found) is kind
            assert _bytes(found) == _bytes(item)


def test_a_folder_is_read_for_its_transcript_then_its_scores(transcript, tmp_path):
    with pytest.raises(FileFormatError, match=r"transcript\.npz or scores\.npz"):
        load_audit_input(tmp_path)
    transcript.scores().save(tmp_path / "scores.npz")
    assert isinstance(load_audit_input(tmp_path), ag.CanaryScores)
    transcript.save(tmp_path / "transcript.npz")
    assert isinstance(load_audit_input(tmp_path), ag.Transcript)


def test_a_folder_of_the_papers_code(tmp_path):
    (tmp_path / "in_scores_ndis_3.csv").write_text("1.0\n2.0\n")
    (tmp_path / "out_scores_ndis_3.csv").write_text("0.0\n0.5\n")
    assert len(load_audit_input(tmp_path)) == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe(transcript, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(_bytes(transcript),))
    writer.start()
    assert isinstance(load_audit_input(path), ag.Transcript)
    writer.join()


class _Trickle(io.RawIOBase):
    """Gives one byte at a time, as an unbuffered pipe may."""

    def __init__(self, content):
        self._content = io.BytesIO(content)

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self._content.read(1)
        buffer[: len(piece)] = piece
        return len(piece)


def test_a_stream_that_gives_little_at_a_time(transcript):
    scores = transcript.scores()
    assert _bytes(load_audit_input(_Trickle(_bytes(scores)))) == _bytes(scores)


class _Endless(io.RawIOBase):
    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = bytes(len(buffer))
        return len(buffer)


def test_an_endless_stream_of_something_else_is_not_read_to_its_end():
    with pytest.raises(FileFormatError, match="npz"):
        load_audit_input(_Endless())


SCORES = _header(kind="askgauss-scores", schema=2, metadata={})
MEMBER = _array("|b1", "(4,)", b"\1\1\0\0")
HOSTILE = {
    "empty": (b"", "empty"),
    "text": (b"score,member\n1,0\n", "no npz file"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(50), "no npz file"),
    "a pickle": (pickle.dumps({"score": [1.0]}), "no npz file"),
    "JSON of somebody": (b'{"a": 1}', "found 'a'"),
    "a foreign npz": (_archive({"score.npy": MEMBER}), "expected the columns"),
    "a result": (b'{"kind": "askgauss-result", "schema": 1}', "askgauss report"),
    "a checkpoint": (_archive({"askgauss.npy": _header(kind="askgauss-demo")}), "checkpoint"),
    "a later kind": (_archive({"askgauss.npy": _header(kind="later")}), "update askgauss"),
    "a kind that is a list": (_archive({"askgauss.npy": _header(kind=[1])}), "update askgauss"),
    "a header that is a list": (_archive({"askgauss.npy": _array("|u1", "(2,)", b"[]")}), "update"),
    "a newer schema": (
        _archive({"askgauss.npy": _header(kind="askgauss-scores", schema=99)}),
        "newer askgauss",
    ),
    "a pickled header": (
        _archive({"askgauss.npy": _array("|O", "(1,)", pickle.dumps([1]))}),
        "nothing is unpickled",
    ),
    "a pickled array": (
        _archive(_listed({"score.npy": _array("|O", "(1,)", pickle.dumps([1]))})),
        "nothing is unpickled",
    ),
    "a bomb": (
        _archive({"askgauss.npy": SCORES, "score.npy": bytes(300 << 20)}, zipfile.ZIP_DEFLATED),
        "bomb",
    ),
    "a bomb of a header": (
        _archive({"askgauss.npy": bytes(50 << 20)}, zipfile.ZIP_DEFLATED),
        "too large",
    ),
    "more numbers than there is memory": (
        _archive(_listed({"score.npy": _array("<f8", f"({1 << 50},)"), "member.npy": MEMBER})),
        "Cannot read",
    ),
    "an odd packing": (
        _archive({"askgauss.npy": SCORES, "score.npy": MEMBER}, zipfile.ZIP_BZIP2),
        "packed",
    ),
    "names that climb": (
        _archive(_listed({"../../evil.npy": MEMBER})),
        "missing",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_anything_else_is_refused_with_the_reason(tmp_path, name, stream):
    content, reason = HOSTILE[name]
    path = tmp_path / "inside" / "file.npz"
    path.parent.mkdir()
    path.write_bytes(content)
    if name == "empty" and not stream:
        reason = "no npz file"
    with pytest.raises(FileFormatError, match=reason):
        load_audit_input(io.BytesIO(content) if stream else path)
    assert [item.name for item in tmp_path.rglob("*")] == ["inside", "file.npz"]


def test_a_step_store_is_told_as_such(tmp_path):
    """A real one: a line of JSON, and then bytes that are no text."""
    path = tmp_path / "steps"
    canaries = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.5, store=path)
    recorder.sample()
    recorder.observe(np.linspace(-1.0, 1.0, 40))
    recorder.transcript()
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(FileFormatError, match="step store"):
            load_audit_input(source)


def recorded(steps):
    canaries = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)
    recorder, draw = ag.Recorder(canaries, sampling_rate=0.5), np.random.default_rng(0)
    for _ in range(steps):
        recorder.sample()
        recorder.observe(draw.normal(size=40), background=0.0)
    return recorder


def test_a_checkpoint_of_a_finished_run_is_its_transcript(tmp_path):
    path, recorder = tmp_path / "audit.npz", recorded(5)
    recorder.save(path)
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(FileFormatError, match=r"checkpoint.*save\(path, finished=True\)"):
            load_audit_input(source)
    recorder.save(path, finished=True)
    for source in (path, io.BytesIO(path.read_bytes())):
        assert _bytes(load_audit_input(source)) == _bytes(recorder.transcript())
    # It is a checkpoint still.
    again = recorded(0)
    again.load(path)
    assert again.steps == 5
    with pytest.raises(RecordingError):
        recorded(0).save(path, finished=True)


def test_so_is_one_of_correlated_noise(tmp_path):
    canaries = ag.DiracCanaries(present=3, absent=3, dimension=20, seed=0)
    recorder = ag.LinearRecorder(canaries, TreePlan(steps=4, estimator="plain", release="prefixes"))
    draw = np.random.default_rng(0)
    for _ in range(4):
        recorder.sample()
        recorder.observe(draw.normal(size=6), background=np.zeros(6))
    path = tmp_path / "audit.npz"
    recorder.save(path)
    with pytest.raises(FileFormatError, match="finished=True"):
        load_audit_input(path)
    recorder.save(path, finished=True)
    assert isinstance(load_audit_input(path), LinearTranscript)


def test_no_damage_to_a_file_brings_any_other_error(transcript):
    """Flip, cut and insert bytes: an error of ours, or data that a reader accepts."""
    whole = _bytes(transcript)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    bases = [whole, _bytes(transcript.scores()), _archive(members, zipfile.ZIP_DEFLATED)]
    chance = random.Random(0)
    refused = 0
    for _ in range(1500):
        content = bytearray(chance.choice(bases))
        for _ in range(chance.choice((1, 2, 5, 30))):
            place, kind = chance.randrange(len(content)), chance.random()
            if kind < 0.7:
                content[place] = chance.randrange(256)
            elif kind < 0.85:
                del content[max(place, 1) :]
            else:
                content[place:place] = chance.randbytes(8)
        try:
            load_audit_input(io.BytesIO(bytes(content)))
        except AskGaussError:
            refused += 1
    assert refused > 1000


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_audit_input(tmp_path / "nothing.npz")


@pytest.mark.parametrize("data", [[1.0, 2.0], None, "scores.npz", {"score": [1.0]}])
@pytest.mark.parametrize("read", [ag.audit, ag.compare, diagnose])
def test_anything_else_is_refused_by_name(read, data):
    options = {} if read is diagnose else {"delta": 1e-5}
    with pytest.raises(InvalidArgumentError, match=f"{type(data).__name__}.*from_groups"):
        read(data, **options)
