"""The step store: laid out as described, read back as written, and refused when it is not."""

from __future__ import annotations

import errno
import hashlib
import json

import mpmath
import numpy as np
import pytest

from askgauss import DiracCanaries, Recorder
from askgauss.exceptions import (
    AskGaussWarning,
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    ScoresError,
)
from askgauss.files import codec
from askgauss.recording.step_store import StepStore, StepWriter
from askgauss.scores import ScoreMetadata
from tests.test_transcript import CANARIES, recorded


def stored(path, steps=20, **options):
    recorded(steps, store=path, **options)
    return StepStore(path)


def digest(*parts):
    return hashlib.sha256(b"".join(map(bytes, parts))).digest()


def test_the_layout_of_a_store_is_as_described(tmp_path):
    """Read with nothing but the sentences in the docstring."""
    transcript = recorded(5, store=tmp_path / "steps")
    line, rest = (tmp_path / "steps").read_bytes().split(b"\n", 1)
    header = json.loads(line)
    assert (header["kind"], header["schema"], header["canaries"]) == ("askgauss-steps", 3, 60)
    assert header["private"] is True
    assert header["facts"]["run"] == transcript.facts.run
    bits = np.unpackbits(np.frombuffer(rest[:8], np.uint8), bitorder="little")
    np.testing.assert_array_equal(bits[:60], CANARIES.member)
    check = digest(line, b"\n", rest[:8])
    assert rest[8:40] == check
    rows = np.frombuffer(rest[40:-32], np.uint8).reshape(5, 4 * 60 + 8 + 32)
    for row in rows:
        check = digest(check, row[:248])
        assert bytes(row[248:]) == check
    assert rest[-32:] == digest(b"end", check)
    values = rows[:, :240].copy().view("<f4")
    planted = np.unpackbits(rows[:, 240:248], axis=1, bitorder="little")
    np.testing.assert_allclose(values.sum(axis=0), transcript.canaries.total, rtol=1e-5)
    np.testing.assert_array_equal(planted[:, :60].sum(axis=0), transcript.canaries.planted)
    assert not planted[:, 60:].any()


@pytest.mark.parametrize("canaries", [4, 31, 32, 33, 64, 65])
def test_rows_of_any_width_are_read_back(canaries, tmp_path):
    placed = DiracCanaries(count=canaries, dimension=80, seed=0)
    recorder = Recorder(placed, sampling_rate=0.5, store=tmp_path / "steps")
    generator, values, planted = np.random.default_rng(0), [], []
    for _ in range(4):
        planted.append(np.isin(np.arange(canaries), recorder.sample()))
        values.append(generator.normal(size=canaries).astype(np.float32))
        recorder.observe(values[-1])
    recorder.transcript()
    store = StepStore(tmp_path / "steps")
    np.testing.assert_array_equal(store.values, values)
    np.testing.assert_array_equal(store.planted, planted)
    assert store.planted.dtype == np.bool_


def with_header(path, **changes):
    """Another header with checks that fit."""
    line, rest = path.read_bytes().split(b"\n", 1)
    header = json.loads(line) | changes
    del header["digest"]
    header["digest"] = codec.digest(header)
    whole = json.dumps(header).encode() + b"\n"
    count = header["canaries"]
    bits = 4 * -(-count // 32) if isinstance(count, int) and count < 1000 else 8
    path.write_bytes(whole + rest[:bits] + digest(whole, rest[:bits]) + rest[bits + 32 :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 4}, r"schema <= 3, got 4.*newer askgauss.*Update"),
        ({"schema": "1"}, "schema "),
        ({"kind": "askgauss-scores"}, "kind 'askgauss-steps', got 'askgauss-scores'"),
        ({"canaries": 0}, "canaries >= 1"),
        ({"canaries": "60"}, "canaries "),
        ({"canaries": 10**18}, "membership of 1000000000000000000 canaries"),
        ({"canaries": 61}, r"bytes more than \d+ steps"),
        ({"facts": None}, "facts "),
        ({"facts": {"sampling_rate": "often"}}, "facts.sampling_rate"),
        ({"fingerprint": None}, "fingerprint "),
    ],
)
def test_odd_stores_are_refused(changes, message, tmp_path):
    path = tmp_path / "steps"
    stored(path)
    with_header(path, **changes)
    with pytest.raises(FileFormatError, match=message):
        StepStore(path)


