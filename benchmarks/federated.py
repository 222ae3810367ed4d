"""Canary clients: how near the bound comes to the claim, and what a round costs with them.

Prints the figures of docs/federated.md: ``python -m benchmarks.federated``, or a part by its name.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.special import ndtri

import askgauss as ag
from askgauss.federated import AuditedAggregator, Server, simulate_federated
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.sampling import EveryStep

ROUNDS, DELTA, RUNS = 100, 1e-5, 20
NOISES = (1.0, 2.0, 6.1)


def main(names: list[str]) -> None:
    parts = {part.__name__: part for part in (best_possible, tightness, coverage, server_side)}
    parts["overhead"] = overhead
    for name in names or parts:
        parts[name]()


def server_side() -> None:
    """DP-FTRL at the server: bounds of two correct runs of each mechanism."""
    rounds, epsilon = 64, 8.0
    limits = {"participations": 4, "min_separation": 16}
    restarts = {"steps": rounds, "restart_every": 16, **limits}
    banded = BandedStrategy.toeplitz([1.0, 0.5, 0.35, 0.3], rounds, **limits)
    noise = TreePlan(**restarts).noise_multiplier(epsilon=epsilon, delta=DELTA)
    plans = {
        "plain tree, restarts": (TreePlan(release="prefixes", **restarts), noise),
        "Honaker tree, restarts": (
            TreePlan(release="prefixes", estimator="honaker", **restarts),
            noise,
        ),
        "banded, 4 participations": (
            banded,
            banded.noise_multiplier(epsilon=epsilon, delta=DELTA),
        ),
    }
    for name, (plan, multiplier) in plans.items():
        claim = ag.PrivacyClaim(
            epsilon=epsilon, delta=DELTA, noise_multiplier=multiplier, steps=rounds, unit="user"
        )
        for seed in (1, 2):
            run = simulate_federated(
                rounds=rounds,
                clients=12,
                dimension=2700,
                present=1000,
                absent=1500,
                noise_multiplier=multiplier,
                plan=plan,
                seed=seed,
            )
            result = ag.audit(run, claim=claim)
            print(
                f"{name}, run {seed}: bound {result.epsilon_lower:.2f} of 8, {result.verdict.value}"
            )


def best_possible() -> None:
    """The mean bound of a test that knows the noise: scores N(mu, 1), one a present canary."""
    levels = (np.arange(400) + 0.5) / 400
    for noise in NOISES:
        mu = np.sqrt(ROUNDS) / noise
        epsilon = ag.gaussian.gdp_epsilon(DELTA, mu)

        def share(present: int, mu: float = mu, epsilon: float = epsilon) -> float:
            lower = mu + (ndtri(levels) - ndtri(0.95)) / np.sqrt(present)
            positive = lower[lower > 0.0]
            return float(ag.gaussian.gdp_epsilon(DELTA, positive).sum()) / (400 * epsilon)

        enough = next(count for count in range(1, 1000) if share(count) >= 0.9)
        print(
            f"noise {noise}: epsilon {epsilon:.2f}, best mean bound with 50 present "
            f"{share(50):.3f} of it; .90 needs {enough}"
        )


def tightness() -> None:
    law = EveryStep()
    for noise in NOISES:
        epsilon = law.epsilon(noise_multiplier=noise, steps=ROUNDS, delta=DELTA)
        claim = ag.PrivacyClaim(
            epsilon=epsilon,
            delta=DELTA,
            noise_multiplier=noise,
            steps=ROUNDS,
            sampling=law,
            unit="user",
        )
        shares, verdicts = [], []
        for seed in range(RUNS):
            run = simulate_federated(
                rounds=ROUNDS, clients=8, dimension=1100, noise_multiplier=noise, seed=seed
            )
            result = ag.audit(run, claim=claim)
            shares.append(result.epsilon_lower / epsilon)
            verdicts.append(result.verdict.value)
        counts = {name: verdicts.count(name) for name in sorted(set(verdicts))}
        print(f"noise {noise}: claimed {epsilon:.2f}, mean bound {np.mean(shares):.3f}, {counts}")


def coverage(runs: int = 300, noise: float = 2.0) -> None:
    epsilon = EveryStep().epsilon(noise_multiplier=noise, steps=ROUNDS, delta=DELTA)
    shares = []
    for seed in range(100, 100 + runs):
        server = AuditedAggregator(
            Server(noise_multiplier=noise, seed=seed + 5000),
            dimension=1050,
            present=50,
            absent=950,
            clip_norm=1.0,
            noise_multiplier=noise,
            probes=False,
            seed=seed,
        )
        rng = np.random.default_rng(seed)
        for _ in range(ROUNDS):
            server([rng.normal(0, 0.05, 1050)], [3])
        shares.append(server.result(delta=DELTA, diagnostics=False).epsilon_lower / epsilon)
    found = np.array(shares)
    print(
        f"{runs} runs of epsilon {epsilon:.1f}: mean bound {found.mean():.3f} of it, at least .9 "
        f"in {np.mean(found >= 0.9):.1%}, above it in {np.mean(found > 1.0):.1%}"
    )


def overhead() -> None:
    rng = np.random.default_rng(0)
    for clients, dimension in ((10_000, 2_000), (500, 50_000)):
        updates = list(rng.normal(0, 0.1, (clients, dimension)))
        weights = rng.integers(1, 100, clients).tolist()
        server = Server(noise_multiplier=2.0)
        audited = AuditedAggregator(
            Server(noise_multiplier=2.0),
            dimension=dimension,
            present=50,
            absent=950,
            clip_norm=1.0,
            noise_multiplier=2.0,
            probes=False,
            seed=0,
        )
        plain = _seconds(lambda: server(updates, weights))  # noqa: B023
        whole = _seconds(lambda: audited(updates, weights))  # noqa: B023
        examples = rng.normal(size=(100, dimension))
        local = clients * _seconds(lambda: _local_training(examples))  # noqa: B023
        print(
            f"{clients:,} clients of {dimension:,} entries: aggregation {plain:.2f} s, audited "
            f"{whole:.2f} s, local training {local:.1f} s; {(whole - plain) / (plain + local):.2%} "
            "of a round"
        )


def _local_training(examples: np.ndarray) -> None:
    """Five passes of gradient descent over the examples of a linear model."""
    model = np.zeros(examples.shape[1])
    for _ in range(5):
        model -= 0.1 * examples.T @ (examples @ model - 1.0)


def _seconds(work) -> float:
    work()
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main(sys.argv[1:])
