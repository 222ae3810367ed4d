from __future__ import annotations

import io
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss import DiracCanaries, Recorder, Transcript
from askgauss.evidence.consistency import check_consistency
from askgauss.exceptions import (
    FileFormatError,
    RecordingError,
    ScoresError,
)
from askgauss.files import archive
from askgauss.recording.facts import RunFacts
from askgauss.recording.transcript import CanarySums, StepSums
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    MinSeparation,
    Poisson,
    Shuffled,
)
from askgauss.scores import ScoreMetadata

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


@pytest.mark.parametrize("declared", [(2.0, 1.0, 4.0), (2.0, None, 4.0), (2.0, 0.0, 4.0)])
def test_a_schedule_is_relative_to_the_first_step(declared):
    """And where a step declares nothing, or no noise, there is none."""
    recorder = Recorder(DiracCanaries(present=5, absent=5, dimension=20, seed=0), sampling_rate=0.5)
    for noise in declared:
        recorder.sample()
        recorder.observe(np.zeros(10), noise_multiplier=noise)
    expected = [1.0, 0.5, 2.0] if all(declared) else [1.0, 1.0, 1.0]
    assert recorder.transcript().schedule.tolist() == expected


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
        noise_multiplier=st.none() | st.just(0.0) | st.floats(1e-140, 1e140),
        accounted_steps=st.none() | st.integers(0, 10**9),
        unnoised_steps=st.integers(0, 5),
        tensors=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        precision=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        seed=st.none() | st.integers(0, 2**200),
        notes=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_facts_come_back(facts):
    if facts.own_law is not None:  # the coin that planted was the recorder's
        facts = replace(facts, sampling_rate=0.25)
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


def rewritten(tmp_path, change=None, *, kind="askgauss-transcript", schema=2, facts=None):
    arrays = {key: np.array(array) for key, array in BASE.arrays().items()}
    if change is not None:
        change(arrays)
    path = tmp_path / "odd.npz"
    metadata = {"facts": {"tensors": BASE.facts.tensors} if facts is None else facts}
    archive.write_arrays(path, kind, schema, arrays, metadata)
    return path


def test_foreign_and_newer_files_are_refused(tmp_path):
    assert Transcript.load(rewritten(tmp_path)).facts == RunFacts(tensors=BASE.facts.tensors)
    for options, message in (
        ({"schema": 3}, r"schema <= 2, got 3.*newer askgauss.*Update"),
        ({"kind": "askgauss-recorder"}, "kind 'askgauss-transcript', got 'askgauss-recorder'"),
        ({"facts": {"sampling": "by feel"}}, "facts.sampling"),
        ({"facts": 5}, "facts to be an object"),
    ):
        with pytest.raises(FileFormatError, match=message):
            Transcript.load(rewritten(tmp_path, **options))
    for content in (b"", b"PK", b"not a transcript"):
        with pytest.raises(FileFormatError, match="corrupt"):
            Transcript.load(io.BytesIO(content))
    with pytest.raises(FileNotFoundError):
        Transcript.load(tmp_path / "nowhere.npz")


def test_facts_a_later_version_added_are_left_alone(tmp_path):
    path = rewritten(tmp_path, facts={"tensors": ["a", "b", "c"], "weather": "fine"})
    assert Transcript.load(path).facts == RunFacts(tensors=("a", "b", "c"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_rate": 1e-3}, r"Poisson sampling at rate 0.001.*rate 0\.\d+, of odds below"),
        ({"scheme": Poisson(rate=0.25), "poisson": False}, "facts.poisson"),
        ({"scheme": Poisson(rate=0.5)}, "facts.sampling_rate"),
        (
            {"scheme": EveryStep(), "poisson": False, "sampling_rate": 1.0},
            r"planted in \d+ of 20 steps, where it allows 20",
        ),
        (
            {"scheme": MinSeparation(separation=11, rate=1.0), "poisson": False},
            r"planted in \d+ of 20 steps, where it allows 0 to 2",
        ),
        ({"scheme": BallsInBins(bins=4), "poisson": False}, "where it allows 5"),
        ({"scheme": CyclicPoisson(rate=1.0, cycle=4), "poisson": False}, "where it allows 5"),
        (
            {"scheme": Shuffled(batches=4), "sampling": "user's sampler"},
            "facts.plantings beside a sampler",
        ),
    ],
)
def test_facts_that_the_plantings_contradict_are_refused(changes, message):
    honest = recorded()
    if "scheme" in changes and changes["scheme"] != Poisson(rate=0.5):
        changes = {"sampling_rate": changes["scheme"].share, **changes}
    check_consistency(honest)
    with pytest.raises(FileFormatError, match=message):
        check_consistency(again(honest.with_facts(replace(honest.facts, **changes))))


def test_plantings_in_steps_that_the_scheme_leaves_out_are_refused():
    recorder = Recorder(CANARIES, sampling=BallsInBins(bins=4))
    for _ in range(8):
        recorder.sample()
        recorder.observe(np.zeros(60), background=np.zeros(60))
    honest = recorder.transcript()
    assert identical(again(honest), honest)
    # As many plantings of each canary and in each step, in another order.
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    moved = replace(
        honest,
        kept_planted=honest.kept_planted[order],
        steps=replace(honest.steps, planted=honest.steps.planted[order]),
    )
    with pytest.raises(FileFormatError, match="other canaries planted in step"):
        check_consistency(again(moved))


