"""Runs without a trainer, leaking and correct: own loops, correlated noise, servers, monitors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import askgauss as ag
from askgauss import accounting
from askgauss.federated import simulate_federated
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.results import AuditResult, Verdict
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson
from benchmarks.loops import DELTA, Leak, Outcome, Run

__all__ = ["CORRECT", "LEAKS", "SAMPLERS", "sampled_correctly"]

Array = NDArray[np.float64]

# --- DP-FTRL by a banded strategy, with sampling --------------------------------------------------

STEPS, NOISE = 120, 1.5
SCHEME = CyclicPoisson(rate=0.3, cycle=4)
STRATEGY = BandedStrategy.toeplitz(np.array([1.0, 0.6, 0.3]), STEPS)
NORM = float(np.linalg.norm([1.0, 0.6, 0.3]))


def banded(change: Callable[[Array, np.random.Generator], None]) -> Run:
    """A run whose rows of noise were changed before they were mixed."""

    def run(seed: int) -> AuditResult:
        canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=seed)
        recorder = ag.LinearRecorder.sampled(
            canaries, STRATEGY, sampling=SCHEME, noise_multiplier=NOISE * NORM, clip_norm=1.0
        )
        chance = np.random.default_rng([seed, 1])
        draws = chance.normal(size=(STEPS, canaries.size))
        change(draws, chance)
        noise = np.linalg.solve(STRATEGY.apply(np.eye(STEPS)), NOISE * NORM * draws)
        for row in noise:
            clean = np.zeros(canaries.size)
            canaries.plant(clean, recorder.sample(), clip_norm=1.0)
            recorder.observe(canaries.project(clean + row), background=np.zeros(canaries.size))
        epsilon = SCHEME.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)
        return ag.audit(
            recorder.transcript(), claim=ag.PrivacyClaim(epsilon=1.001 * epsilon, delta=DELTA)
        )

    return run


def silent(count: int) -> Callable[[Array, np.random.Generator], None]:
    def change(draws: Array, chance: np.random.Generator) -> None:
        draws[chance.choice(STEPS, count, replace=False)] = 0.0

    return change


def used_again(count: int) -> Callable[[Array, np.random.Generator], None]:
    def change(draws: Array, chance: np.random.Generator) -> None:
        later = chance.choice(np.arange(STEPS // 2, STEPS), count, replace=False)
        draws[later] = draws[chance.integers(0, STEPS // 2, count)]

    return change


def halved(draws: Array, chance: np.random.Generator) -> None:
    draws[chance.integers(STEPS)] *= 0.5


def rolled(draws: Array, chance: np.random.Generator) -> None:
    draws[1::2] = np.roll(draws[::2], 1, axis=1)


# --- own loops ------------------------------------------------------------------------------------

SIZES = (400, 400, 400)


def recorded(noise: Callable[[int, int, Array | None], Array], **claimed: Any) -> Run:
    """A loop of one's own that watches some coordinates of three tensors."""

    def run(seed: int) -> AuditResult:
        canaries = ag.DiracCanaries(present=20, absent=100, tensors=SIZES, seed=seed)
        recorder = ag.Recorder(canaries, sampling_rate=0.2, noise_multiplier=2.0)
        chance = np.random.default_rng([seed, 2])
        last: Array | None = None
        for step in range(60):
            total = chance.normal(0.0, 1.0, sum(SIZES)).astype(np.float32)
            background = canaries.project(total)
            canaries.plant(total, recorder.sample(), clip_norm=1.0)
            last = noise(step, seed, last)
            released = total + last.astype(np.float32)
            recorder.observe(
                canaries.project(released),
                background=background,
                watch=(released - total)[canaries.watch],
            )
        epsilon = accounting.dpsgd_epsilon(
            noise_multiplier=2.0, sampling_rate=0.2, steps=60, delta=DELTA
        )
        claim = ag.PrivacyClaim(epsilon=1.001 * epsilon, delta=DELTA, **claimed)
        return ag.audit(recorder.transcript(), claim=claim)

    return run


