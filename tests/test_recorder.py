from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import askgauss as ag
from askgauss import BlockCanaries, DiracCanaries, PrivacyClaim, Recorder, audit
from askgauss.evidence.consistency import check_consistency
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    ScoresError,
)
from askgauss.files import archive
from askgauss.recording import recorder as recorder_module
from askgauss.recording.step_store import StepStore
from askgauss.recording.transcript import Transcript
from askgauss.results import Status

CANARIES = {
    "one tensor": DiracCanaries(count=40, dimension=200, seed=1),
    # The last tensors are too small to hold one of these canaries.
    "many tensors": DiracCanaries(present=12, absent=29, tensors=[50, 3, 50, 2000, 9, 2], seed=3),
    "blocks": BlockCanaries(present=9, absent=14, tensors=[40, 60, 40], block=4, seed=2),
    "more than are kept": DiracCanaries(count=700, tensors=[900, 100], seed=4),
    "nobody present": DiracCanaries(present=0, absent=20, tensors=[30, 30], seed=5),
}


@dataclass(frozen=True)
class Run:
    """A run whose every step is a function of its number alone, so it can be taken up again."""

    name: str = "many tensors"
    own_coin: bool = True
    background: bool = True
    watch: bool = True
    vary: bool = True

    @property
    def canaries(self):
        return CANARIES[self.name]

    def recorder(self, **changes):
        rate = 0.3 if self.own_coin else None
        return Recorder(
            **{"canaries": self.canaries, "sampling_rate": rate, "clip_norm": 2.0} | changes
        )

    def sample(self, recorder, step):
        if self.own_coin:
            return recorder.sample()
        present = np.flatnonzero(self.canaries.member)
        generator = np.random.default_rng([77, step])
        return generator.permutation(present)[: generator.integers(present.size + 1)]

    def observe(self, recorder, step, planted):
        """Record a step; returns what the recorder should have understood of it."""
        generator = np.random.default_rng([78, step])
        canaries, norm = self.canaries, 2.0
        extra = {} if self.own_coin else {"planted": planted}
        if self.vary:
            norm = float(generator.uniform(0.5, 3.0))
            extra |= {"clip_norm": norm, "noise_multiplier": norm / 2}
        background = generator.normal(scale=3.0, size=canaries.size)
        released = background + norm * generator.normal(scale=1.5, size=canaries.size)
        released[planted] += norm
        watch = generator.normal(size=canaries.watch.size)
        if self.background:
            extra["background"] = background
        if self.watch:
            extra["watch"] = watch
        recorder.observe(released, **extra)
        flags = np.zeros(canaries.size, dtype=bool)
        flags[planted] = True
        values = (released - background if self.background else released) / norm
        return values, flags, watch / norm, norm

    def record(self, recorder, first, last):
        return [
            self.observe(recorder, step, self.sample(recorder, step)) for step in range(first, last)
        ]


RUNS = [
    Run(name, *switches)
    for name in ("one tensor", "many tensors", "blocks", "more than are kept")
    for switches in itertools.product([True, False], repeat=4)
    if name == "many tensors" or switches[0] == switches[1]
] + [Run("nobody present")]
runs = st.sampled_from(RUNS)


def same(one, other):
    """Nested dictionaries of arrays and plain values, equal to the last bit but for the run."""
    if isinstance(one, dict):
        keys = one.keys() - {"run", "stored_check", "resumed"}
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other


def same_transcript(one, other):
    return same(one.arrays(), other.arrays()) and one.facts == other.facts


# --- the sums, against the whole matrix of observations ------------------------------------------


@pytest.mark.parametrize("chunk", [7, 1 << 14])
@pytest.mark.parametrize("run", RUNS)
def test_sums_are_those_of_the_whole_matrix(run, chunk, monkeypatch):
    monkeypatch.setattr("askgauss.recording.run_recorder._CHUNK", chunk)
    recorder = run.recorder(noise_multiplier=1.25)
    steps = run.record(recorder, 0, 70)
    assert recorder.steps == 70
    transcript = recorder.transcript()
    values, flags, watch, norms = (np.array(part) for part in zip(*steps, strict=True))
    close = {"rtol": 1e-12, "atol": 1e-11}

    sums = transcript.canaries
    np.testing.assert_array_equal(sums.planted, flags.sum(axis=0))
    np.testing.assert_allclose(sums.total, values.sum(axis=0), **close)
    np.testing.assert_allclose(sums.square, (values**2).sum(axis=0), **close)
    np.testing.assert_allclose(sums.planted_total, (values * flags).sum(axis=0), **close)
    np.testing.assert_allclose(sums.planted_square, (values**2 * flags).sum(axis=0), **close)
    # From here on in units of the noise that is declared, relative to that of the first step.
    unit = (norms / norms[0] if run.vary else np.ones(70))[:, None]
    residuals = (values - flags) / unit
    others = np.where(flags, 0.0, residuals)
    np.testing.assert_allclose(sums.lag, (residuals[1:] * residuals[:-1]).sum(axis=0), **close)
    np.testing.assert_allclose(sums.other_total, others.sum(axis=0), **close)
    np.testing.assert_allclose(sums.other_square, (others**2).sum(axis=0), **close)
    np.testing.assert_allclose(transcript.schedule, unit[:, 0], **close)

    rows = transcript.steps
    np.testing.assert_allclose(rows.least, others.min(axis=1), **close)
    np.testing.assert_allclose(rows.most, others.max(axis=1), **close)
    for step in range(70):
        planted = residuals[step, flags[step]]
        ends = (planted.min(), planted.max()) if planted.size else (np.nan, np.nan)
        np.testing.assert_allclose((rows.planted_least[step], rows.planted_most[step]), ends)
        before = np.where(flags[step], 0.0, others[:step].sum(axis=0))
        length = np.sqrt((before**2).sum())
        along = before @ others[step] / length if length else np.nan
        np.testing.assert_allclose(rows.carried[step], along, rtol=1e-9, atol=1e-9)
    near = np.abs(residuals) < 1e-3 * rows.noise_multiplier[0]
    np.testing.assert_array_equal(rows.silent, (near & ~flags).sum(axis=1))
    np.testing.assert_array_equal(rows.planted_silent, (near & flags).sum(axis=1))
    gaps, last = np.zeros(70, dtype=int), np.zeros(flags.shape[1], dtype=int)
    for step in range(0 if run.own_coin else 70):
        for index in np.flatnonzero(flags[step]):
            gaps[step - last[index]] += last[index] > 0
            last[index] = step + 1
    np.testing.assert_array_equal(rows.gaps, gaps)
    np.testing.assert_array_equal(sums.last_planted, last)
    assert np.isnan(rows.batch_size).all()

    np.testing.assert_array_equal(rows.clip_norm, norms)
    claimed = norms / 2 if run.vary else np.full(70, 1.25)
    np.testing.assert_array_equal(rows.noise_multiplier, claimed)
    assert rows.planted.shape == (70, transcript.tensor.max() + 1)
    for step, tensor in itertools.product(range(70), range(rows.planted.shape[1])):
        here = transcript.tensor == tensor
        planted = values[step, here & flags[step]]
        others = values[step, here & ~flags[step]]
        assert rows.planted[step, tensor] == planted.size
        for name, expected in (
            ("planted_total", planted.sum()),
            ("planted_square", (planted**2).sum()),
            ("total", others.sum()),
            ("square", (others**2).sum()),
        ):
            assert getattr(rows, name)[step, tensor] == pytest.approx(
                expected, rel=1e-12, abs=1e-11
            )

    np.testing.assert_array_equal(transcript.member, run.canaries.member)
    np.testing.assert_array_equal(transcript.tensor, run.canaries.tensor)
    assert transcript.kept.size == np.unique(transcript.kept).size == min(256, flags.shape[1])
    np.testing.assert_array_equal(transcript.kept_values, values[:, transcript.kept])
    np.testing.assert_array_equal(transcript.kept_planted, flags[:, transcript.kept])
    if run.watch:
        np.testing.assert_array_equal(transcript.watch_values, watch)
        np.testing.assert_array_equal(transcript.watch_tensor, run.canaries.watch_tensor)
    else:
        assert transcript.watch_values.shape == (70, 0)
        assert transcript.watch_tensor.shape == (0,)
    assert transcript.finite


