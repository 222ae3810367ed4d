"""Runs of lower-triangular strategies, from the noise to the verdict."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.special import chdtr
from scipy.stats import kstest

import askgauss as ag
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.mechanisms.strategies import BandedStrategy, BufferedToeplitz
from askgauss.mechanisms.strategy import Strategy, numpy_draw
from askgauss.recording.transcript import LinearTranscript
from askgauss.results import Status, Verdict

STEPS = 32
COLUMNS = 0.3 + np.abs(np.random.default_rng(3).normal(size=(STEPS, 4))) * [1.0, 0.5, 0.3, 0.2]
STRATEGIES: dict[str, Strategy] = {
    "banded": BandedStrategy(columns=COLUMNS),
    "banded, several": BandedStrategy(columns=COLUMNS, participations=3, min_separation=8),
    "toeplitz": BandedStrategy.toeplitz([1.0, 0.5, 0.3], STEPS),
    "buffered": BufferedToeplitz(decay=[0.9, 0.5], scale=[0.2, 0.3], steps=STEPS),
    "dense": MatrixMechanism.toeplitz(np.linspace(1.0, 0.1, STEPS), STEPS),
}
RELEASES = ("rows", "steps", "prefixes")
CLAIM = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def matrix(strategy: Strategy) -> np.ndarray:
    whole = np.zeros((strategy.steps, strategy.steps))
    for step in range(strategy.steps):
        first, row = strategy.row(step)
        whole[step, first : step + 1] = row
    return whole


def recorded(
    strategy: Strategy,
    release: str = "steps",
    *,
    size: int = 200,
    seed: int = 0,
    factor: float = 1.0,
    steps: int | None = None,
    repeat: bool = False,
    resume: ag.LinearRecorder | None = None,
) -> ag.LinearRecorder:
    canaries = ag.DiracCanaries(present=size // 2, absent=size // 2, dimension=size, seed=seed)
    sigma = strategy.noise_multiplier(epsilon=CLAIM.epsilon, delta=CLAIM.delta)
    recorder = resume or ag.LinearRecorder(
        canaries, strategy, release=release, noise_multiplier=sigma
    )
    draws = sigma * factor * np.random.default_rng(seed + 1).normal(size=(strategy.steps, size))
    if repeat:
        draws[strategy.steps // 2] = draws[1]
    whole = matrix(strategy)
    steps = steps or strategy.steps
    planted = np.zeros((strategy.steps, size))
    noise = draws if release == "rows" else np.linalg.solve(whole, draws)
    for step in range(steps):
        if step < recorder.steps:
            # What a resumed recorder has seen already.
            entered = np.flatnonzero((recorder._leaves == step).any(axis=1) & canaries.member)
        else:
            entered = recorder.sample()
        canaries.plant(planted[step], entered, clip_norm=1.0)
        signal = {
            "rows": whole[step] @ planted,
            "steps": planted[step],
            "prefixes": planted[: step + 1].sum(axis=0),
        }[release]
        drawn = noise[: step + 1].sum(axis=0) if release == "prefixes" else noise[step]
        if step >= recorder.steps:
            recorder.observe(canaries.project(signal + drawn), background=np.zeros(canaries.size))
    return recorder


class TestStrategies:
    @each_strategy
    def test_mixing_the_steps_gives_the_rows_of_the_matrix(self, strategy: Strategy) -> None:
        values = np.random.default_rng(1).normal(size=(STEPS, 5))
        held: list[np.ndarray] = []
        mixed = []
        for step, value in enumerate(values):
            assert len(held) == strategy.held(step)
            mixed.append(strategy.mix(step, value, held))
        np.testing.assert_allclose(mixed, matrix(strategy) @ values, atol=1e-12)

    @each_strategy
    def test_streamed_noise_is_the_inverse_of_the_matrix(self, strategy: Strategy) -> None:
        draws = np.random.default_rng(2).normal(size=(STEPS, 7))
        draw = numpy_draw(np.random.default_rng(2), 7, dtype=np.float64)
        noise = strategy.stream(draw)  # type: ignore[attr-defined]
        streamed = np.array([noise.next() for _ in range(STEPS)])
        np.testing.assert_allclose(matrix(strategy) @ streamed, draws, atol=1e-10)

    def test_bands_have_the_sensitivity_of_the_matrix(self) -> None:
        for options in ({}, {"participations": 3, "min_separation": 8}, {"participations": 2}):
            strategy = BandedStrategy(columns=COLUMNS, **options)
            assert math.isclose(
                strategy.sensitivity(), strategy.written_out().sensitivity(), rel_tol=1e-12
            )

    def test_overlapping_columns_of_a_long_run_are_refused(self) -> None:
        strategy = BandedStrategy.toeplitz([1.0, 0.5], 3000, participations=2)
        with pytest.raises(UnsupportedError, match="overlap"):
            strategy.sensitivity()

    def test_bands_of_the_best_strategy_have_norm_one(self) -> None:
        pytest.importorskip("jax_privacy")
        strategy = BandedStrategy.from_jax_privacy(16, 3)
        np.testing.assert_allclose(np.linalg.norm(matrix(strategy), axis=0), 1.0, rtol=1e-6)

    @pytest.mark.parametrize(
        "columns",
        [[[1.0, 2.0]], [[0.0]], [[math.nan]], [1.0], [["a"]]],
        ids=["wide", "zero", "nan", "flat", "text"],
    )
    def test_what_is_no_strategy_is_refused(self, columns: list) -> None:
        with pytest.raises(InvalidArgumentError, match="columns"):
            BandedStrategy(columns=np.array(columns))


class TestAudits:
    @each_strategy
    @pytest.mark.parametrize("release", RELEASES)
    def test_scores_are_those_of_the_matched_filter(self, strategy: Strategy, release: str) -> None:
        transcript = recorded(strategy, release).transcript()
        whole = matrix(strategy)
        signal = np.array([whole[:, leaves].sum(axis=1) for leaves in transcript.leaves])
        np.testing.assert_allclose(transcript.information, np.linalg.norm(signal, axis=1))
        # The noise of every row is one draw, whatever was released.
        sigma = strategy.noise_multiplier(epsilon=CLAIM.epsilon, delta=CLAIM.delta)
        draws = sigma * np.random.default_rng(1).normal(size=(STEPS, transcript.member.size))
        canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
        rows = np.array([canaries.project(row) for row in draws]) + signal.T * transcript.member
        scores = np.einsum("cr,rc->c", signal, rows) / np.linalg.norm(signal, axis=1)
        np.testing.assert_allclose(transcript.score, scores, atol=1e-9)

    @each_strategy
    def test_a_correct_run_is_not_contradicted(self, strategy: Strategy) -> None:
        # Checks of a clean run fail in 1 of 2,000 audits.
        result = ag.audit(recorded(strategy, size=1000, seed=4).transcript(), claim=CLAIM)
        assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE), result.reason
        assert not [item for item in result.findings if item.status is Status.FAIL]
        # Canaries in columns of little norm say little of the worst one.
        assert 0.5 * CLAIM.epsilon < result.epsilon_lower < 1.15 * CLAIM.epsilon

    @each_strategy
    def test_too_little_noise_and_noise_that_comes_back_are_found(self, strategy: Strategy) -> None:
        weak = ag.audit(recorded(strategy, factor=0.8).transcript(), claim=CLAIM)
        assert weak.verdict is Verdict.VIOLATION
        assert "noise scale" in {item.check for item in weak.findings if item.status is Status.FAIL}
        again = ag.audit(recorded(strategy, repeat=True).transcript(), claim=CLAIM)
        found = next(item for item in again.findings if item.check == "repeated noise")
        assert found.status is Status.FAIL
        assert "row 1 of the strategy" in found.summary

    @pytest.mark.parametrize("name", ["banded, several", "buffered"])
    def test_bounds_are_seldom_above_the_truth(self, name: str) -> None:
        # 60 audits at 95 %: more than 9 above have probability 1e-3, binomial.
        strategy, auditor, above = STRATEGIES[name], GaussianShift(), 0
        for seed in range(60):
            scores = recorded(strategy, seed=100 + 2 * seed).transcript().scores()
            evidence = auditor.gather(scores, delta=1e-5, confidence=0.95)
            bound = auditor.epsilon_lower(evidence, delta=1e-5, confidence=0.95)
            above += bound > CLAIM.epsilon
        assert above <= 9


class TestFiles:
    @each_strategy
    @pytest.mark.parametrize("release", RELEASES)
    def test_a_resumed_run_is_the_unbroken_one(
        self, tmp_path, strategy: Strategy, release: str
    ) -> None:
        whole = recorded(strategy, release).transcript()
        recorded(strategy, release, steps=11).save(tmp_path / "half.npz")
        canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
        sigma = strategy.noise_multiplier(epsilon=CLAIM.epsilon, delta=CLAIM.delta)
        again = ag.LinearRecorder(canaries, strategy, release=release, noise_multiplier=sigma)
        again.load(tmp_path / "half.npz")
        resumed = recorded(strategy, release, resume=again).transcript()
        np.testing.assert_array_equal(resumed.score, whole.score)
        np.testing.assert_array_equal(resumed.kept_values, whole.kept_values)
        resumed.save(tmp_path / "run.npz")
        loaded = LinearTranscript.load(tmp_path / "run.npz")
        assert loaded.plan == whole.plan
        assert isinstance(loaded.plan, StrategyPlan)
        np.testing.assert_array_equal(loaded.score, whole.score)

    def test_a_checkpoint_of_another_strategy_is_refused(self, tmp_path) -> None:
        recorded(STRATEGIES["banded"], steps=5).save(tmp_path / "a.npz")
        canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
        other = ag.LinearRecorder(canaries, BandedStrategy(columns=2.0 * COLUMNS))
        with pytest.raises(RecordingError, match="plan"):
            other.load(tmp_path / "a.npz")

    def test_rows_of_other_steps_than_were_counted_are_refused(self) -> None:
        recorder = recorded(STRATEGIES["banded"], steps=5)
        state = recorder.state_dict()
        state["state"] |= {"step": 3}
        with pytest.raises(FileFormatError, match="rows of 3 steps in the checkpoint, got 5"):
            recorder.load_state_dict(state)


class TestMemory:
    def test_a_long_banded_run_fits_into_little_memory(self) -> None:
        # A matrix of these steps has 800 MB; twice the steps of a tenth of them would show it.
        steps, bands = 10_000, 16
        columns = np.tile(np.linspace(1.0, 0.2, bands), (steps, 1))
        canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
        values = np.random.default_rng(0).normal(size=200)
        tracemalloc.start()
        try:
            strategy = BandedStrategy(columns=columns, participations=10, min_separation=1000)
            recorder = ag.LinearRecorder(canaries, strategy, noise_multiplier=1.0)
            for step in range(500):
                recorder.sample()
                recorder.observe(np.roll(values, step), background=np.zeros(200))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 10e6

    def test_what_cannot_be_read_step_by_step_is_refused(self) -> None:
        canaries = ag.DiracCanaries(present=10, absent=10, dimension=20, seed=0)
        with pytest.raises(UnsupportedError, match="lower-triangular"):
            ag.LinearRecorder(canaries, MatrixMechanism(strategy=np.ones((2, 2))))
        with pytest.raises(InvalidArgumentError, match="plan"):
            ag.LinearRecorder(canaries, np.eye(2))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="release"):
            ag.LinearRecorder(canaries, STRATEGIES["banded"], release="nodes")  # type: ignore


# --------------------------------------------------------------- what one record really moves

GRAM = 0.9 ** np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
# The same Gram matrix with rows of norm 1, as its lower Cholesky factor has, and with columns.
BY_ROWS = np.linalg.cholesky(GRAM)
BY_COLUMNS = np.linalg.cholesky(GRAM[::-1, ::-1])[::-1, ::-1].T.copy()


def noise_of(made: np.ndarray, declared: np.ndarray, *, seed: int = 0, absent: int = 400):
    """A run whose noise one matrix makes and whose audit is told another."""
    strategy = MatrixMechanism(strategy=declared)
    sigma = MatrixMechanism(strategy=BY_COLUMNS).noise_multiplier(epsilon=4.0, delta=1e-5)
    canaries = ag.DiracCanaries(present=400, absent=absent, dimension=400 + absent, seed=seed)
    recorder = ag.LinearRecorder(canaries, strategy, noise_multiplier=sigma)
    draws = np.random.default_rng(seed).normal(0.0, sigma, (STEPS, canaries.size))
    for noise in np.linalg.solve(made, draws):
        clean = np.zeros(canaries.size)
        canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        recorder.observe(canaries.project(clean + noise), background=np.zeros(canaries.size))
    return recorder.transcript()


def found(transcript, name, claim=CLAIM):
    return next(i for i in ag.audit(transcript, claim=claim).findings if i.check == name)


def test_columns_longer_than_the_noise_covers_are_named() -> None:
    run = noise_of(BY_ROWS, BY_ROWS)
    result = ag.audit(run, claim=CLAIM)
    item = found(run, "sensitivity")
    assert result.verdict is Verdict.VIOLATION
    assert item.status is Status.FAIL
    assert item.measured == pytest.approx(np.linalg.norm(BY_ROWS, axis=0).max(), rel=3e-4)
    assert item.claimed == pytest.approx(1.0, rel=0.02)
    # Of a claim that was accounted with amplification the columns say nothing.
    amplified = ag.PrivacyClaim(epsilon=4.0, delta=1e-5, sampling_rate=0.1)
    assert found(run, "sensitivity", amplified).status is Status.NOT_RUN


def test_columns_that_are_covered_pass() -> None:
    run = noise_of(BY_COLUMNS, BY_COLUMNS)
    assert found(run, "sensitivity").status is Status.PASS
    assert found(run, "noise by entry").status is Status.PASS


def test_noise_of_another_strategy_than_declared_is_a_violation() -> None:
    run = noise_of(BY_ROWS, BY_COLUMNS)
    item = found(run, "noise by entry")
    assert ag.audit(run, claim=CLAIM).verdict is Verdict.VIOLATION
    assert item.status is Status.FAIL
    # By the two matrices alone: what the columns of the one that made the noise are too long by.
    expected = 1.0 / np.linalg.norm(BY_ROWS, axis=0).max()
    assert item.measured / item.claimed == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("mixed", [False, True])
def test_noise_that_entries_meet_has_the_law_of_wishart(mixed: bool) -> None:
    """Whatever the rows' covariance: each sum of squares over its true noise is chi-square."""
    made, declared = (BY_ROWS, BY_COLUMNS) if mixed else (BY_COLUMNS, BY_COLUMNS)
    sigma = MatrixMechanism(strategy=BY_COLUMNS).noise_multiplier(epsilon=4.0, delta=1e-5)
    # The true one by the covariance of the released steps, inverted the long way.
    covariance = np.linalg.inv(made) @ np.linalg.inv(made).T * sigma**2
    rows = declared @ covariance @ declared.T
    apart = np.diagonal(declared.T @ np.linalg.inv(rows) @ declared)
    gain = np.square(declared).sum(axis=0)
    ranks = []
    for seed in range(60):
        run = noise_of(made, declared, seed=seed, absent=80)
        assert run.leaf_freedom == 80 - STEPS + 1
        np.testing.assert_allclose(run.leaf_gain, gain)
        ranks.append(chdtr(run.leaf_freedom, run.leaf_square * apart / gain)[[0, 15, 31]])
    # A correct implementation fails with probability 3e-4; seeds are fixed.
    assert all(kstest(column, "uniform").pvalue > 1e-4 for column in np.array(ranks).T)


def test_what_entries_meet_is_kept_in_a_file(tmp_path) -> None:
    run = noise_of(BY_COLUMNS, BY_COLUMNS)
    run.save(tmp_path / "run.npz")
    again = LinearTranscript.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(again.leaf_square, run.leaf_square)
    np.testing.assert_array_equal(again.leaf_gain, run.leaf_gain)