def drawn(*root: int) -> Array:
    return np.random.default_rng(root).normal(0.0, 2.0, SIZES[0])


def fresh(step: int, seed: int, last: Array | None) -> Array:
    return np.concatenate([drawn(seed, step, layer) for layer in range(3)])


def step_plus_layer(step: int, seed: int, last: Array | None) -> Array:
    return np.concatenate([drawn(seed, step + layer) for layer in range(3)])


def reversed_and_negated(step: int, seed: int, last: Array | None) -> Array:
    return fresh(step, seed, last) if last is None or step % 2 == 0 else -last[::-1]


def shifted(step: int, seed: int, last: Array | None) -> Array:
    return fresh(step, seed, last) if last is None else np.roll(last, 1)


def one_key(step: int, seed: int, last: Array | None) -> Array:
    return np.concatenate([drawn(seed, step)] * 3)


# --- servers --------------------------------------------------------------------------------------


def server(fault: str | None) -> Run:
    def run(seed: int) -> AuditResult:
        rounds, noise = 30, 2.0
        transcript = simulate_federated(
            rounds=rounds,
            clients=20,
            noise_multiplier=noise,
            present=30,
            absent=200,
            dimension=600,
            fault=fault,
            seed=seed,
        )
        epsilon = EveryStep().epsilon(noise_multiplier=noise, steps=rounds, delta=DELTA)
        claim = ag.PrivacyClaim(
            epsilon=1.001 * epsilon,
            delta=DELTA,
            noise_multiplier=noise,
            steps=rounds,
            sampling=EveryStep(),
            unit="user",
        )
        return ag.audit(transcript, claim=claim)

    return run


# --- monitors -------------------------------------------------------------------------------------


def monitored(
    *,
    epsilon: float | None = None,
    rate: float = 0.2,
    claimed_rate: float = 0.2,
    claimed_steps: int = 100,
    steps: int = 100,
) -> Callable[[int], Outcome]:
    """What a monitor says of a run while it trains: its alarm is the finding."""

    def run(seed: int) -> Outcome:
        noise = 2.0
        if epsilon is None:
            stated = accounting.dpsgd_epsilon(
                noise_multiplier=noise, sampling_rate=claimed_rate, steps=claimed_steps, delta=DELTA
            )
        claim = ag.PrivacyClaim(
            epsilon=epsilon or 1.001 * stated,
            delta=DELTA,
            noise_multiplier=noise,
            sampling_rate=claimed_rate,
            steps=claimed_steps,
        )
        monitor = ag.Monitor(claim=claim, on_alarm=lambda alarm: None)
        canaries = ag.DiracCanaries(present=40, absent=160, dimension=200, seed=seed)
        recorder = ag.Recorder(
            canaries, sampling_rate=rate, noise_multiplier=noise, monitor=monitor
        )
        chance = np.random.default_rng([seed, 3])
        for _ in range(steps):
            planted = recorder.sample()
            values = chance.normal(0.0, noise, 200)
            values[planted] += 1.0
            recorder.observe(values, background=0.0)
        alarm = monitor.alarm
        if alarm is None:
            return Outcome("none", (), (), "")
        return Outcome(Verdict.VIOLATION.value, ("alarm",), (), f"alarm by {alarm.cause}")

    return run


# --- samplers -------------------------------------------------------------------------------------

SAMPLERS = tuple(itertools.product((0.01, 0.05, 0.2, 0.5), (64, 300, 1000), (48, 200)))


def sampled_correctly(seed: int) -> AuditResult:
    """An own loop whose batches are those of a Poisson sampler."""
    rate, records, steps = SAMPLERS[seed % len(SAMPLERS)]
    return batches(rate, records, steps, lambda batch: batch, seed)