def test_schemes_stated_twice_have_to_agree():
    recorder = Recorder(CANARIES, sampling=Shuffled(batches=4), records=60)
    batches = list(Shuffled(batches=4).draw(np.random.default_rng(0), 60, 8))
    for batch in batches:
        planted = batch[CANARIES.member[batch]]
        recorder.observe(np.zeros(60), planted=planted, batch=batch)
    honest = recorder.transcript()
    assert identical(again(honest), honest)
    facts = honest.facts
    other = replace(facts.batches, scheme=Shuffled(batches=40))
    fewer = replace(facts.plantings, drawn=facts.plantings.drawn - 1)
    for changed, message in (
        (replace(facts, batches=other), "facts.batches.scheme"),
        (replace(facts, plantings=other), "facts.plantings.scheme"),
        (replace(facts, plantings=fewer), r"facts.plantings to be the .* present canaries"),
    ):
        with pytest.raises(FileFormatError, match=message):
            check_consistency(again(honest.with_facts(changed)))


def again(transcript):
    stream = io.BytesIO()
    transcript.save(stream)
    stream.seek(0)
    return Transcript.load(stream)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "odd.npz"
    np.savez(path, member=np.array([print], dtype=object))
    with (
        pytest.raises(FileFormatError, match="and nothing is unpickled"),
        path.open("rb") as stream,
    ):
        archive.read_npz(stream)


def test_a_transcript_cut_short_anywhere_is_refused(tmp_path):
    path = rewritten(tmp_path)
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 1, 60).astype(int):
        with pytest.raises(FileFormatError, match="corrupt"):
            Transcript.load(io.BytesIO(content[:length]))


def test_a_flipped_byte_of_an_array_is_noticed(tmp_path):
    path = rewritten(tmp_path)
    content = path.read_bytes()
    for name in ("canaries.total", "steps.clip_norm", "member"):
        flipped = bytearray(content)
        flipped[content.index(BASE.arrays()[name].tobytes())] ^= 1
        with pytest.raises(FileFormatError, match="corrupt"):
            Transcript.load(io.BytesIO(bytes(flipped)))


NAMES = sorted(BASE.arrays())
# These follow from others, and files may leave them out.
DERIVED = {"tensor", "canaries.total", "canaries.square", "canaries.last_planted"}


@pytest.mark.parametrize("name", NAMES)
def test_every_array_has_to_be_there_and_fit(name, tmp_path):
    for change in (
        *([] if name in DERIVED else [lambda arrays: arrays.pop(name)]),
        lambda arrays: arrays.update({name: arrays[name][..., None]}),
        lambda arrays: arrays.update({name: np.concatenate([arrays[name]] * 2)}),
        lambda arrays: arrays.update({name: arrays[name].astype(complex)}),
        lambda arrays: arrays.update({name: arrays[name].astype("U8")}),
        lambda arrays: arrays.update({name: arrays[name].ravel()[0]}),
    ):
        with pytest.raises(FileFormatError, match=r"Expected|no array of numbers"):
            Transcript.load(rewritten(tmp_path, change))


@pytest.mark.parametrize(("name", "value"), [("tensor", 3), ("kept", 60), ("kept", -1)])
def test_indices_have_to_be_in_range(name, value, tmp_path):
    with pytest.raises(FileFormatError, match=rf"{name} in \[0, "):
        Transcript.load(rewritten(tmp_path, lambda arrays: arrays[name].fill(value)))


def test_sums_of_no_tensor_are_refused(tmp_path):
    def empty(arrays):
        del arrays["tensor"]
        arrays["canaries.planted"] = np.zeros_like(arrays["canaries.planted"])
        for key in ("planted", "planted_total", "planted_square", "total", "square"):
            arrays[f"steps.{key}"] = arrays[f"steps.{key}"][:, :0]

    with pytest.raises(FileFormatError, match="tensor"):
        Transcript.load(rewritten(tmp_path, empty))


def test_a_transcript_of_no_steps_is_refused(tmp_path):
    def empty(arrays):
        for key in arrays:
            if key.startswith("steps.") or key in ("kept_values", "kept_planted", "watch_values"):
                arrays[key] = arrays[key][:0]

    with pytest.raises(FileFormatError, match=r"canaries.planted in \[0, 0\]"):
        Transcript.load(rewritten(tmp_path, empty))
    with pytest.raises(RecordingError, match="observed step"):
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


@pytest.mark.parametrize("schedule", [(2.0, 2.0, 2.0), (4.0, 2.0, 1.0)])
def test_what_follows_from_the_rest_is_not_written_and_read_all_the_same(tmp_path, schedule):
    canaries = DiracCanaries(present=10, absent=20, dimension=100, seed=3)
    recorder = Recorder(canaries, sampling_rate=0.5, clip_norm=1.0)
    noise = np.random.default_rng(4)
    for multiplier in schedule:
        total = noise.normal(0.0, multiplier, 30)
        total[recorder.sample()] += 1.0
        recorder.observe(total, background=np.zeros(30), noise_multiplier=multiplier)
    transcript = recorder.transcript()
    transcript.save(tmp_path / "transcript.npz")
    written = set(np.load(tmp_path / "transcript.npz").files)
    # Under a schedule the parts are in other units than the whole, which then stands by itself.
    assert ("canaries.total" in written) == (len(set(schedule)) > 1)
    assert not written & {"tensor", "canaries.last_planted"}
    again = Transcript.load(tmp_path / "transcript.npz").arrays()
    assert again.keys() == transcript.arrays().keys()
    for name, array in transcript.arrays().items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
