from __future__ import annotations

import io
import json
from dataclasses import fields, replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss import DiracCanaries, Recorder, Transcript, _files
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    ScoresError,
)
from askgauss.scores import ScoreMetadata
from askgauss.transcript import CanarySums, RunFacts, StepStore, StepSums

CANARIES = DiracCanaries(count=60, tensors=[100, 40, 100], seed=2)


def recorded(steps=20, *, norms=(1.0,), watch=True, **options):
    """A short run with sampling rate .25 and noise multiplier .8."""
    recorder = Recorder(CANARIES, sampling_rate=0.25, **options)
    generator = np.random.default_rng(5)
    for step in range(steps):
        norm = norms[step % len(norms)]
        vector = norm * generator.normal(scale=0.8, size=CANARIES.total_dimension)
        CANARIES.plant(vector, recorder.sample(), norm)
        recorder.observe(
            CANARIES.project(vector),
            background=np.zeros(60),
            clip_norm=norm,
            watch=vector[CANARIES.watch] if watch else None,
        )
    return recorder.transcript()


def identical(one, other):
    ours, theirs = one.arrays(), other.arrays()
    return (
        ours.keys() == theirs.keys()
        and all(ours[key].dtype == theirs[key].dtype for key in ours)
        and all(ours[key].shape == theirs[key].shape for key in ours)
        and all(ours[key].tobytes() == theirs[key].tobytes() for key in ours)
        and one.facts == other.facts
    )


# --- the transcript ------------------------------------------------------------------------------


def test_scores_are_sums_over_the_root_of_the_steps():
    transcript = recorded(20, noise_multiplier=0.8)
    scores = transcript.scores()
    np.testing.assert_array_equal(scores.score, transcript.canaries.total / np.sqrt(20))
    np.testing.assert_array_equal(scores.member, CANARIES.member)
    assert scores.metadata == ScoreMetadata(
        steps=20,
        sampling_rate=0.25,
        clip_norm=1.0,
        noise_multiplier=0.8,
        background="known",
        fair_coins=True,
    )


def test_scores_say_nothing_they_do_not_know():
    transcript = recorded(20, norms=(1.0, 2.0))
    assert transcript.scores().metadata.clip_norm == 1.0
    transcript = transcript.with_facts(replace(transcript.facts, poisson=False))
    assert transcript.scores().metadata.sampling_rate is None


def test_a_transcript_is_read_only():
    transcript = recorded()
    for array in transcript.arrays().values():
        if array.size:
            with pytest.raises(ValueError, match="read-only"):
                array.flat[0] = 0


def test_repr():
    transcript = recorded(3)
    present = int(CANARIES.member.sum())
    assert repr(transcript) == (
        f"Transcript(steps=3, present={present}, absent={60 - present}, background='known')"
    )


def test_other_facts_leave_the_arrays_alone():
    transcript = recorded(3)
    facts = RunFacts(accounted_steps=7, notes=("interrupted",))
    other = transcript.with_facts(facts)
    assert other.facts is facts
    assert all(other.arrays()[key] is array for key, array in transcript.arrays().items())


@pytest.mark.parametrize("watch", [True, False])
def test_a_saved_transcript_comes_back_to_the_last_bit(watch, tmp_path):
    transcript = recorded(watch=watch, norms=(1.0, 0.3), noise_multiplier=0.8)
    transcript.save(tmp_path / "transcript.npz")
    again = Transcript.load(tmp_path / "transcript.npz")
    assert identical(transcript, again)
    assert again.watch_values.shape == (20, 24 if watch else 0)
    stream = io.BytesIO()
    transcript.save(stream)
    stream.seek(0)
    assert identical(transcript, Transcript.load(stream))