@pytest.mark.parametrize("run", RUNS)
def test_the_facts_are_those_of_the_run(run):
    recorder = run.recorder(noise_multiplier=1.25)
    run.record(recorder, 0, 2)
    facts = recorder.transcript().facts
    assert facts.sampling_rate == (0.3 if run.own_coin else None)
    assert facts.sampling == ("own coin" if run.own_coin else "user's sampler")
    assert facts.poisson == run.own_coin
    assert facts.background == ("known" if run.background else "unknown")
    assert facts.fair_coins == (run.canaries.count is not None)
    assert facts.noise_multiplier == 1.25
    assert facts.seed == run.canaries.root_seed
    # There is a name for every tensor, also for those that only watched coordinates lie in.
    assert len(facts.tensors) == len(run.canaries.tensor_sizes) > run.canaries.watch_tensor.max()


@pytest.mark.parametrize("own_coin", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_poisson_is_what_the_coin_is_or_what_was_declared(own_coin, declared):
    recorder = Recorder(CANARIES["one tensor"], sampling_rate=0.5, poisson=declared)
    if own_coin:
        recorder.sample()
    recorder.observe(np.zeros(40), planted=None if own_coin else [])
    facts = recorder.transcript().facts
    assert facts.poisson == (own_coin or declared)
    assert facts.poisson_declared == (declared and not own_coin)


def test_a_background_of_zero_is_one_that_was_taken_off_already():
    canaries, generator = CANARIES["many tensors"], np.random.default_rng(0)
    given, off = (Recorder(canaries, sampling_rate=0.5) for _ in range(2))
    for _ in range(5):
        released, clean = generator.normal(size=(2, canaries.size))
        given.sample()
        given.observe(released, background=clean)
        off.sample()
        off.observe(released - clean, background=0.0)
    assert same_transcript(given.transcript(), off.transcript())
    assert off.transcript().facts.background == "known"
    off.sample()
    for wrong in (1.0, True, "0"):
        with pytest.raises(InvalidArgumentError, match="background"):
            off.observe(np.zeros(canaries.size), background=wrong)


def test_without_noise_the_sums_of_the_others_are_exactly_zero():
    """Nothing is added and taken off again: a run without noise must show as one."""
    canaries = CANARIES["many tensors"]
    recorder = Recorder(canaries, sampling_rate=0.5, clip_norm=0.1)
    for _ in range(20):
        released = np.zeros(canaries.size)
        released[recorder.sample()] += 0.1
        recorder.observe(released)
    transcript = recorder.transcript()
    for sums in (transcript.steps.total, transcript.steps.square, transcript.canaries.lag):
        assert not sums.any()
    np.testing.assert_array_equal(transcript.canaries.total, transcript.canaries.planted_total)
    np.testing.assert_array_equal(transcript.canaries.total, transcript.canaries.planted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_any_number_format_is_read_in_double_precision(dtype):
    canaries = CANARIES["one tensor"]
    recorder = Recorder(canaries, clip_norm=3.0)
    released = np.arange(40).astype(dtype)
    background = (np.arange(40) * 3 + 1).astype(dtype)
    recorder.observe(released, background=background, planted=[])
    expected = (released.astype(np.float64) - background.astype(np.float64)) / 3.0
    np.testing.assert_array_equal(recorder.transcript().canaries.total, expected)


def test_what_the_caller_holds_is_neither_kept_nor_changed():
    run = Run("one tensor", watch=False)
    canaries = run.canaries
    recorder = Recorder(canaries, sampling_rate=0.5)
    drawn = recorder.sample()
    chosen = drawn.copy()
    released, background = np.ones(40), np.full(40, 0.25)
    drawn[:] = np.flatnonzero(~canaries.member)[0]
    recorder.observe(released, background=background)
    np.testing.assert_array_equal(released, np.ones(40))
    np.testing.assert_array_equal(background, np.full(40, 0.25))
    released[:] = 7.0
    first = recorder.transcript()
    np.testing.assert_array_equal(np.flatnonzero(first.canaries.planted), chosen)
    recorder.sample()
    recorder.observe(released, background=background)
    np.testing.assert_array_equal(first.canaries.total, np.full(40, 0.75))
    assert first.number_of_steps == 1
    np.testing.assert_array_equal(recorder.transcript().canaries.total, np.full(40, 7.5))


# --- the coin ----------------------------------------------------------------------------------


def test_the_coin_is_poisson():
    """Rate, spread over steps and canaries, and lag of 300 x 400 coins at 5 standard deviations.

    A correct implementation fails with probability 2.3e-6.
    """
    canaries = DiracCanaries(present=300, absent=100, dimension=500, seed=8)
    recorder = Recorder(canaries, sampling_rate=0.2)
    flags = np.zeros((400, 400))
    for row in flags:
        planted = recorder.sample()
        row[planted] = 1.0
        recorder.observe(np.zeros(400))
    assert not flags[:, ~canaries.member].any()
    coins = (flags[:, canaries.member] - 0.2) / 0.4
    assert abs(coins.sum()) < 5 * np.sqrt(coins.size)
    for axis in (0, 1):
        sums = coins.sum(axis=axis) / np.sqrt(coins.shape[axis])
        # The variance of a squared standardised sum is close to 2.
        assert abs((sums**2 - 1).sum()) < 5 * np.sqrt(2.2 * sums.size)
    assert abs((coins[1:] * coins[:-1]).sum()) < 5 * np.sqrt(coins.size)


def test_a_rate_of_one_plants_everybody():
    recorder = Recorder(CANARIES["one tensor"], sampling_rate=1)
    np.testing.assert_array_equal(recorder.sample(), np.flatnonzero(CANARIES["one tensor"].member))


def test_kept_canaries_do_not_depend_on_membership():
    """Both groups are kept in proportion: z-test over 300 seeds, probability 6e-7 to fail."""
    kept = 0
    for seed in range(300):
        canaries = DiracCanaries(present=256, absent=256, dimension=512, seed=seed)
        recorder = Recorder(canaries)
        recorder.observe(np.zeros(512), planted=[])
        kept += int(canaries.member[recorder.transcript().kept].sum())
    # Hypergeometric: 256 drawn of 512, half of them present.
    deviation = np.sqrt(256 * 0.25 * 256 / 511)
    assert abs(kept - 300 * 128) < 5 * deviation * np.sqrt(300)


# --- bad input, out of order: typed errors and nothing recorded ----------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canaries": 5000}, r"canaries .*got 5000"),
        ({"sampling_rate": 0.0}, r"sampling_rate in \(0, 1\], got 0\.0"),
        ({"sampling_rate": 1.1}, r"sampling_rate in \(0, 1\], got 1\.1"),
        ({"sampling_rate": np.nan}, r"sampling_rate in \(0, 1\], got nan"),
        ({"sampling_rate": "0.1"}, r"sampling_rate in \(0, 1\], got '0\.1'"),
        ({"clip_norm": 0.0}, r"clip_norm > 0 and finite, got 0\.0"),
        ({"clip_norm": np.inf}, r"clip_norm > 0 and finite, got inf"),
        ({"clip_norm": None}, r"clip_norm > 0, got None"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier >= 0 and finite, got -1\.0"),
        ({"noise_multiplier": "big"}, r"noise_multiplier >= 0, got 'big'"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Run().recorder(**change)


SIZE, WATCH = CANARIES["many tensors"].size, CANARIES["many tensors"].watch.size
PRESENT = np.flatnonzero(CANARIES["many tensors"].member)
ABSENT = np.flatnonzero(~CANARIES["many tensors"].member)
OWN = {"noisy_sum": np.zeros(SIZE), "background": np.zeros(SIZE), "watch": np.zeros(WATCH)}
USER = OWN | {"planted": PRESENT[:2]}


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noisy_sum": np.zeros(SIZE - 1)}, r"noisy_sum .* canaries.*project\(\)"),
        ({"noisy_sum": np.zeros((SIZE, 1))}, r"noisy_sum .* canaries.*project\(\)"),
        ({"noisy_sum": 0.0}, r"noisy_sum .* got shape \(\)"),
        ({"noisy_sum": ["a"] * SIZE}, r"noisy_sum .* dtype <U1"),
        ({"noisy_sum": [None] * SIZE}, r"noisy_sum .* dtype object"),
        ({"noisy_sum": np.zeros(SIZE, dtype=complex)}, r"noisy_sum .* dtype complex"),
        ({"background": np.zeros(SIZE + 1)}, r"background .* canaries.*project\(\)"),
        ({"background": ["a"] * SIZE}, r"background .* dtype <U1"),
        ({"clip_norm": 0.0}, r"clip_norm > 0 and finite, got 0\.0"),
        ({"clip_norm": np.nan}, r"clip_norm > 0 and finite, got nan"),
        ({"clip_norm": "one"}, r"clip_norm > 0, got 'one'"),
        ({"noise_multiplier": -2.0}, r"noise_multiplier >= 0 and finite, got -2\.0"),
        ({"noise_multiplier": "one"}, r"noise_multiplier >= 0, got 'one'"),
        ({"watch": np.zeros(WATCH + 1)}, r"watch to hold .* canaries\.watch"),
        ({"watch": []}, r"watch to hold .* canaries\.watch"),
        ({"watch": ["a"] * WATCH}, r"watch to hold .* dtype <U1"),
        ({"planted": [-1]}, r"planted in \[0, 41\), got -1 to -1\. Number"),
        ({"planted": [SIZE]}, r"planted in \[0, 41\), got 41 to 41\. Number"),
        ({"planted": [2**64 - 1]}, r"planted in \[0, 41\)"),
        ({"planted": [PRESENT[0], PRESENT[0]]}, r"planted to name each canary once.*drop"),
        ({"planted": [PRESENT[0], ABSENT[0]]}, rf"present canaries only, got {ABSENT[0]}.*Plant"),
        ({"planted": np.ones(SIZE, dtype=bool)}, r"planted .* bool.*flatnonzero"),
        ({"planted": [0.0]}, r"planted .* float64"),
        ({"planted": [[PRESENT[0]]]}, r"planted .* \(1, 1\)"),
    ],
)
def test_bad_observations_are_named_and_nothing_is_recorded(change, message, steps):
    run = Run(own_coin="planted" not in change)
    recorder = run.recorder()
    run.record(recorder, 0, steps)
    if run.own_coin:
        recorder.sample()
    before = recorder.state_dict()
    good = OWN if run.own_coin else USER
    with pytest.raises(InvalidArgumentError, match=message):
        recorder.observe(**good | change)
    assert same(recorder.state_dict(), before)
    recorder.observe(**good)
    assert recorder.steps == steps + 1


def sampled_twice(recorder):
    recorder.sample()
    with pytest.raises(RecordingError, match="twice"):
        recorder.sample()


def observed_before_sampled(recorder):
    with pytest.raises(RecordingError, match=r"before sample\(\)"):
        recorder.observe(**OWN)


def planted_after_sample(recorder):
    recorder.sample()
    with pytest.raises(RecordingError, match=r"planted=None|sampled"):
        recorder.observe(**USER)


def planted_after_own_coin(recorder):
    recorder.sample()
    recorder.observe(**OWN)
    with pytest.raises(RecordingError, match="sampled"):
        recorder.observe(**USER)


def background_left_out(recorder):
    recorder.sample()
    recorder.observe(**OWN)
    recorder.sample()
    with pytest.raises(RecordingError, match=r"background .*in step"):
        recorder.observe(**OWN | {"background": None})


def watch_left_out(recorder):
    recorder.sample()
    recorder.observe(**OWN)
    recorder.sample()
    with pytest.raises(RecordingError, match=r"watch .*got 0"):
        recorder.observe(**OWN | {"watch": None})


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    "mistake",
    [
        sampled_twice,
        observed_before_sampled,
        planted_after_sample,
        planted_after_own_coin,
        background_left_out,
        watch_left_out,
    ],
)
def test_steps_out_of_order_are_refused_and_nothing_is_recorded(mistake, steps):
    """The mistaken recorder ends like a twin that got the same good calls and none of the bad."""
    run = Run()
    recorder, twin = run.recorder(), run.recorder()
    for each in (recorder, twin):
        run.record(each, 0, steps)
    mistake(recorder)
    while twin.steps < recorder.steps:
        twin.sample()
        twin.observe(**OWN)
    if recorder.state_dict().keys() != twin.state_dict().keys():
        twin.sample()
    assert same(recorder.state_dict(), twin.state_dict())


def test_what_was_left_out_at_first_is_refused_later():
    run = Run(background=False, watch=False, own_coin=False)
    for name, message in (("background", "stay unknown"), ("watch", "every step or in none")):
        recorder = run.recorder()
        run.record(recorder, 0, 2)
        before = recorder.state_dict()
        with pytest.raises(RecordingError, match=message):
            recorder.observe(np.zeros(SIZE), planted=[], **{name: OWN[name]})
        assert same(recorder.state_dict(), before)


def test_a_sampler_of_ones_own_cannot_change_its_mind():
    run = Run(own_coin=False)
    recorder = run.recorder(sampling_rate=0.5)
    run.record(recorder, 0, 1)
    before = recorder.state_dict()
    with pytest.raises(RecordingError, match="planted="):
        recorder.sample()
    assert same(recorder.state_dict(), before)
    run.record(recorder, 1, 2)


def test_sampling_needs_a_rate():
    with pytest.raises(RecordingError, match=r"sampling_rate .*planted="):
        Recorder(CANARIES["one tensor"]).sample()


def test_there_is_no_transcript_of_nothing():
    with pytest.raises(RecordingError, match="observed step"):
        Run().recorder().transcript()


def test_an_interrupted_step_is_not_passed_off_as_a_whole_one(monkeypatch):
    run = Run()
    recorder, twin = run.recorder(), run.recorder()
    run.record(recorder, 0, 3)
    checkpoint = recorder.state_dict()
    with monkeypatch.context() as patch:
        # Rows of the step are kept before and after its sums are added up: stop between.
        appended, append = [], recorder_module.Rows.append

        def interrupted(rows, row):
            if len(appended) == 8:
                raise KeyboardInterrupt
            appended.append(row)
            append(rows, row)

        patch.setattr(recorder_module.Rows, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.record(recorder, 3, 4)
    for call in (
        recorder.sample,
        recorder.transcript,
        recorder.state_dict,
        lambda: recorder.observe(**OWN),
        lambda: recorder.save("never written"),
    ):
        with pytest.raises(RecordingError, match="was interrupted"):
            call()
    recorder.load_state_dict(checkpoint)
    run.record(recorder, 3, 6)
    run.record(twin, 0, 6)
    assert same_transcript(recorder.transcript(), twin.transcript())


def test_a_step_that_the_caller_counts_otherwise_is_refused(tmp_path):
    run = Run("one tensor")
    recorder = run.recorder()
    assert recorder.sample(step=0).size
    planted = recorder.state_dict()["drawn"]
    run.observe(recorder, 0, planted)
    run.record(recorder, 1, 3)
    recorder.save(tmp_path / "audit.npz")
    resumed = run.recorder()
    resumed.load(tmp_path / "audit.npz")
    for other in (2, 4):
        with pytest.raises(RecordingError, match=f"step=3.* got {other}"):
            resumed.sample(step=other)
    assert "drawn" not in resumed.state_dict(), "a refused step must draw nobody"
    planted = resumed.sample(step=3)
    size = run.canaries.size
    with pytest.raises(RecordingError, match="step=3"):
        resumed.observe(np.zeros(size), background=np.zeros(size), step=4)
    with pytest.raises(InvalidArgumentError, match="step"):
        resumed.observe(np.zeros(size), background=np.zeros(size), step=3.0)
    run.observe(resumed, 3, planted)
    assert resumed.steps == 4


def _resumed(model, audit, *, steps=60):
    """A private run that goes on from checkpoints of two steps, and ends by the model's count."""
    canaries = ag.DiracCanaries(present=200, absent=200, dimension=400, seed=0)
    noise = np.random.default_rng(1)

    def record(recorder, count):
        for _ in range(count):
            total = np.zeros(400)
            canaries.plant(total, recorder.sample(), clip_norm=1.0)
            released = total + noise.normal(size=400)
            recorder.observe(canaries.project(released), background=0)

    def made():
        return ag.Recorder(canaries, sampling_rate=0.1, noise_multiplier=1.0)

    first, second = made(), made()
    record(first, audit)
    second.load_state_dict(first.state_dict())
    record(second, steps - model)
    return second.transcript()


def test_a_resumed_run_says_so_where_its_steps_do_not_add_up(tmp_path):
    question = "The run was resumed after step 40: were model and audit checkpoints of the same"
    claim = ag.PrivacyClaim(epsilon=50.0, delta=1e-5, steps=60)
    for model, odd in ((20, True), (40, False), (50, True)):
        transcript = _resumed(model, audit=40)
        transcript.save(tmp_path / "run.npz")
        transcript = Transcript.load(tmp_path / "run.npz")
        assert transcript.facts.resumed == (40,)
        result = ag.audit(transcript, claim=claim)
        found = {item.check: item for item in result.findings}
        assert (question in found["step count"].remedy) == odd
        assert [item.check for item in result.findings if question in item.remedy] == (
            ["step count"] if odd else []
        )
        # Where nobody counted the model's steps, a reader has to.
        assert any(question in note for note in result.notes)
    assert ag.audit(_resumed(50, audit=40), delta=1e-5).notes


def test_every_resume_is_kept_and_counts_in_no_comparison():
    run = Run("one tensor")
    whole = run.recorder()
    run.record(whole, 0, 8)
    part = run.recorder()
    for cut in (3, 3, 6):
        run.record(part, part.steps, cut)
        state, part = part.state_dict(), run.recorder()
        part.load_state_dict(state)
    run.record(part, 6, 8)
    assert part.transcript().facts.resumed == (3, 3, 6)
    assert whole.transcript().facts.resumed == ()
    assert same_transcript(part.transcript(), whole.transcript())
    # Checkpoints from before it was kept.
    state = part.state_dict()
    del state["state"]["resumed"]
    older = run.recorder()
    older.load_state_dict(state)
    assert older.transcript().facts.resumed == (8,)


# --- observations that are no numbers ------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e200])
def test_odd_observations_are_kept_and_said(odd):
    run = Run("one tensor", watch=False, vary=False)
    recorder, twin = run.recorder(), run.recorder()
    run.record(recorder, 0, 3)
    run.record(twin, 0, 3)
    victim = int(np.flatnonzero(run.canaries.member)[0])
    for _ in range(2):
        for each in (recorder, twin):
            each.sample()
        each_value = np.zeros(40)
        twin.observe(each_value, background=np.zeros(40))
        each_value[victim] = odd
        recorder.observe(each_value, background=np.zeros(40))
    transcript, clean = recorder.transcript(), twin.transcript()
    assert clean.finite
    assert not transcript.finite
    assert not np.isfinite(transcript.canaries.square[victim])
    others = np.arange(40) != victim
    for name in ("total", "square", "planted_total", "planted_square", "lag", "planted"):
        ours, theirs = (getattr(item.canaries, name)[others] for item in (transcript, clean))
        np.testing.assert_array_equal(ours, theirs)
    if not np.isfinite(odd):
        with pytest.raises(ScoresError, match="finite"):
            transcript.scores()


def test_an_odd_planted_value_stays_out_of_the_sums_of_the_others():
    canaries = CANARIES["one tensor"]
    recorder = Recorder(canaries)
    planted = np.flatnonzero(canaries.member)[:1]
    released = np.ones(40)
    released[planted] = np.nan
    recorder.observe(released, planted=planted)
    rows = recorder.transcript().steps
    assert np.isnan(rows.planted_total[0, 0])
    assert rows.total[0, 0] == rows.square[0, 0] == 39.0


def test_an_odd_watched_value_is_said():
    canaries = CANARIES["one tensor"]
    recorder = Recorder(canaries)
    recorder.observe(np.zeros(40), planted=[], watch=np.full(canaries.watch.size, np.nan))
    assert not recorder.transcript().finite


# --- checkpoints ---------------------------------------------------------------------------------


@given(
    run=runs,
    at=st.integers(0, 70),
    between=st.booleans(),
    through_file=st.booleans(),
    stored=st.booleans(),
)
def test_a_run_taken_up_again_is_the_same_to_the_last_bit(run, at, between, through_file, stored):
    """Also across the growth of the rows at 64, and between sample() and observe()."""
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder, "checkpoint.npz"), Path(folder, "steps")
        options = {"store": store} if stored else {}
        whole = run.recorder()
        steps = run.record(whole, 0, 72)
        first = run.recorder(**options)
        run.record(first, 0, at)
        planted = run.sample(first, at) if between else None
        if through_file:
            first.save(path)
        state = first.state_dict()
        # The run goes on for a while before it dies.
        run.observe(first, at, run.sample(first, at) if planted is None else planted)
        run.record(first, at + 1, min(at + 3, 72))
        if at < 70:
            first.transcript()
        second = run.recorder(**options)
        if through_file:
            second.load(path)
            assert same(second.state_dict(), state)
        else:
            second.load_state_dict(state)
        assert second.steps == at
        if planted is not None:
            run.observe(second, at, planted)
        run.record(second, at + between, 72)
        assert same_transcript(second.transcript(), whole.transcript())
        if stored:
            values = np.array([step[0] for step in steps], dtype=np.float32)
            kept = StepStore(store)
            np.testing.assert_array_equal(kept.values, values)
            np.testing.assert_array_equal(kept.planted, [step[1] for step in steps])
            del kept


def test_a_state_is_a_copy():
    run = Run()
    recorder = run.recorder()
    run.record(recorder, 0, 3)
    state = recorder.state_dict()
    kept = {key: np.copy(value) for key, value in state.items() if key != "state"}
    run.record(recorder, 3, 6)
    assert same({key: state[key] for key in kept}, kept)
    other = run.recorder()
    other.load_state_dict(state)
    run.record(other, 3, 6)
    assert same({key: state[key] for key in kept}, kept)


def test_a_state_is_plain_json_and_arrays():
    run = Run()
    recorder = run.recorder()
    run.record(recorder, 0, 2)
    state = recorder.state_dict()
    assert json.loads(json.dumps(state["state"])) == state["state"]
    assert all(isinstance(value, np.ndarray) for key, value in state.items() if key != "state")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canaries": DiracCanaries(count=41, tensors=[50, 3, 50, 2000, 9, 2], seed=4)}, "finger"),
        ({"canaries": DiracCanaries(present=12, absent=29, dimension=2114, seed=3)}, "fingerp"),
        ({"canaries": CANARIES["blocks"]}, "fingerprint"),
        ({"sampling_rate": 0.31}, "sampling_rate is 0.3 where this run has 0.31"),
        ({"sampling_rate": None}, "sampling_rate is 0.3 where this run has None"),
        ({"clip_norm": 2.1}, "clip_norm is 2.0 where this run has 2.1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change, message, tmp_path):
    run = Run()
    recorder, other = run.recorder(), run.recorder(**change)
    run.record(recorder, 0, 3)
    recorder.save(tmp_path / "checkpoint.npz")
    before = other.state_dict()
    with pytest.raises(RecordingError, match=f"{message}"):
        other.load(tmp_path / "checkpoint.npz")
    assert same(other.state_dict(), before)


def written(tmp_path, steps=3, *, drawn=True, **options):
    run = Run()
    recorder = run.recorder(**options)
    run.record(recorder, 0, steps)
    if drawn:
        recorder.sample()
    path = tmp_path / "checkpoint.npz"
    recorder.save(path)
    return path


def refused(path, message, error=FileFormatError, **options):
    """Loading raises, and the recorder stays as it was."""
    run = Run()
    recorder = run.recorder(**options)
    run.record(recorder, 0, 2)
    before = recorder.state_dict()
    with pytest.raises(error, match=message):
        recorder.load(path)
    assert same(recorder.state_dict(), before)


ARRAYS = [
    "sums.planted",
    "sums.lag",
    "rows.clip_norm",
    "rows.square",
    "rows.kept_values",
    "rows.watch_values",
    "previous",
]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_checkpoint_with_a_part_missing_is_refused(name, tmp_path):
    path = written(tmp_path)
    arrays, content = archive.read_arrays(path, "askgauss-recorder", 3)
    del arrays[name]
    archive.write_arrays(path, "askgauss-recorder", 3, arrays, {"state": content["state"]})
    refused(path, f"{name} of the checkpoint .* got None.*older checkpoint")


@pytest.mark.parametrize("name", [*ARRAYS, "drawn"])
@pytest.mark.parametrize(
    "change",
    [
        lambda array: array[..., None],
        lambda array: array[0],
        lambda array: array.astype(np.float32),
        lambda array: array[:-1],
        lambda array: np.concatenate([array, array]),
    ],
)
def test_a_checkpoint_with_a_part_of_another_shape_is_refused(name, change, tmp_path):
    path = written(tmp_path)
    arrays, content = archive.read_arrays(path, "askgauss-recorder", 3)
    arrays[name] = change(arrays[name])
    archive.write_arrays(path, "askgauss-recorder", 3, arrays, {"state": content["state"]})
    run = Run()
    recorder = run.recorder()
    if name == "drawn" and arrays[name].dtype == np.int64 and arrays[name].ndim == 1:
        if np.unique(arrays[name]).size < arrays[name].size:
            with pytest.raises(FileFormatError, match="each once"):
                recorder.load(path)
        else:
            # Fewer coins are indices all the same.
            recorder.load(path)
        return
    with pytest.raises(FileFormatError, match="checkpoint"):
        recorder.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generator": {}}, "state of a generator"),
        ({"generator": {"bit_generator": "MT19937"}}, "state of a generator"),
        ({"generator": 5}, r"state.generator .*got 5"),
        ({"watched": 5}, f"watched to be 0 or {WATCH}, got 5"),
        ({"watched": 0}, "rows.watch_values"),
        ({"own_draws": "yes"}, "state.own_draws"),
        ({"background": "dark"}, "state.background"),
        ({"settings": 7}, "state.settings"),
        ({"step": -1}, "state.step"),
    ],
)
def test_a_checkpoint_with_odd_plain_values_is_refused(change, message, tmp_path):
    path = written(tmp_path)
    arrays, content = archive.read_arrays(path, "askgauss-recorder", 3)
    archive.write_arrays(path, "askgauss-recorder", 3, arrays, {"state": content["state"] | change})
    refused(path, message)