def test_damage_anywhere_is_noticed(tmp_path):
    """Every byte of a small store, with one bit of it turned: never read as if it were data."""
    path = tmp_path / "steps"
    canaries = DiracCanaries(present=2, absent=2, dimension=40, seed=0)
    recorder = Recorder(canaries, sampling_rate=0.5, store=path)
    for value in (1.0, 2.0, 3.0):
        recorder.sample()
        recorder.observe(np.full(4, value))
    recorder.transcript()
    content = path.read_bytes()
    row = 4 * 4 + 4 + 32
    head = len(content) - 3 * row - 32
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError):
            StepStore(path)
        sound = (place - head) // row
        if sound == 3:
            # Only the seal: with the number of steps from elsewhere it is not needed.
            assert StepStore(path, steps=3).number_of_steps == 3
        elif sound >= 1:
            assert StepStore(path, steps=sound).number_of_steps == sound
            with pytest.raises(FileFormatError, match=f"Step {sound + 1} .*damaged.*steps="):
                StepStore(path, steps=sound + 1)


def test_steps_that_changed_places_are_noticed(tmp_path):
    path = tmp_path / "steps"
    stored(path, 3)
    content, row = path.read_bytes(), 4 * 60 + 8 + 32
    head, seal = content[: -3 * row - 32], content[-32:]
    rows = [content[len(head) + k * row :][:row] for k in range(3)]
    path.write_bytes(head + rows[0] + rows[2] + rows[1] + seal)
    with pytest.raises(FileFormatError, match=r"Step 2 .*damaged"):
        StepStore(path)


def test_files_that_are_no_stores_are_refused(tmp_path):
    path = tmp_path / "odd"
    for content in (b"", b"\n", b"\x80\x81\n", b"x" * 100, b"[" * 10**6, b'{"kind": "a"}\n'):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"odd.*askgauss-steps"):
            StepStore(path)
    with pytest.raises(FileNotFoundError):
        StepStore(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match=r"steps .*>= 1, got 0"):
        StepStore(path, steps=0)


def test_a_store_cut_short_anywhere_is_refused_or_asks_for_the_steps(tmp_path):
    path = tmp_path / "steps"
    values = np.array(stored(path, 4).values)
    content = path.read_bytes()
    row = 4 * 60 + 8 + 32
    head = len(content) - 4 * row - 32
    ends = [head + steps * row for steps in range(5)]
    for length in sorted({*range(0, len(content), 13), *ends}):
        path.write_bytes(content[:length])
        steps = (length - head) // row
        # At the end of a step too: what is missing behind it would otherwise go unnoticed.
        with pytest.raises(FileFormatError):
            StepStore(path)
        if steps >= 1:
            np.testing.assert_array_equal(StepStore(path, steps=steps).values, values[:steps])
        with pytest.raises(FileFormatError):
            StepStore(path, steps=max(steps, 0) + 1)


# --- the likelihood-ratio score ------------------------------------------------------------------


def likelihood_ratio(values, noise_multiplier, rate):
    """The same sum with fifty digits, as the quotient of two densities."""
    with mpmath.workdps(50):
        total, sigma = mpmath.mpf(0), mpmath.mpf(noise_multiplier)
        for value in values:
            x = mpmath.mpf(float(value))
            present = rate * mpmath.npdf(x, 1, sigma) + (1 - mpmath.mpf(rate)) * mpmath.npdf(
                x, 0, sigma
            )
            total += mpmath.log(present / mpmath.npdf(x, 0, sigma))
        return float(total)