@given(
    facts=st.builds(
        RunFacts,
        sampling_rate=st.none() | st.floats(0, 1),
        sampling=st.sampled_from(["own coin", "user's sampler"]),
        poisson=st.booleans(),
        background=st.sampled_from(["known", "unknown"]),
        noise_multiplier=st.none() | st.floats(allow_nan=False),
        accounted_steps=st.none() | st.integers(0, 10**9),
        unnoised_steps=st.integers(0, 5),
        tensors=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        precision=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        seed=st.none() | st.integers(0, 2**200),
        notes=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_facts_come_back(facts):
    stream = io.BytesIO()
    BASE.with_facts(facts).save(stream)
    stream.seek(0)
    assert Transcript.load(stream).facts == facts


BASE = recorded(3)


def test_a_transcript_that_is_not_finite_comes_back_as_such(tmp_path):
    recorder = Recorder(CANARIES)
    recorder.observe(np.full(60, np.nan), planted=[])
    transcript = recorder.transcript()
    transcript.save(tmp_path / "transcript.npz")
    again = Transcript.load(tmp_path / "transcript.npz")
    assert identical(transcript, again)
    assert not again.finite
    with pytest.raises(ScoresError, match="finite"):
        again.scores()


# --- files that are no transcripts ---------------------------------------------------------------


def rewritten(tmp_path, change=None, *, kind="askgauss-transcript", schema=1, facts=None):
    arrays = {key: np.array(array) for key, array in BASE.arrays().items()}
    if change is not None:
        change(arrays)
    path = tmp_path / "odd.npz"
    metadata = {"facts": {} if facts is None else facts}
    _files.write_arrays(path, kind, schema, arrays, metadata)
    return path


def test_foreign_and_newer_files_are_refused(tmp_path):
    assert Transcript.load(rewritten(tmp_path)).facts == RunFacts()
    for options, message in (
        ({"schema": 2}, r"schema <= 1, got 2.*newer askgauss.*Update"),
        ({"kind": "askgauss-recorder"}, "kind 'askgauss-transcript', got 'askgauss-recorder'"),
        ({"facts": {"sampling": "by feel"}}, "facts.sampling"),
        ({"facts": 5}, "facts to be an object"),
    ):
        with pytest.raises(FileFormatError, match=message):
            Transcript.load(rewritten(tmp_path, **options))
    for content in (b"", b"PK", b"not a transcript"):
        with pytest.raises(FileFormatError, match="truncated, corrupt or not an npz file"):
            Transcript.load(io.BytesIO(content))
    with pytest.raises(FileNotFoundError):
        Transcript.load(tmp_path / "nowhere.npz")


def test_facts_a_later_version_added_are_left_alone(tmp_path):
    path = rewritten(tmp_path, facts={"sampling_rate": 0.5, "weather": "fine"})
    assert Transcript.load(path).facts == RunFacts(sampling_rate=0.5)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "odd.npz"
    header = np.frombuffer(
        json.dumps({"kind": "askgauss-transcript", "schema": 1}).encode(), np.uint8
    )
    np.savez(path, askgauss=header, member=np.array([print], dtype=object))
    with pytest.raises(FileFormatError, match="truncated, corrupt or not an npz file"):
        Transcript.load(path)


def test_a_transcript_cut_short_anywhere_is_refused(tmp_path):
    path = rewritten(tmp_path)
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 1, 60).astype(int):
        with pytest.raises(FileFormatError, match="truncated, corrupt or not an npz file"):
            Transcript.load(io.BytesIO(content[:length]))


def test_a_flipped_byte_of_an_array_is_noticed(tmp_path):
    path = rewritten(tmp_path)
    content = path.read_bytes()
    for name in ("canaries.total", "steps.clip_norm", "member"):
        flipped = bytearray(content)
        flipped[content.index(BASE.arrays()[name].tobytes())] ^= 1
        with pytest.raises(FileFormatError, match="truncated, corrupt or not an npz file"):
            Transcript.load(io.BytesIO(bytes(flipped)))


NAMES = sorted(BASE.arrays())


@pytest.mark.parametrize("name", NAMES)
def test_every_array_has_to_be_there_and_fit(name, tmp_path):
    for change in (
        lambda arrays: arrays.pop(name),
        lambda arrays: arrays.update({name: arrays[name][..., None]}),
        lambda arrays: arrays.update({name: np.concatenate([arrays[name]] * 2)}),
        lambda arrays: arrays.update({name: arrays[name].astype(complex)}),
        lambda arrays: arrays.update({name: arrays[name].astype("U8")}),
        lambda arrays: arrays.update({name: arrays[name].ravel()[0]}),
    ):
        with pytest.raises(FileFormatError, match=r"Expected"):
            Transcript.load(rewritten(tmp_path, change))


@pytest.mark.parametrize(("name", "value"), [("tensor", 3), ("kept", 60), ("kept", -1)])
def test_indices_have_to_be_in_range(name, value, tmp_path):
    with pytest.raises(FileFormatError, match=rf"{name} in \[0, "):
        Transcript.load(rewritten(tmp_path, lambda arrays: arrays[name].fill(value)))


def test_a_transcript_of_no_steps_is_refused(tmp_path):
    def empty(arrays):
        for key in arrays:
            if key.startswith("steps.") or key in ("kept_values", "kept_planted", "watch_values"):
                arrays[key] = arrays[key][:0]

    with pytest.raises(FileFormatError, match="at least one observed step"):
        Transcript.load(rewritten(tmp_path, empty))
    with pytest.raises(RecordingError, match="at least one observed step"):
        replace(
            BASE,
            steps=StepSums(**{item.name: np.zeros(0) for item in fields(StepSums)}),
        )


def test_arrays_name_every_part():
    assert set(NAMES) == {
        *("member", "tensor", "kept", "kept_values", "kept_planted", "watch_values"),
        "watch_tensor",
        *(f"canaries.{item.name}" for item in fields(CanarySums)),
        *(f"steps.{item.name}" for item in fields(StepSums)),
    }


# --- the step store ------------------------------------------------------------------------------


def stored(path, steps=20, **options):
    recorded(steps, store=path, **options)
    return StepStore(path)


def test_the_layout_of_a_store_is_as_described(tmp_path):
    """Read with nothing but the sentence in the docstring."""
    transcript = recorded(5, store=tmp_path / "steps")
    line, rest = (tmp_path / "steps").read_bytes().split(b"\n", 1)
    header = json.loads(line)
    assert (header["kind"], header["schema"], header["canaries"]) == ("askgauss-steps", 1, 60)
    bits = np.unpackbits(np.frombuffer(rest[:8], np.uint8), bitorder="little")
    np.testing.assert_array_equal(bits[:60], CANARIES.member)
    rows = np.frombuffer(rest[8:], np.uint8).reshape(5, 4 * 60 + 8)
    values = rows[:, :240].copy().view("<f4")
    planted = np.unpackbits(rows[:, 240:], axis=1, bitorder="little")
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
    line, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(json.loads(line) | changes).encode() + b"\n" + rest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, r"schema <= 1, got 2.*newer askgauss.*Update"),
        ({"schema": "1"}, "schema to be a whole number"),
        ({"kind": "askgauss-scores"}, "kind 'askgauss-steps', got 'askgauss-scores'"),
        ({"canaries": 0}, "canaries >= 1"),
        ({"canaries": "60"}, "canaries to be int"),
        ({"canaries": 10**18}, "membership of 1000000000000000000 canaries"),
        ({"canaries": 61}, r"bytes more than \d+ steps"),
        ({"facts": None}, "facts to be an object"),
        ({"facts": {"sampling_rate": "often"}}, "facts.sampling_rate"),
        ({"fingerprint": None}, "fingerprint to be str"),
    ],
)
def test_odd_stores_are_refused(changes, message, tmp_path):
    path = tmp_path / "steps"
    stored(path)
    with_header(path, **changes)
    with pytest.raises(FileFormatError, match=message):
        StepStore(path)


def test_files_that_are_no_stores_are_refused(tmp_path):
    path = tmp_path / "odd"
    for content in (b"", b"\n", b"\x80\x81\n", b"x" * 100, b"[" * 10**6, b'{"kind": "a"}\n'):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"Cannot read .*odd.*askgauss-steps"):
            StepStore(path)
    with pytest.raises(FileNotFoundError):
        StepStore(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="steps to be a whole number >= 1, got 0"):
        StepStore(path, steps=0)


def test_a_store_cut_short_anywhere_is_refused_or_asks_for_the_steps(tmp_path):
    path = tmp_path / "steps"
    values = np.array(stored(path, 4).values)
    content = path.read_bytes()
    row = 4 * 60 + 8
    head = len(content) - 4 * row
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        steps = (length - head) // row
        if steps < 1 or (length - head) % row:
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
    monkeypatch.setattr("askgauss.transcript._CHUNK", chunk)
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
    with pytest.raises(InvalidArgumentError, match=r"sampling_rate to be given"):
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
