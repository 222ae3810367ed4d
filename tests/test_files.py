"""The container: every byte is checked, no size is believed, and files are whole or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import askgauss as ag
from askgauss.evidence.verification import verify
from askgauss.exceptions import FileFormatError
from askgauss.files import archive, atomic, codec
from askgauss.files.run_folder import RunFolder, RunRecord
from askgauss.monitor.feed import read_feed
from askgauss.recording.inputs import load_audit_input

ARRAYS = {
    "numbers": np.linspace(0.0, 1.0, 7),
    "table": np.arange(12).reshape(3, 4),
    "flags": np.array([True, False]),
    "names": np.array(["a", "bc"]),
    "nothing": np.zeros((0, 5)),
    "scalar": np.array(3.0),
}


def written(arrays=None, **options):
    stream = io.BytesIO()
    archive.write_arrays(stream, "things", 2, ARRAYS if arrays is None else arrays, {}, **options)
    return stream.getvalue()


def read(content):
    return archive.read_arrays(io.BytesIO(content), "things", 2)[0]


def same(one, other):
    return one.keys() == other.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in ((one[name], other[name]) for name in one)
    )


def test_arrays_come_back_and_plain_numpy_reads_them():
    content = written()
    assert same(read(content), ARRAYS)
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        assert same({name: found[name] for name in ARRAYS}, ARRAYS)
        header = json.loads(found["askgauss"].tobytes())
    assert header["private"] is True
    assert header["members"]["table"]["dtype"] == "<i8"
    assert header["members"]["table"]["shape"] == [3, 4]


def test_arrays_of_any_order_and_byte_order_come_back():
    odd = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(3, dtype=">i4")}
    found = read(written(odd))
    np.testing.assert_array_equal(found["a"], odd["a"])
    np.testing.assert_array_equal(found["b"], odd["b"])
    stream = io.BytesIO()
    np.savez(stream, a=odd["a"])
    np.testing.assert_array_equal(archive.read_npz(stream)["a"], odd["a"])


def test_no_single_byte_can_change():
    """Every bit of every byte: the same arrays, or an error."""
    content, same_answers = written(), 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        try:
            found = read(bytes(damaged))
        except FileFormatError:
            continue
        assert same(found, ARRAYS)
        same_answers += 1
    # Times, versions and rights of the members and the headers before them, which say nothing about
    # the content: that has a SHA-256.
    assert same_answers < 90 * (len(ARRAYS) + 1)


def forged(change):
    """The same file with members of a changed archive, each with a checksum that fits."""
    with zipfile.ZipFile(io.BytesIO(written())) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    change(members)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return stream.getvalue()


def replaced(name, old, new):
    def change(members):
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return forged(change)


@pytest.mark.parametrize(
    "content",
    [
        replaced("table.npy", b"<i8", b"<i4"),
        replaced("table.npy", b"(3, 4)", b"(4, 3)"),
        replaced("table.npy", b"False", b"True "),
        replaced("numbers.npy", b"(7,)", b"(6,)"),
        replaced("numbers.npy", b"<f8", b"<i8"),
        replaced("numbers.npy", b"}", b"("),
        replaced("numbers.npy", b"\x93NUMPY", b"\x93NUMPI"),
        replaced("flags.npy", b"\n\1\0", b"\n\2\0"),
        replaced("askgauss.npy", b'"private": true', b'"private": null'),
        forged(lambda members: members.pop("table.npy")),
        forged(lambda members: members.update({"more.npy": members["table.npy"]})),
        forged(lambda members: members.update({"note.txt": b"hello"})),
        written() + b"trailing",
        b"leading" + written(),
    ],
)
def test_what_fits_its_checksum_must_also_fit_the_header(content):
    with pytest.raises(FileFormatError):
        read(content)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_member_that_is_there_twice_is_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr("a.npy", b"one")
        packed.writestr("a.npy", b"two")
    with pytest.raises(FileFormatError, match="twice"):
        archive.read_npz(stream)


def test_sizes_are_bounded_before_anything_is_allocated():
    """A directory, a packed member and an array header that each promise far too much."""
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.zeros(1000))
    packed = stream.getvalue()
    # The size of the packed member is made to look honest; its unpacked one is not.
    entry = packed.index(b"PK\1\2")
    lied = packed[: entry + 20] + struct.pack("<2I", 1 << 31, 1 << 31) + packed[entry + 28 :]
    spaces = b" " * 11
    promised = replaced("numbers.npy", b"(7,), }" + spaces, b"(700000000000,), }")
    tracemalloc.start()
    for content in (lied, promised):
        with pytest.raises(FileFormatError):
            archive.read_npz(io.BytesIO(content))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def test_a_transcript_cannot_ask_for_tensors_it_does_not_have(tmp_path):
    """Sixty kilobytes that named tensor 700,000,000 took 17 gigabytes to audit."""
    transcript = ag.simulate_dpsgd(
        steps=5, sampling_rate=0.5, noise_multiplier=1.0, present=10, absent=10, seed=0
    )
    arrays = {name: array.copy() for name, array in transcript.arrays().items()}
    facts = {"facts": codec.to_plain(transcript.facts)}
    for wrong in (7 * 10**8, -1):
        arrays["watch_tensor"][0] = wrong
        archive.write_arrays(tmp_path / "a", "askgauss-transcript", 2, arrays, facts)
        with pytest.raises(FileFormatError, match=r"watch_tensor in \[0, 1\)"):
            load_audit_input(tmp_path / "a")


TRANSCRIPT = ag.simulate_dpsgd(
    steps=5, sampling_rate=0.5, noise_multiplier=1.0, present=10, absent=10, seed=0
)


def edited(path, name, change):
    """A transcript with one array changed, and digests that fit."""
    arrays = {key: array.copy() for key, array in TRANSCRIPT.arrays().items()}
    change(arrays[name])
    facts = {"facts": codec.to_plain(TRANSCRIPT.facts)}
    archive.write_arrays(path, "askgauss-transcript", 2, arrays, facts)
    return path


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("canaries.planted", lambda a: a.__setitem__(0, 6), r"planted in \[0, 5\]"),
        ("steps.clip_norm", lambda a: a.__setitem__(0, np.nan), "clip_norm to be finite"),
        ("steps.square", lambda a: a.__setitem__(0, -1.0), "steps.square in"),
        ("steps.clip_norm", lambda a: a.__setitem__(0, 1e160), r"clip_norm in \[1e-140, 1e\+140\]"),
        ("steps.least", lambda a: a.__setitem__(0, 1e9), r"steps.least in \[-inf, 0\]"),
        ("steps.most", lambda a: a.__setitem__(0, -1e9), r"steps.most in \[0, inf\]"),
    ],
)
def test_numbers_of_a_transcript_have_a_range(name, change, message, tmp_path):
    with pytest.raises(FileFormatError, match=message):
        load_audit_input(edited(tmp_path / "a", name, change))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("canaries.planted", lambda a: a.fill(1), "never to be planted"),
        ("steps.planted", lambda a: a.__setitem__(0, a[0] + 1), "as many plantings"),
        ("kept_planted", lambda a: np.logical_not(a, out=a), "as many plantings"),
        ("kept", lambda a: a.__setitem__(1, a[0]), "once, in order"),
        ("steps.noise_multiplier", lambda a: a.__setitem__(2, 1e-160), "noise_multiplier 0 or in"),
        ("steps.noise_multiplier", lambda a: a.fill(1e200), "noise_multiplier 0 or in"),
        ("steps.least", lambda a: a.__setitem__(0, -1e160), "steps.least within"),
        ("steps.most", lambda a: a.__setitem__(0, 1e9), "canaries.other_square allows"),
        ("steps.planted_least", lambda a: a.fill(1e9), "planted_least <= steps.planted_most"),
        ("steps.square", lambda a: a.__setitem__(0, 1e-30), "steps.square to be at least"),
        ("steps.square", lambda a: a.__imul__(2.0), "squares over the steps"),
        ("steps.total", lambda a: a.__iadd__(0.01), "totals over the steps"),
        ("canaries.other_square", lambda a: a.fill(5e-324), "canaries.other_square to be at least"),
        ("canaries.lag", lambda a: a.__setitem__(0, np.inf), "canaries.lag of a run"),
        ("kept_values", lambda a: a.__setitem__((0, 0), np.nan), "kept_values of a run"),
    ],
)
def test_sums_that_no_run_has_are_read_and_not_verified(name, change, message, tmp_path):
    """Who edits numbers writes digests anew: whether they fit together is for `verify` to say."""
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    data = load_audit_input(edited(tmp_path / "a", name, change))
    found = verify(ag.audit(TRANSCRIPT, claim=claim), data)
    assert not found.holds
    assert re.search(message, str(found))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("skipped_steps", 10**10, r"facts.skipped_steps in \[0, 1e\+07\], got 1e"),
        ("skipped_steps", 1 << 63, "facts.skipped_steps in"),
        ("skipped_steps", 10**30, "facts.skipped_steps in"),
        ("unnoised_steps", 10**30, "facts.unnoised_steps in"),
        ("noise_multiplier", 1e200, "facts.noise_multiplier 0 or in"),
        ("scheme", {"scheme": "min-separation", "rate": 0.1, "separation": 1 << 62}, "separation"),
        ("scheme", {"scheme": "cyclic-poisson", "rate": 0.1, "cycle": 10**10}, "cycle"),
    ],
)
def test_facts_cannot_ask_for_more_than_a_run_has(name, value, message, tmp_path):
    """A few kilobytes that had skipped ten billion steps took minutes and gigabytes to audit."""
    transcript = ag.simulate_dpsgd(
        steps=5, sampling_rate=0.5, noise_multiplier=1.0, present=10, absent=10, seed=0
    )
    facts = {"facts": codec.to_plain(transcript.facts) | {name: value}}
    archive.write_arrays(tmp_path / "a", "askgauss-transcript", 2, transcript.arrays(), facts)
    with pytest.raises(FileFormatError, match=message):
        load_audit_input(tmp_path / "a")


# --- writing -------------------------------------------------------------------------------------

POSIX = pytest.mark.skipif(os.name != "posix", reason="rights and links of POSIX")


@POSIX
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_private_files_are_their_owners_alone(umask, tmp_path):
    before = os.umask(umask)
    try:
        scores = ag.CanaryScores.from_groups(present=[1.0, 2.0], absent=[0.0, 1.0])
        scores.save(tmp_path / "scores.npz")
        recorder = ag.Recorder(
            ag.DiracCanaries(present=2, absent=2, dimension=50, seed=0),
            sampling_rate=0.5,
            store=tmp_path / "steps",
        )
        recorder.sample()
        recorder.observe(np.zeros(4))
        recorder.save(tmp_path / "checkpoint.npz")
        recorder.transcript().save(tmp_path / "transcript.npz")
        ag.audit(scores, delta=1e-5, auditor=ag.OneRun()).to_json(tmp_path / "result.json")
        RunFolder(tmp_path).write(RunRecord(command="demo", config={"seed": 1}, versions={}))
        report = ag.replay(
            lambda data, replay: replay.public("x", 1), [1, 2, 3], leave_out=0, steps=1
        )
        report.to_json(tmp_path / "replay.json")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        wanted = 0o666 & ~umask if path.name == "result.json" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


@POSIX
def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "scores.npz", tmp_path / "link.npz"
    link.symlink_to(target)
    scores = ag.CanaryScores.from_groups(present=[1.0, 2.0], absent=[0.0, 1.0])
    for _ in range(2):  # at first there is nothing behind it
        scores.save(link)
        assert link.is_symlink()
        assert not target.is_symlink()
        assert len(ag.CanaryScores.load(target)) == 4


def test_a_folder_that_is_not_there_is_named_and_not_a_part(tmp_path):
    path = tmp_path / "run" / "transcript.npz"
    with pytest.raises(FileNotFoundError) as caught:
        atomic.write_text(path, "")
    assert caught.value.filename == os.fspath(path)


def test_links_in_a_circle_are_an_error_and_stay(tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    one.symlink_to(other)
    other.symlink_to(one)
    scores = ag.CanaryScores.from_groups(present=[1.0, 2.0], absent=[0.0, 1.0])
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        scores.save(one)
    assert one.is_symlink()
    assert other.is_symlink()


HALF = """
import os, sys
from askgauss.files import atomic
with atomic.atomic_write(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_what_killed_saves_leave_is_removed_and_what_others_write_is_not(tmp_path):
    target = tmp_path / "scores.npz"
    (tmp_path / ".other.npz.0123456789abcdef.part").write_bytes(b"of another file")
    command = [sys.executable, "-c", HALF, str(target)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as alive:
        for process in (killed, alive):
            assert process.stdout.readline() == b"half\n"
        killed.kill()
        killed.wait()
        hour = time.time() - 3600
        for part in tmp_path.iterdir():
            os.utime(part, (hour, hour))
        atomic.write_text(target, "new")
        left = sorted(path.name for path in tmp_path.iterdir())
        assert len(left) == 3
        assert left[0].startswith(".other.npz.")
        assert left[1].startswith(".scores.npz.")
        alive.stdin.close()
        assert alive.wait() == 0
    assert target.read_bytes() == b"half"


def test_a_part_that_is_young_is_left_alone(tmp_path):
    part = tmp_path / ".a.0123456789abcdef.part"
    part.write_bytes(b"")
    atomic.write_text(tmp_path / "a", "new")
    assert part.exists()


def test_documents_have_a_size_whatever_they_are_read_from(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "DOCUMENT_BYTES", 1000)
    whole, long = tmp_path / "whole.json", tmp_path / "long.json"
    whole.write_bytes(b"x" * 1000)
    with long.open("wb") as stream:
        stream.truncate(3 << 30)
    assert len(atomic.read_bytes(whole)) == 1000
    for source in (long, io.BytesIO(b"x" * 1001), "/dev/zero"):
        with pytest.raises(FileFormatError, match="MB at most, got more"):
            atomic.read_bytes(source)


def test_a_pipe_is_read_where_it_is_named_and_nowhere_else(tmp_path):
    pipe = tmp_path / "transcript.npz"
    os.mkfifo(pipe)
    with pytest.raises(FileFormatError, match="regular file, got a pipe"):
        atomic.read_bytes(pipe, regular=True)
    with pytest.raises(FileFormatError, match="found nothing that holds scores"):
        load_audit_input(tmp_path)
    os.mkfifo(tmp_path / "watch.json")
    with pytest.raises(FileFormatError, match="regular file, got a pipe"):
        read_feed(tmp_path)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 200_000,))
    writer.start()
    assert atomic.read_bytes(pipe) == b"x" * 200_000
    writer.join()


class Unbuffered(io.RawIOBase):
    """A stream that gives a few bytes at a time."""

    def __init__(self, content):
        self.content = content

    def read(self, size=-1):
        part, self.content = self.content[:7], self.content[7:]
        return part


def test_a_stream_is_read_to_its_end():
    assert atomic.read_bytes(Unbuffered(b"y" * 100)) == b"y" * 100