def test_a_checkpoint_that_drew_an_absent_canary_is_refused(tmp_path):
    path = written(tmp_path)
    arrays, content = archive.read_arrays(path, "askgauss-recorder", 3)
    arrays["drawn"] = ABSENT[:1]
    archive.write_arrays(path, "askgauss-recorder", 3, arrays, {"state": content["state"]})
    refused(path, "drawn of the checkpoint to name present")


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    path = written(tmp_path)
    arrays, content = archive.read_arrays(path, "askgauss-recorder", 3)
    odd = tmp_path / "odd.npz"

    archive.write_arrays(odd, "askgauss-recorder", 4, arrays, {"state": content["state"]})
    refused(odd, r"schema <= 3, got 4.*newer askgauss.*Update")
    archive.write_arrays(odd, "askgauss-scores", 1, arrays, {"state": content["state"]})
    refused(odd, "kind 'askgauss-recorder', got 'askgauss-scores'")
    archive.write_arrays(odd, "askgauss-recorder", 3, arrays, {})
    refused(odd, "state to be an object")
    np.savez(odd, **arrays)
    refused(odd, "no header")
    odd.write_bytes(b"not a checkpoint at all")
    refused(odd, "truncated, corrupt or not an npz file")
    odd.write_bytes(b"")
    refused(odd, "truncated, corrupt or not an npz file")
    refused(tmp_path / "absent.npz", "absent.npz", FileNotFoundError)
    with pytest.raises(FileFormatError, match="state"):
        Run().recorder().load_state_dict({})