@pytest.mark.parametrize("chunk", [1, 130, 1 << 20])
@pytest.mark.parametrize(
    ("sigma", "rate"), [(0.8, 0.01), (0.8, 0.25), (5.0, 0.5), (0.05, 0.25), (1.0, 1.0), (2.0, 1e-9)]
)
def test_likelihood_ratios_are_those_of_the_densities(sigma, rate, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("askgauss.recording.step_store._CHUNK", chunk)
    store = stored(tmp_path / "steps")
    scores = store.likelihood_ratio_scores(noise_multiplier=sigma, sampling_rate=rate)
    for canary in (0, 1, 2, 59):
        expected = likelihood_ratio(store.values[:, canary], sigma, rate)
        assert scores.score[canary] == pytest.approx(expected, rel=1e-12, abs=1e-14)
    np.testing.assert_array_equal(scores.member, CANARIES.member)


def test_the_claim_of_the_run_is_the_default(tmp_path):
    store = stored(tmp_path / "steps", noise_multiplier=0.8)
    ours = store.likelihood_ratio_scores()
    theirs = store.likelihood_ratio_scores(noise_multiplier=0.8, sampling_rate=0.25)
    np.testing.assert_array_equal(ours.score, theirs.score)
    # The law of the sum is not the law of this score: nothing that would call for it is said.
    assert ours.metadata == ScoreMetadata(background="known", fair_coins=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"noise_multiplier to be given.*Pass noise_multiplier="),
        ({"noise_multiplier": 0.0}, r"noise_multiplier > 0 and finite, got 0\.0"),
        ({"noise_multiplier": np.inf}, r"noise_multiplier > 0 and finite, got inf"),
        ({"noise_multiplier": 1.0, "sampling_rate": 0.0}, r"sampling_rate in \(0, 1\], got 0\.0"),
        ({"noise_multiplier": 1.0, "sampling_rate": 1.5}, r"sampling_rate in \(0, 1\], got 1\.5"),
    ],
)
def test_bad_arguments_of_the_score_are_named(arguments, message, tmp_path):
    store = stored(tmp_path / "steps")
    with pytest.raises(InvalidArgumentError, match=message):
        store.likelihood_ratio_scores(**arguments)


def test_a_rate_the_run_does_not_know_has_to_be_given(tmp_path):
    recorder = Recorder(CANARIES, store=tmp_path / "steps")
    recorder.observe(np.zeros(60), planted=[])
    recorder.transcript()
    with pytest.raises(InvalidArgumentError, match="sampling_rate"):
        StepStore(tmp_path / "steps").likelihood_ratio_scores(noise_multiplier=1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_an_odd_value_is_never_a_score(odd, tmp_path):
    recorder = Recorder(CANARIES, sampling_rate=1.0, store=tmp_path / "steps")
    recorder.sample()
    recorder.observe(np.full(60, odd))
    recorder.transcript()
    with pytest.raises(ScoresError, match="finite"):
        StepStore(tmp_path / "steps").likelihood_ratio_scores(noise_multiplier=1.0)


def test_the_likelihood_ratio_separates_better_than_the_sum(tmp_path):
    """Apart by q sqrt(T) / sigma = .56 against q sqrt(T) sqrt(exp(1 / sigma^2) - 1) = .87.

    With 1,000 canaries in each group both have a standard error of .045. Were they independent, the
    wrong order would be 4.9 standard errors of the difference off, a probability of 5e-7; from the
    same noise it is smaller still.
    """
    canaries = DiracCanaries(present=1000, absent=1000, dimension=2000, seed=1)
    recorder = Recorder(canaries, sampling_rate=0.01, noise_multiplier=0.8, store=tmp_path / "s")
    generator = np.random.default_rng(3)
    for _ in range(2000):
        released = generator.normal(scale=0.8, size=2000)
        released[recorder.sample()] += 1.0
        recorder.observe(released, background=np.zeros(2000))
    plain = recorder.transcript().scores()
    ratio = StepStore(tmp_path / "s").likelihood_ratio_scores()

    def separation(scores):
        present, absent = scores.moments()
        return (present.mean - absent.mean) / absent.standard_deviation

    assert separation(plain) == pytest.approx(0.01 * np.sqrt(2000) / 0.8, abs=5 * 0.045)
    assert separation(ratio) > separation(plain)


def test_a_full_disk_under_the_store_blocks_nothing_else(tmp_path, monkeypatch):
    canaries = DiracCanaries(present=20, absent=40, dimension=400, seed=0)
    recorder = Recorder(canaries, sampling_rate=0.5, store=tmp_path / "full" / "steps")
    (tmp_path / "full").mkdir()
    for _ in range(3):
        recorder.sample()
        recorder.observe(np.zeros(60))
    write = StepWriter._write

    def full(self, seal, sync):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StepWriter, "_write", full)
    with pytest.warns(AskGaussWarning, match=r"step store .*No space left"):
        recorder.save(tmp_path / "elsewhere.npz", finished=True)
    with pytest.warns(AskGaussWarning, match="complete"):
        assert recorder.transcript().number_of_steps == 3
    again = Recorder(canaries, sampling_rate=0.5, store=tmp_path / "full" / "steps")
    with pytest.raises(RecordingError, match="3 steps of the checkpoint"):
        again.load(tmp_path / "elsewhere.npz")
    # With room again nothing is lost.
    monkeypatch.setattr(StepWriter, "_write", write)
    recorder.save(tmp_path / "elsewhere.npz", finished=True)
    assert StepStore(tmp_path / "full" / "steps").number_of_steps == 3
