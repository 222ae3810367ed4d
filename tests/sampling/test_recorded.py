"""Whole audits of runs whose batches are drawn by any scheme: recorder to verdict."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
)
from askgauss.results import Consequence, Finding, Status, Verdict
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    Scheme,
    Shuffled,
    TruncatedPoisson,
)

STEPS, RECORDS, NOISE, DELTA = 400, 1000, 1.0, 1e-5
SCHEMES = (
    Poisson(rate=0.05),
    FixedSize(batch=50, records=RECORDS),
    Shuffled(batches=20),
    Shuffled(batches=20, reshuffled=False),
    BallsInBins(bins=20),
    CyclicPoisson(rate=0.2, cycle=4),
    CyclicPoisson(rate=0.2, cycle=4, groups="secret"),
    TruncatedPoisson(rate=0.05, cap=60, records=RECORDS),
    MinSeparation(separation=4, rate=0.05),
    EveryStep(),
)
CANARIES = ag.DiracCanaries(present=200, absent=200, dimension=1000, seed=5)
PRESENT = np.flatnonzero(CANARIES.member)


def recorded(
    scheme: Scheme,
    *,
    actual: Scheme | None = None,
    own_coin: bool = True,
    batch: bool = True,
    steps: int = STEPS,
    seed: int = 0,
    recorder: ag.Recorder | None = None,
) -> ag.Recorder:
    """A run whose first records are the canaries, drawn by ``actual`` and declared otherwise."""
    if recorder is None:
        recorder = ag.Recorder(
            CANARIES, sampling=scheme, noise_multiplier=NOISE, records=RECORDS if batch else None
        )
    rng, background = np.random.default_rng(seed), 0 if scheme.known_background else None
    draws = (actual or scheme).draw(np.random.default_rng(seed + 1), RECORDS, STEPS)
    for step, drawn in enumerate(draws):
        values = rng.normal(0.0, NOISE, CANARIES.size)
        if recorder.steps > step:
            continue
        if recorder.steps == steps:
            break
        planted = recorder.sample() if own_coin else PRESENT[drawn[drawn < PRESENT.size]]
        values[planted] += 1.0
        recorder.observe(
            values,
            background=background,
            planted=None if own_coin else planted,
            batch=drawn if batch else None,
        )
    return recorder


def finding(result: ag.AuditResult, check: str) -> Finding:
    return next(item for item in result.findings if item.check == check)


def true_epsilon(scheme: Scheme) -> float:
    return scheme.epsilon_lower(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)


class TestEveryScheme:
    @pytest.mark.parametrize("own_coin", [True, False], ids=["own coin", "user's sampler"])
    @pytest.mark.parametrize("scheme", SCHEMES, ids=str)
    def test_a_run_gets_a_bound_and_a_verdict(self, scheme: Scheme, own_coin: bool) -> None:
        # Bounds are too high in 5 % of audits: the seed is one where none is, and each must be
        # most of the truth. Checks of a clean run fail in 1 of 2,000.
        truth = true_epsilon(scheme)
        transcript = recorded(scheme, own_coin=own_coin).transcript()
        claim = ag.PrivacyClaim(
            epsilon=1.02 * truth, delta=DELTA, noise_multiplier=NOISE, steps=STEPS, sampling=scheme
        )
        result = ag.audit(transcript, claim=claim)
        assert 0.8 * truth < result.epsilon_lower < 1.01 * truth
        assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE), result.reason
        assert not [item for item in result.findings if item.status is Status.FAIL]
        assert finding(result, "accounted sampling").status is Status.PASS
        assert finding(result, "sampling scheme").p_value is not None

    def test_a_shuffled_run_that_leaks_more_than_it_claims_is_a_violation(self) -> None:
        scheme = Shuffled(batches=20)
        claim = ag.PrivacyClaim(epsilon=4.0, delta=DELTA, sampling=scheme)
        result = ag.audit(recorded(scheme).transcript(), claim=claim)
        assert result.verdict is Verdict.VIOLATION
        assert "leaks at least epsilon" in result.reason

    def test_a_schedule_is_bounded_by_its_largest_noise(self) -> None:
        scheme, rng = Shuffled(batches=5), np.random.default_rng(2)
        recorder = ag.Recorder(CANARIES, sampling=scheme)
        for step in range(50):
            noise, values = 1.0 + step / 50, np.zeros(CANARIES.size)
            values[recorder.sample()] = 1.0
            values += rng.normal(0, noise, values.size)
            recorder.observe(values, noise_multiplier=noise)
        bound = ag.audit(recorder.transcript(), delta=DELTA).epsilon_lower
        run = {"steps": 50, "delta": DELTA}
        assert 0.7 < bound / scheme.epsilon_lower(noise_multiplier=1.98, **run) < 1.05


class TestAnotherSchemeThanAccounted:
    def test_cyclic_accounted_as_poisson_is_a_violation_that_names_both(self) -> None:
        # The accountant's 6.70 is claimed; the run has 14.5.
        used, accounted = CyclicPoisson(rate=0.2, cycle=4), Poisson(rate=0.05)
        claimed = accounted.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)
        claim = ag.PrivacyClaim(epsilon=claimed, delta=DELTA, sampling=accounted)
        for own_coin in (True, False):
            result = ag.audit(recorded(used, own_coin=own_coin).transcript(), claim=claim)
            assert result.verdict is Verdict.VIOLATION
            assert result.epsilon_lower > 11.0
            found = finding(result, "accounted sampling")
            assert found.consequence is Consequence.BREACH
            assert str(used) in found.summary
            assert str(accounted) in found.summary
            assert "14.4" in found.summary
            assert "6.6" in found.summary

    def test_a_scheme_that_leaks_less_is_told_and_not_condemned(self) -> None:
        claim = ag.PrivacyClaim(epsilon=7.0, delta=DELTA, sampling_rate=0.05)
        result = ag.audit(recorded(Shuffled(batches=20)).transcript(), claim=claim)
        found = finding(result, "accounted sampling")
        assert found.status is Status.WARN
        assert result.verdict is not Verdict.VIOLATION

    @pytest.mark.parametrize("own_coin", [True, False], ids=["own coin", "user's sampler"])
    @pytest.mark.parametrize(
        "actual",
        [
            CyclicPoisson(rate=0.2, cycle=4),
            BallsInBins(bins=20),
            FixedSize(batch=50, records=RECORDS),
            Shuffled(batches=20),
        ],
        ids=str,
    )
    def test_batches_of_another_scheme_than_declared_are_found(
        self, actual: Scheme, own_coin: bool
    ) -> None:
        recorder = recorded(Poisson(rate=0.05), actual=actual, own_coin=own_coin)
        claim = ag.PrivacyClaim(epsilon=6.7, delta=DELTA)
        result = ag.audit(recorder.transcript(), claim=claim)
        assert result.verdict in (Verdict.INVALID, Verdict.VIOLATION)
        assert any(
            item.status is Status.FAIL and item.check in ("sampling in time", "batch sizes")
            for item in result.findings
        )

    def test_canaries_of_the_users_sampler_show_it_without_batches(self) -> None:
        recorder = recorded(
            Shuffled(batches=20), actual=Poisson(rate=0.05), own_coin=False, batch=False
        )
        result = ag.audit(recorder.transcript(), claim=ag.PrivacyClaim(epsilon=9, delta=DELTA))
        assert result.verdict is Verdict.INVALID
        assert finding(result, "sampling scheme").status is Status.FAIL


class TestFiles:
    @pytest.mark.parametrize("scheme", SCHEMES, ids=str)
    @pytest.mark.parametrize("own_coin", [True, False], ids=["own coin", "user's sampler"])
    def test_a_resumed_run_has_the_transcript_of_an_unbroken_one(
        self, tmp_path, scheme: Scheme, own_coin: bool
    ) -> None:
        whole = recorded(scheme, own_coin=own_coin, steps=47).transcript()
        half = recorded(scheme, own_coin=own_coin, steps=23)
        half.save(tmp_path / "half.npz")
        again = ag.Recorder(CANARIES, sampling=scheme, noise_multiplier=NOISE, records=RECORDS)
        again.load(tmp_path / "half.npz")
        resumed = recorded(scheme, own_coin=own_coin, steps=47, recorder=again).transcript()
        assert resumed.facts == whole.facts
        assert all(
            np.array_equal(array, whole.arrays()[name], equal_nan=True)
            for name, array in resumed.arrays().items()
        )
        resumed.save(tmp_path / "run.npz")
        loaded = ag.Transcript.load(tmp_path / "run.npz")
        assert loaded.facts == whole.facts
        assert loaded.facts.scheme == scheme

    @pytest.mark.parametrize("scheme", SCHEMES, ids=str)
    def test_a_run_saved_between_sample_and_observe_goes_on_drawing(self, scheme: Scheme) -> None:
        whole, first, second = (ag.Recorder(CANARIES, sampling=scheme) for _ in range(3))
        released, draws = np.zeros(CANARIES.size), []
        for _ in range(6):
            draws.append(whole.sample().tolist())
            whole.observe(released)
        for _ in range(2):
            first.sample()
            first.observe(released)
        assert first.sample().tolist() == draws[2]
        second.load_state_dict(first.state_dict())
        for step in range(3, 6):
            second.observe(released)
            assert second.sample().tolist() == draws[step]
        assert whole.transcript().facts.poisson is isinstance(scheme, Poisson)

    def test_a_claim_and_a_result_keep_their_scheme(self) -> None:
        scheme = Shuffled(batches=20)
        claim = ag.PrivacyClaim(epsilon=8.0, delta=DELTA, sampling=scheme)
        result = ag.audit(recorded(scheme, steps=60).transcript(), claim=claim)
        again = ag.AuditResult.from_json(result.to_json())
        assert again.claim == claim
        assert again.evidence.scheme == scheme
        assert again.epsilon_lower == result.epsilon_lower

    def test_a_checkpoint_of_another_scheme_is_refused(self, tmp_path) -> None:
        recorded(BallsInBins(bins=20), steps=5).save(tmp_path / "a.npz")
        other = ag.Recorder(CANARIES, sampling=Shuffled(batches=20), records=RECORDS)
        with pytest.raises(RecordingError, match="scheme"):
            other.load(tmp_path / "a.npz")

    def test_sums_of_other_batches_are_refused(self) -> None:
        scheme = Shuffled(batches=20)
        state = recorded(scheme, steps=5).state_dict()
        for name, wrong in (("batches.count", np.zeros(3, np.int64)), ("batches.head", None)):
            again = ag.Recorder(CANARIES, sampling=scheme, records=RECORDS)
            with pytest.raises(FileFormatError):
                again.load_state_dict(state | {name: wrong})


class TestBadInput:
    def test_two_ways_to_say_it_must_agree(self) -> None:
        with pytest.raises(InvalidArgumentError, match="sampling_rate"):
            ag.Recorder(CANARIES, sampling=Shuffled(batches=20), sampling_rate=0.05)
        with pytest.raises(InvalidArgumentError, match="sampling_rate"):
            ag.PrivacyClaim(epsilon=1, delta=DELTA, sampling=EveryStep(), sampling_rate=0.5)
        with pytest.raises(InvalidArgumentError, match="poisson"):
            ag.Recorder(CANARIES, sampling=Shuffled(batches=20), poisson=True)
        with pytest.raises(InvalidArgumentError, match="sampling scheme"):
            ag.Recorder(CANARIES, sampling=0.05)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="records"):
            ag.Recorder(CANARIES, sampling=FixedSize(batch=50, records=1000), records=900)

    def test_a_known_background_is_refused_where_batches_give_the_canary_away(self) -> None:
        for scheme in SCHEMES:
            recorder = ag.Recorder(CANARIES, sampling=scheme)
            recorder.sample()
            if scheme.known_background:
                recorder.observe(np.zeros(CANARIES.size), background=0)
                continue
            with pytest.raises(RecordingError, match="background"):
                recorder.observe(np.zeros(CANARIES.size), background=0)

    @pytest.mark.parametrize(
        ("scheme", "batch"),
        [
            (FixedSize(batch=50, records=RECORDS), range(49)),
            (TruncatedPoisson(rate=0.05, cap=60, records=RECORDS), range(61)),
            (EveryStep(), range(999)),
        ],
        ids=str,
    )
    def test_a_first_batch_that_the_scheme_never_draws_is_refused(
        self, scheme: Scheme, batch: range
    ) -> None:
        recorder = ag.Recorder(CANARIES, sampling=scheme, records=RECORDS)
        recorder.sample()
        with pytest.raises(RecordingError, match="scheme"):
            recorder.observe(np.zeros(CANARIES.size), batch=list(batch))
        assert recorder.steps == 0

    def test_batches_that_cannot_be_are_refused_and_nothing_is_recorded(self) -> None:
        recorder = ag.Recorder(CANARIES, sampling_rate=0.05, records=RECORDS)
        recorder.sample()
        values = np.zeros(CANARIES.size)
        for batch, size in (([RECORDS], None), ([-1], None), ([[1]], None), ([0.5], None)):
            with pytest.raises(InvalidArgumentError, match="batch"):
                recorder.observe(values, batch=batch, batch_size=size)
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            recorder.observe(values, batch=[1, 2], batch_size=3)
        recorder.observe(values, batch=[1, 2])
        recorder.sample()
        with pytest.raises(RecordingError, match="every step"):
            recorder.observe(values)
        assert recorder.steps == 1

    def test_what_a_batch_is_compared_with_must_be_said(self) -> None:
        for options, missing in (({"sampling_rate": 0.05}, "records="), ({}, "sampling=")):
            recorder = ag.Recorder(CANARIES, **options)  # type: ignore[arg-type]
            with pytest.raises(RecordingError, match=missing):
                recorder.observe(np.zeros(CANARIES.size), planted=[], batch=[1])