def test_a_checkpoint_cut_short_anywhere_is_refused(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 1, 60).astype(int):
        path.write_bytes(content[:length])
        refused(path, "truncated, corrupt or not an npz file")


def test_a_write_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """Half of the new file is written when the disk is full, or the process is interrupted."""
    path = written(tmp_path)
    before = path.read_bytes()
    write = archive._write

    def half(stream, *arguments):
        write(stream, *arguments)
        stream.truncate(stream.tell() // 2)
        raise failure

    run = Run()
    recorder = run.recorder()
    run.record(recorder, 0, 9)
    monkeypatch.setattr(archive, "_write", half)
    for failure in (OSError("No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(failure)):
            recorder.save(path)
        assert path.read_bytes() == before
        left = {item.name for item in tmp_path.iterdir()}
        assert left <= {"checkpoint.npz", "checkpoint.npz.lock"}
    monkeypatch.undo()
    recorder.save(path)
    again = run.recorder()
    again.load(path)
    assert again.steps == 9


# --- the store -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [1, 500, 1 << 20])
@pytest.mark.parametrize("run", RUNS)
def test_the_store_holds_every_step(run, pending, tmp_path, monkeypatch):
    monkeypatch.setattr("askgauss.recording.step_store._PENDING", pending)
    recorder = run.recorder(store=tmp_path / "steps", noise_multiplier=1.25)
    steps = run.record(recorder, 0, 9)
    transcript = recorder.transcript()
    store = StepStore(tmp_path / "steps")
    assert store.number_of_steps == 9
    assert store.values.dtype == np.float32
    assert not store.values.flags.writeable
    assert isinstance(store.values, np.memmap)
    np.testing.assert_array_equal(
        store.values, np.array([step[0] for step in steps], dtype=np.float32)
    )
    np.testing.assert_array_equal(store.planted, [step[1] for step in steps])
    np.testing.assert_array_equal(store.member, run.canaries.member)
    assert store.facts == transcript.facts
    assert store.fingerprint == run.canaries.fingerprint()
    assert repr(store).endswith("steps', steps=9)")
    # The transcript does not notice that it is stored.
    twin = run.recorder(noise_multiplier=1.25)
    run.record(twin, 0, 9)
    assert same_transcript(transcript, twin.transcript())


def test_the_store_keeps_odd_values(tmp_path):
    canaries = CANARIES["one tensor"]
    recorder = Recorder(canaries, store=tmp_path / "steps")
    odd = np.zeros(40)
    odd[:4] = np.nan, np.inf, -np.inf, 1e300
    recorder.observe(odd, planted=[])
    recorder.transcript()
    np.testing.assert_array_equal(
        StepStore(tmp_path / "steps").values[0, :5], [np.nan, np.inf, -np.inf, np.inf, 0]
    )


def test_a_new_run_does_not_write_over_an_old_store(tmp_path):
    path = tmp_path / "steps"
    path.write_bytes(b"my thesis")
    run = Run()
    recorder = run.recorder(store=path)
    recorder.sample()
    before = recorder.state_dict()
    for _ in range(2):
        with pytest.raises(RecordingError, match="not to exist"):
            recorder.observe(**OWN)
        assert same(recorder.state_dict(), before)
    assert path.read_bytes() == b"my thesis"
    path.unlink()
    recorder.observe(**OWN)
    assert recorder.transcript().number_of_steps == 1


def test_a_store_that_cannot_be_written_stops_the_step_and_loses_nothing(tmp_path, monkeypatch):
    run, path = Run(), tmp_path / "steps"
    monkeypatch.setattr("askgauss.recording.step_store._PENDING", 500)
    recorder, twin = run.recorder(store=path), run.recorder()
    steps = run.record(twin, 0, 12)
    failures, planted = 0, None
    opened = Path.open

    def full(self, mode="r", **options):
        """A disk that takes some of the bytes before it is full."""
        if mode != "r+b":
            return opened(self, mode, **options)
        with opened(self, "ab") as stream:
            stream.write(b"torn" * 1000)
        raise OSError("No space left on device")

    step = 0
    while step < 12:
        planted = recorder.sample() if planted is None else planted
        with monkeypatch.context() as patch:
            if failures <= step < 12:
                patch.setattr(Path, "open", full)
            try:
                run.observe(recorder, step, planted)
            except OSError:
                failures += 1
                assert recorder.steps == step
                continue
        planted, step = None, step + 1
    assert failures >= 3
    assert same_transcript(recorder.transcript(), twin.transcript())
    store = StepStore(path)
    np.testing.assert_array_equal(store.planted, [each[1] for each in steps])


def test_a_store_that_something_else_cut_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("askgauss.recording.step_store._PENDING", 1)
    run, path = Run(), tmp_path / "steps"
    recorder = run.recorder(store=path)
    run.record(recorder, 0, 3)
    os.truncate(path, path.stat().st_size - 1)
    recorder.sample()
    with pytest.raises(RecordingError, match="cut"):
        recorder.observe(**OWN)
    assert recorder.steps == 3


def test_a_checkpoint_and_a_store_of_different_runs_are_refused(tmp_path):
    """Of the same canaries, so that only the identity of the runs tells them apart."""
    run, ours, theirs = Run(), tmp_path / "ours", tmp_path / "theirs"
    checkpoint = written(tmp_path, 3, store=ours)
    other = run.recorder(store=theirs)
    run.record(other, 0, 5)
    other.transcript()
    before = theirs.read_bytes()
    refused_by = run.recorder(store=theirs)
    with pytest.raises(RecordingError, match=r"got run [0-9a-f]{32}"):
        refused_by.load(checkpoint)
    assert theirs.read_bytes() == before


def test_a_run_keeps_its_identity_through_checkpoints(tmp_path):
    run = Run()
    recorder, again = run.recorder(), run.recorder()
    assert len(recorder.run) == 32
    assert recorder.run != again.run
    run.record(recorder, 0, 2)
    recorder.save(tmp_path / "checkpoint.npz")
    again.load(tmp_path / "checkpoint.npz")
    assert again.run == recorder.run == again.transcript().facts.run
    assert again.transcript().scores().metadata.run == recorder.run


def test_two_live_copies_of_a_run_do_not_mix_their_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("askgauss.recording.step_store._PENDING", 1)
    run, path = Run(), tmp_path / "steps"
    checkpoint = written(tmp_path, 3, store=path, drawn=False)
    one, other = run.recorder(store=path), run.recorder(store=path)
    one.load(checkpoint)
    other.load(checkpoint)
    run.record(one, 3, 5)
    whole = path.read_bytes()
    for _ in range(2):  # the second try finds no excuse in the first
        with pytest.raises(RecordingError, match="another copy"):
            run.record(other, 3, 4) if other._drawn is None else other.observe(**OWN)
    assert path.read_bytes() == whole
    assert other.steps == 3
    run.record(one, 5, 6)
    one.transcript()
    assert StepStore(path).number_of_steps == 6


def test_a_checkpoint_whose_store_went_another_way_is_refused(tmp_path):
    """As many steps, of the same run, but others: a copy went on from an earlier checkpoint."""
    run, path = Run(), tmp_path / "steps"
    early = written(tmp_path, 2, store=path, drawn=False)
    one, other = run.recorder(store=path), run.recorder(store=path)
    one.load(early)
    run.record(one, 2, 4)
    late = tmp_path / "late.npz"
    one.save(late)
    other.load(early)
    run.record(other, 10, 12)
    other.transcript()
    with pytest.raises(RecordingError, match="another copy"):
        run.recorder(store=path).load(late)


def test_very_long_runs_keep_fewer_canaries_and_the_same_ones_after_a_restart(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("askgauss.recording.recorder._KEPT_VALUES", 300)
    run = Run()
    recorder = run.recorder()
    steps = run.record(recorder, 0, 6)
    assert recorder.kept.size == 41
    run.record(recorder, 6, 8)
    recorder.save(tmp_path / "checkpoint.npz")
    steps += run.record(recorder, 8, 40)[0:0]
    transcript = recorder.transcript()
    assert transcript.kept_values.size <= 300
    assert transcript.kept.size == 6
    assert transcript.kept_values.shape == (40, 6)
    again = run.recorder()
    again.load(tmp_path / "checkpoint.npz")
    assert again.kept.size == 21
    run.record(again, 8, 40)
    assert same_transcript(again.transcript(), transcript)
    check_consistency(transcript)


def test_a_killed_run_leaves_a_torn_row_that_only_a_checkpoint_explains(tmp_path):
    run, path = Run(), tmp_path / "steps"
    checkpoint = written(tmp_path, 3, store=path)
    whole = path.read_bytes()
    values = np.array(StepStore(path).values)
    path.write_bytes(whole + whole[-57:])
    with pytest.raises(FileFormatError, match=r"89 bytes .*steps="):
        StepStore(path)
    np.testing.assert_array_equal(StepStore(path, steps=3).values, values)
    np.testing.assert_array_equal(StepStore(path, steps=2).values, values[:2])
    with pytest.raises(FileFormatError, match=r"4 steps .*got 3"):
        StepStore(path, steps=4)
    recorder = run.recorder(store=path)
    recorder.load(checkpoint)
    assert path.read_bytes() == whole


def test_a_store_that_lost_steps_of_its_checkpoint_is_refused(tmp_path):
    path = tmp_path / "steps"
    checkpoint = written(tmp_path, 3, store=path)
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:-33]), path.unlink):
        damage()
        recorder = Run().recorder(store=path)
        before = recorder.state_dict()
        with pytest.raises(RecordingError, match="3 steps of the checkpoint"):
            recorder.load(checkpoint)
        assert same(recorder.state_dict(), before)


def test_a_store_of_another_run_is_neither_cut_nor_removed(tmp_path):
    path, foreign = tmp_path / "steps", tmp_path / "thesis"
    other = Recorder(CANARIES["one tensor"], store=path)
    other.observe(np.zeros(40), planted=[])
    other.transcript()
    foreign.write_bytes(b"my thesis")
    for steps in (0, 3):
        run = Run()
        recorder = run.recorder(store=tmp_path / f"own {steps}")
        run.record(recorder, 0, steps)
        state = recorder.state_dict()
        for mistaken, error, message in (
            (path, RecordingError, "to be of this run"),
            (foreign, FileFormatError, "thesis"),
        ):
            before = mistaken.read_bytes()
            with pytest.raises(error, match=message):
                run.recorder(store=mistaken).load_state_dict(state)
            assert mistaken.read_bytes() == before


def test_a_run_with_a_store_goes_on_with_one_and_a_run_without_goes_on_without(tmp_path):
    path = tmp_path / "steps"
    checkpoint = written(tmp_path, 3, store=path)
    with pytest.raises(RecordingError, match="began"):
        Run().recorder().load(checkpoint)
    plain = Run().recorder()
    Run().record(plain, 0, 1)
    with pytest.raises(RecordingError, match="began"):
        Run().recorder(store=path).load_state_dict(plain.state_dict())
    assert StepStore(path).number_of_steps == 3


# --- real processes, really killed ---------------------------------------------------------------

SCRIPT = """
import sys, pathlib, numpy as np
from askgauss import DiracCanaries, Recorder

folder, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
canaries = DiracCanaries(count=300, tensors=[1000, 500, 1000], seed=5)
recorder = Recorder(canaries, sampling_rate=0.2, clip_norm=0.5, store=folder / "steps")
checkpoint, drawn = folder / "checkpoint.npz", folder / "drawn.npy"
if checkpoint.exists():
    recorder.load(checkpoint)
else:
    recorder.save(checkpoint)
while recorder.steps < last:
    noise = np.random.default_rng([recorder.steps, 9])
    vector = noise.normal(size=canaries.total_dimension)
    if "drawn" in recorder.state_dict():
        planted = recorder.state_dict()["drawn"]
    else:
        planted = recorder.sample()
        recorder.save(checkpoint)
    canaries.plant(vector, planted, 0.5)
    recorder.observe(canaries.project(vector), watch=vector[canaries.watch])
    recorder.save(checkpoint)
    print(recorder.steps, flush=True)
    sys.stdin.readline()
recorder.transcript().save(folder / "transcript.npz")
"""


def test_killed_processes_resume_to_the_same_transcript(tmp_path):
    """Killed three times at a random moment within a step; a line on stdin lets one step pass."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for folder in (whole, killed):
        folder.mkdir()
    generator = np.random.default_rng(6)
    for _ in range(3):
        command = [sys.executable, "-c", SCRIPT, str(killed), "40"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as process:
            # Eleven steps may pass, so that it cannot be done before it is killed.
            process.stdin.write(b"\n" * 11)
            process.stdin.flush()
            for _ in range(int(generator.integers(1, 10))):
                assert process.stdout.readline()
            process.kill()
        assert process.returncode != 0
        assert not (killed / "transcript.npz").exists()
    for folder in (whole, killed):
        command = [sys.executable, "-c", SCRIPT, str(folder), "40"]
        subprocess.run(command, input=b"\n" * 40, env=environment, check=True, capture_output=True)
    one, other = (Transcript.load(folder / "transcript.npz") for folder in (whole, killed))
    assert one.number_of_steps == 40
    assert same_transcript(one, other)
    assert one.facts.run != other.facts.run
    stores = [StepStore(folder / "steps") for folder in (whole, killed)]
    assert [store.facts.run for store in stores] == [one.facts.run, other.facts.run]
    np.testing.assert_array_equal(stores[0].values, stores[1].values)
    np.testing.assert_array_equal(stores[0].planted, stores[1].planted)


def test_a_checkpoint_is_a_plain_zip_without_pickles(tmp_path):
    path = written(tmp_path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            assert b"'descr': '|O'" not in archive.read(name)[:128]


# --- parts that came later ---------------------------------------------------------------------


def test_sizes_of_batches_and_records_are_kept():
    run = Run(vary=False)
    recorder = run.recorder(records=500)
    for size in (31, 0, 28):
        planted = recorder.sample()
        values = np.zeros(run.canaries.size)
        values[planted] = 2.0
        recorder.observe(values, background=0.0, batch_size=size)
    transcript = recorder.transcript()
    np.testing.assert_array_equal(transcript.steps.batch_size, [31, 0, 28])
    assert transcript.facts.records == 500
    with pytest.raises(InvalidArgumentError, match="records"):
        run.recorder(records=0)
    recorder.sample()
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        recorder.observe(values, batch_size=-1)


def _recorded(release, steps=40, **settings):
    """A transcript of 120 canaries and what `release` makes of the step and who was planted."""
    canaries = DiracCanaries(present=60, absent=60, dimension=1000, seed=0)
    recorder = Recorder(canaries, sampling_rate=0.2, noise_multiplier=1.0, **settings)
    for step in range(steps):
        recorder.observe(release(step, recorder.sample()), background=0)
    return recorder.transcript()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("constant", [1.0, -1e-3, 1e100, 1e-100])
def test_what_is_always_the_same_is_no_noise(constant):
    transcript = _recorded(lambda step, planted: np.full(120, constant))
    result = audit(transcript, claim=PrivacyClaim(epsilon=8, delta=1e-5))
    assert result.verdict.value in ("VIOLATION", "INVALID")
    assert any(finding.status is Status.FAIL for finding in result.findings)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [1e25, 1e30, 1e139, 1e150, 1e170, 1e300, np.inf, np.nan])
def test_a_single_value_of_any_size_has_a_verdict(odd):
    noise = np.random.default_rng(1)

    def release(step, planted):
        values = noise.normal(size=120)
        values[planted] += 1.0
        values[3] = odd if step == 7 else values[3]
        return values

    result = audit(_recorded(release), claim=PrivacyClaim(epsilon=8, delta=1e-5))
    assert result.verdict.value in ("VIOLATION", "INVALID")
    assert any(finding.status is Status.FAIL for finding in result.findings)


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier"])
@pytest.mark.parametrize("value", [1e160, 1e300, 1e-200])
def test_sizes_whose_squares_are_no_numbers_are_refused(name, value):
    canaries = CANARIES["one tensor"]
    with pytest.raises(InvalidArgumentError, match=rf"{name} .*in \[1e-140, 1e\+140\], got"):
        Recorder(canaries, sampling_rate=0.2, **{name: value})
    recorder = Recorder(canaries, sampling_rate=0.2)
    recorder.sample()
    with pytest.raises(InvalidArgumentError, match=rf"{name} .*in \[1e-140, 1e\+140\], got"):
        recorder.observe(np.zeros(40), background=0, **{name: value})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", [-3.5, 3.5, -7, 7])
def test_a_schedule_is_as_wide_as_its_squares_are_numbers(exponent):
    recorder = Recorder(CANARIES["one tensor"], sampling_rate=0.2)
    noise = np.random.default_rng(0)

    def run():
        for step in range(40):
            values = noise.normal(0.0, 10.0 ** (exponent * step), 40)
            values[recorder.sample()] += 1.0
            recorder.observe(values, background=0, noise_multiplier=10.0 ** (exponent * step))

    if abs(exponent) > 4:
        with pytest.raises(InvalidArgumentError, match="noise_multiplier"):
            run()
    else:
        run()
        assert audit(recorder.transcript(), claim=PrivacyClaim(epsilon=8, delta=1e-5)).verdict


def test_noise_is_not_beyond_measure_by_that_of_the_first_step():
    recorder = Recorder(CANARIES["one tensor"], sampling_rate=0.2)
    recorder.sample()
    recorder.observe(np.zeros(40), background=0, noise_multiplier=1e-100)
    recorder.sample()
    with pytest.raises(InvalidArgumentError, match="1e-100"):
        recorder.observe(np.zeros(40), background=0, noise_multiplier=1e100)
