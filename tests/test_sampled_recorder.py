"""Correlated noise with sampling (BandMF), recorded step by step in any loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.strategies import BandedStrategy, BufferedToeplitz
from askgauss.mechanisms.strategy import Strategy
from askgauss.recording.inputs import load_audit_input
from askgauss.recording.linear_recorder import SampledRecorder
from askgauss.results import Status, Verdict
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson, Shuffled

RATE, CYCLE, STEPS, NOISE, DELTA = 0.3, 4, 120, 1.5, 1e-5
SCHEME = CyclicPoisson(rate=RATE, cycle=CYCLE)
COEFFICIENTS = np.array([1.0, 0.6, 0.3])
NORM = float(np.linalg.norm(COEFFICIENTS))
TOEPLITZ = BandedStrategy.toeplitz(COEFFICIENTS, STEPS)
CANARIES = ag.DiracCanaries(present=100, absent=100, dimension=250, seed=3)
CALM = (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)


def make(
    strategy: Strategy = TOEPLITZ, canaries: ag.DiracCanaries = CANARIES, **changes: object
) -> SampledRecorder:
    settings: dict = {"sampling": SCHEME, "noise_multiplier": NOISE * NORM, "clip_norm": 1.0}
    return ag.LinearRecorder.sampled(canaries, strategy, **settings | changes)


def matrix(strategy: Strategy) -> np.ndarray:
    return strategy.apply(np.eye(strategy.steps))


def run(
    recorder: SampledRecorder,
    strategy: Strategy = TOEPLITZ,
    *,
    canaries: ag.DiracCanaries = CANARIES,
    release: str = "steps",
    factor: float = 1.0,
    seed: int = 0,
    steps: int | None = None,
    reuse: int | None = None,
    background: float | None = 0.0,
) -> np.ndarray:
    """Train: noise of the strategy, canaries in the steps they are told; gives who entered when."""
    whole = matrix(strategy)
    draws = np.random.default_rng(seed).normal(size=(strategy.steps, canaries.size))
    if reuse is not None:
        draws[reuse:] = draws[: len(draws) - reuse]
    noise = np.linalg.solve(whole, factor * NOISE * NORM * draws)
    entered = np.zeros((strategy.steps, canaries.size))
    steps = strategy.steps if steps is None else steps
    for step in range(recorder.steps, steps):
        entered[step, recorder.sample()] = 1.0
        steps_so_far = entered + noise
        seen = {
            "steps": steps_so_far[step],
            "prefixes": steps_so_far[: step + 1].sum(axis=0),
            "rows": whole[step] @ steps_so_far,
        }[release]
        others = None if background is None else np.full(canaries.size, background)
        recorder.observe(seen + (0.0 if others is None else others), background=others)
    return entered


def claim() -> ag.PrivacyClaim:
    epsilon = SCHEME.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)
    return ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)


def failed(result: ag.AuditResult) -> set[str]:
    return {item.check for item in result.findings if item.status is Status.FAIL}


@pytest.mark.parametrize("release", ["rows", "steps", "prefixes"])
@pytest.mark.parametrize(
    "strategy",
    [
        TOEPLITZ,
        MatrixMechanism(strategy=matrix(TOEPLITZ) / np.linalg.norm(matrix(TOEPLITZ), axis=0)),
    ],
    ids=["toeplitz", "normalised matrix"],
)
def test_rounds_are_the_matched_filter_of_the_matrix(strategy: Strategy, release: str) -> None:
    recorder = make(strategy, release=release)
    entered = run(recorder, strategy, release=release)
    recorded = recorder.transcript()
    whole = matrix(strategy)
    norm = np.linalg.norm(whole, axis=0).max()
    # A Toeplitz strategy cuts its last columns off, and with them the last round.
    rounds = 29 if strategy is TOEPLITZ else 30
    assert recorded.number_of_steps == rounds
    assert recorded.facts.skipped_steps == 30 - rounds
    draws = NOISE * NORM * np.random.default_rng(0).normal(size=(STEPS, CANARIES.size))
    rows = whole @ entered + draws
    groups = recorder._rounds.groups
    starts = groups + CYCLE * np.arange(rounds)[:, None]
    expected = np.einsum("src,sc->rc", whole[:, starts], rows) / norm**2
    planted = entered[starts, np.arange(CANARIES.size)]
    assert np.array_equal(recorded.canaries.planted, planted.sum(axis=0))
    # Kept of every canary is what its plantings do not add.
    kept = (expected - planted)[:, recorded.kept]
    other = np.where(planted[:, recorded.kept] > 0, kept + 1.0, kept)
    np.testing.assert_allclose(recorded.kept_values, other, atol=1e-9)
    # Nobody enters a step of another group.
    step, canary = np.nonzero(entered)
    assert np.array_equal(step % CYCLE, groups[canary])


def test_a_correct_run_is_cleared_with_most_of_its_epsilon() -> None:
    # Checks of a clean run fail in 1 of 2,000 audits.
    recorder = make()
    run(recorder)
    result = ag.audit(recorder.transcript(), claim=claim())
    assert result.verdict in CALM, result.reason
    assert not failed(result)
    assert 0.85 * claim().epsilon < result.epsilon_lower < 1.02 * claim().epsilon


def test_a_claim_in_steps_of_the_training_is_the_same_as_one_in_rounds() -> None:
    recorder = make()
    run(recorder)
    epsilon, delta = claim().epsilon, DELTA
    for said in (
        {"steps": STEPS, "sampling": SCHEME, "noise_multiplier": NOISE},
        {"steps": 30, "sampling_rate": RATE, "noise_multiplier": NOISE},
    ):
        stated = ag.PrivacyClaim(epsilon=epsilon, delta=delta, **said)
        result = ag.audit(recorder.transcript(), claim=stated)
        assert result.verdict in CALM, result.reason
        assert not failed(result)
        assert result.claim == stated
        checks = {item.check: item.status for item in result.findings}
        for name in ("step count", "accounted sampling", "sampling rate"):
            assert checks[name] is not Status.WARN, name
    # What is not true of the run is found in either way of saying it.
    short = ag.PrivacyClaim(epsilon=epsilon, delta=delta, steps=60, sampling=SCHEME)
    other = ag.PrivacyClaim(epsilon=0.3 * epsilon, delta=delta, steps=STEPS, sampling_rate=0.075)
    counted = ag.audit(recorder.transcript(), claim=short).findings
    assert next(item for item in counted if item.check == "step count").status is Status.WARN
    assert ag.audit(recorder.transcript(), claim=other).verdict is Verdict.VIOLATION


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"factor": 0.5}, "noise scale"),
        ({"factor": 0.0}, "steps without noise"),
        ({"reuse": 40}, "repeated noise"),
    ],
    ids=["half the noise", "no noise", "draws used again"],
)
def test_faults_of_the_noise_are_found(fault: dict, check: str) -> None:
    recorder = make()
    run(recorder, **fault)
    result = ag.audit(recorder.transcript(), claim=claim())
    assert result.verdict is Verdict.VIOLATION, result.reason
    assert check in failed(result)


def test_a_strategy_of_another_norm_than_accounted_is_a_violation() -> None:
    """Noise for columns of norm one, and a strategy whose columns are longer."""
    recorder = make(noise_multiplier=NOISE)
    run(recorder, factor=1.0 / NORM)
    result = ag.audit(recorder.transcript(), claim=claim())
    assert result.verdict is Verdict.VIOLATION
    assert result.epsilon_lower > claim().epsilon


def test_the_bound_is_above_the_truth_at_most_nominally() -> None:
    """Of 60 audits a correct bound is too high in more than allowed once in 10,000."""
    steps, audits = 16, 60
    scheme, coefficients = CyclicPoisson(rate=0.5, cycle=2), [1.0, 0.7]
    strategy = BandedStrategy.toeplitz(coefficients, steps)
    norm = float(np.linalg.norm(coefficients))
    # The last round is cut off and not recorded: what the audit speaks of are seven.
    truth = Poisson(rate=0.5).epsilon_lower(
        noise_multiplier=NOISE * NORM / norm, steps=7, delta=DELTA
    )
    above = 0
    for seed in range(audits):
        canaries = ag.DiracCanaries(present=20, absent=20, dimension=40, seed=seed)
        recorder = ag.LinearRecorder.sampled(canaries, strategy, sampling=scheme)
        run(recorder, strategy, canaries=canaries, seed=1000 + seed)
        bound = ag.audit(recorder.transcript(), delta=DELTA, diagnostics=False).epsilon_lower
        above += bound > truth
    assert above <= stats.binom.isf(1e-4, audits, 0.05)


def test_a_resumed_run_has_the_transcript_of_an_unbroken_one(tmp_path) -> None:
    whole, half = make(), make()
    run(whole)
    for cut in (9, 50):
        run(half, steps=cut)
        half.save(tmp_path / "half.npz")
        again = make()
        again.load(tmp_path / "half.npz")
        assert again.run == half.run
        half = again
    run(half)
    unbroken, resumed = whole.transcript(), half.transcript()
    assert resumed.facts == unbroken.facts
    # In steps of the training, as the caller counts them, not in rounds.
    assert resumed.facts.resumed == (9, 50)
    with pytest.raises(RecordingError, match="same step"):
        again.sample(step=49)
    for name, array in resumed.arrays().items():
        assert np.array_equal(array, unbroken.arrays()[name], equal_nan=True), name


def test_a_finished_checkpoint_is_audited_by_the_command_line(tmp_path) -> None:
    recorder = make()
    run(recorder)
    recorder.save(tmp_path / "run.npz", finished=True)
    read = load_audit_input(tmp_path / "run.npz")
    assert isinstance(read, ag.Transcript)
    assert np.array_equal(read.canaries.total, recorder.transcript().canaries.total)


def test_a_run_that_stops_early_has_the_rounds_that_are_over() -> None:
    recorder = make()
    run(recorder, steps=3)
    with pytest.raises(RecordingError, match="4 steps"):
        recorder.transcript()
    run(recorder, steps=30)
    assert recorder.transcript().number_of_steps == 7
    assert recorder.transcript().facts.skipped_steps == 1


def test_ten_thousand_steps_take_little_memory() -> None:
    recorder = make(BandedStrategy.toeplitz([1.0, 0.6, 0.3, 0.2], 10_000))
    values = np.zeros(CANARIES.size)
    for step in range(10_000):
        recorder.sample()
        values[step % CANARIES.size] += 1e-3
        recorder.observe(values)
    assert recorder.transcript().number_of_steps == 2499
    # All that it holds.
    parts = [item for item in recorder.state_dict().values() if isinstance(item, np.ndarray)]
    assert sum(part.nbytes for part in parts) < 20e6


def test_bad_input_is_refused_with_a_next_step() -> None:
    with pytest.raises(UnsupportedError, match=r"Expected CyclicPoisson.*LinearRecorder"):
        make(sampling=Shuffled(batches=4))
    with pytest.raises(UnsupportedError, match="Expected CyclicPoisson"):
        make(sampling=EveryStep())
    with pytest.raises(UnsupportedError, match="bands"):
        make(sampling=CyclicPoisson(rate=0.5, cycle=2))
    with pytest.raises(UnsupportedError, match="bands"):
        make(sampling=Poisson(rate=0.5))
    with pytest.raises(UnsupportedError, match="bands"):
        make(BufferedToeplitz(decay=[0.5], scale=[0.5], steps=STEPS))
    with pytest.raises(UnsupportedError, match="groups that"):
        make(sampling=CyclicPoisson(rate=0.3, cycle=4, groups="secret"))
    with pytest.raises(InvalidArgumentError, match="BandedStrategy"):
        make([1.0, 0.5])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="more steps"):
        make(BandedStrategy.toeplitz(COEFFICIENTS, 5))
    recorder = make()
    with pytest.raises(RecordingError, match="before sample"):
        recorder.observe(np.zeros(200))
    recorder.sample()
    with pytest.raises(InvalidArgumentError, match=r"canaries.project"):
        recorder.observe(np.zeros(3))
    recorder.observe(np.zeros(200))
    recorder.sample()
    with pytest.raises(RecordingError, match="background"):
        recorder.observe(np.zeros(200), background=np.zeros(200))
    assert recorder.steps == 1


@pytest.mark.parametrize("part", ["rounds", "entering", "open.0", "recorder.rows.clip_norm"])
def test_damaged_checkpoints_are_refused_and_change_nothing(part: str) -> None:
    recorder, other = make(), make()
    run(recorder, steps=20)
    state = recorder.state_dict()
    with pytest.raises(FileFormatError):
        other.load_state_dict({**state, part: np.zeros(3)})
    assert other.steps == 0
    with pytest.raises(RecordingError, match="whose sampling"):
        make(sampling=CyclicPoisson(rate=0.2, cycle=4)).load_state_dict(state)


# --- single rows ------------------------------------------------------------------------------

EVERYWHERE = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=4)


def with_draws(change, seed: int = 0):
    """A run whose rows of noise were changed before they were mixed."""
    recorder = make(canaries=EVERYWHERE)
    draws = np.random.default_rng(seed).normal(size=(STEPS, EVERYWHERE.size))
    change(draws)
    noise = np.linalg.solve(matrix(TOEPLITZ), NOISE * NORM * draws)
    for step in range(STEPS):
        clean = np.zeros(EVERYWHERE.size)
        EVERYWHERE.plant(clean, recorder.sample(), clip_norm=1.0)
        released = EVERYWHERE.project(clean + noise[step])
        recorder.observe(released, background=np.zeros(EVERYWHERE.size))
    return recorder


def silent(draws: np.ndarray) -> None:
    draws[50] = 0.0


def halved(draws: np.ndarray) -> None:
    draws[50] *= 0.5


def used_again(draws: np.ndarray) -> None:
    draws[50] = draws[12]


def rolled(draws: np.ndarray) -> None:
    draws[1::2] = np.roll(draws[::2], 1, axis=1)


@pytest.mark.parametrize(
    ("change", "check", "verdict"),
    [
        (silent, "rows without noise", Verdict.VIOLATION),
        (halved, "noise by row", Verdict.INVALID),
        (used_again, "repeated noise", Verdict.VIOLATION),
        (rolled, "noise reused at other coordinates", Verdict.VIOLATION),
    ],
)
def test_what_single_rows_lack_is_found(change, check, verdict) -> None:
    result = ag.audit(with_draws(change).transcript(), claim=claim())
    assert result.verdict is verdict
    assert check in failed(result)
    assert check in result.reason


def test_rows_survive_a_checkpoint() -> None:
    whole = with_draws(used_again)
    again = make(canaries=EVERYWHERE)
    again.load_state_dict(whole.state_dict())
    ours, theirs = whole.transcript().facts, again.transcript().facts
    assert (ours.rows, ours.reuse) == (theirs.rows, theirs.reuse)
    damaged = whole.state_dict()
    damaged["row_noise.numbers"] = damaged["row_noise.numbers"][1:]
    with pytest.raises(FileFormatError, match="row_noise"):
        again.load_state_dict(damaged)