def batches(
    rate: float, records: int, steps: int, changed: Callable[[Array], Array], seed: int
) -> AuditResult:
    """An own loop whose batches are recorded, and changed before that."""
    canaries = ag.DiracCanaries(present=20, absent=60, dimension=80, seed=seed)
    recorder = ag.Recorder(
        canaries, sampling=Poisson(rate=rate), noise_multiplier=2.0, records=records
    )
    chance = np.random.default_rng([seed, 4])
    for _ in range(steps):
        values = chance.normal(0.0, 2.0, canaries.size)
        values[recorder.sample()] += 1.0
        batch = changed(np.flatnonzero(chance.random(records) < rate))
        recorder.observe(values, background=0, batch=batch)
    epsilon = accounting.dpsgd_epsilon(
        noise_multiplier=2.0, sampling_rate=rate, steps=steps, delta=DELTA
    )
    claim = ag.PrivacyClaim(epsilon=1.001 * epsilon, delta=DELTA)
    return ag.audit(recorder.transcript(), claim=claim)


def together(batch: Array) -> Array:
    others = batch[batch != 1]
    return np.append(others, 1) if 0 in batch else others


_REUSED = ("noise reused at other coordinates", "repeated noise", "shared noise")

LEAKS: dict[str, dict[str, Leak]] = {
    "Own loops": {
        "one record in every batch": Leak(
            lambda seed: batches(0.1, 300, 100, lambda batch: np.union1d(batch, [0]), seed),
            ("single records",),
        ),
        "three records in every batch": Leak(
            lambda seed: batches(0.1, 300, 100, lambda batch: np.union1d(batch, [0, 1, 2]), seed),
            ("single records",),
        ),
        "two records always together, 100 steps": Leak(
            lambda seed: batches(0.1, 300, 100, together, seed), ("single records",)
        ),
        "two records always together, 400 steps": Leak(
            lambda seed: batches(0.1, 300, 400, together, seed), ("single records",)
        ),
        "seed = root + step + layer": Leak(recorded(step_plus_layer), _REUSED),
        "noise reversed and negated": Leak(recorded(reversed_and_negated), _REUSED),
        "noise shifted by one": Leak(recorded(shifted), _REUSED),
        "one key for all tensors of a step": Leak(recorded(one_key), _REUSED),
        "add-remove epsilon claimed of replaced records": Leak(
            recorded(fresh, adjacency="replace"), ("accounted epsilon", "noise", "adjacency", "")
        ),
    },
    "Correlated noise": {
        **{
            f"{count} rows without noise": Leak(banded(silent(count)), ("rows without noise",))
            for count in (1, 2)
        },
        "one row with half the noise": Leak(banded(halved), ("noise by row",)),
        **{
            f"{count} rows with the noise of an earlier row": Leak(
                banded(used_again(count)), ("repeated noise",)
            )
            for count in (1, 4, 16)
        },
        "noise of every second row rolled by one coordinate": Leak(
            banded(rolled), ("noise reused at other coordinates",)
        ),
    },
    "Servers": {
        "updates below three clip norms unclipped": Leak(
            server("near-unclipped"), ("update norms", "honest updates")
        ),
        "norm that overflows in half precision": Leak(
            server("half-precision-norm"), ("update norms",)
        ),
        "clipped by layer": Leak(server("clipped-by-layer"), ("update norms", "honest updates")),
        "one client added twice": Leak(
            server("client-twice"), ("single clients", "honest updates")
        ),
        "half of the noise": Leak(server("half-server-noise"), ("noise scale",)),
    },
    "Monitors": {
        "epsilon 1 claimed": Leak(monitored(epsilon=1.0), ("alarm by epsilon",)),
        "1,000 steps where 100 were claimed": Leak(
            monitored(rate=0.1, claimed_rate=0.1, steps=1000),
            ("alarm by steps", "alarm by epsilon"),
        ),
        "rate 0.5 where 0.1 was claimed": Leak(
            monitored(rate=0.5, claimed_rate=0.1), ("alarm by epsilon", "alarm by rate")
        ),
    },
}

CORRECT: dict[str, Run] = {
    "own loop": recorded(fresh),
    "banded strategy with sampling": banded(lambda draws, chance: None),
    "server": server(None),
}
