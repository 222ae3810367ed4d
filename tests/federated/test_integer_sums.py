"""Secure aggregation: updates are rounded to a lattice, summed in integers, noise is discrete."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.federated import AuditedAggregator
from askgauss.results import Status, Verdict
from askgauss.sampling import EveryStep

ROUNDS, NOISE, CLIP, DIMENSION, DELTA = 40, 1.5, 0.5, 600, 1e-5


class SecureSum:
    """Sums of integers modulo a power of two, written apart from the package's own servers."""

    def __init__(self, levels: int, share: float = 1.0) -> None:
        self.levels, self.rng = levels, np.random.default_rng(1)
        deviation = share * NOISE * levels
        reach = int(12 * deviation) + 2
        self.places = np.arange(-reach, reach + 1)
        mass = np.exp(-(self.places**2) / (2.0 * deviation**2))
        self.mass = mass / mass.sum()

    def __call__(self, updates, weights):
        total = np.zeros(DIMENSION, dtype=np.int64)
        for update in updates:
            kept = np.where(np.isfinite(update), update, 0.0)
            exact = kept * min(1.0, CLIP / max(np.linalg.norm(kept), 1e-300)) / CLIP * self.levels
            low = np.floor(exact)
            total += (low + (self.rng.random(DIMENSION) < exact - low)).astype(np.int64)
        total += self.rng.choice(self.places, size=DIMENSION, p=self.mass)
        wrapped = (total + 2**30) % 2**31 - 2**30
        return wrapped * (CLIP / self.levels) / len(updates)


def audit_of(levels: int, honest: float, share: float = 1.0):
    run = AuditedAggregator(
        SecureSum(levels, share), dimension=DIMENSION, present=40, absent=300, clip_norm=CLIP,
        noise_multiplier=NOISE, seed=3,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    for _ in range(ROUNDS):
        run([rng.normal(0.0, honest / DIMENSION**0.5, DIMENSION) for _ in range(8)], [1] * 8)
    epsilon = EveryStep().epsilon(noise_multiplier=NOISE, steps=ROUNDS, delta=DELTA)
    claim = ag.PrivacyClaim(
        epsilon=epsilon, delta=DELTA, noise_multiplier=NOISE, steps=ROUNDS, unit="user"
    )
    return run.result(claim=claim)


@pytest.mark.parametrize("levels", [4, 64])
@pytest.mark.parametrize("honest", [1e-9, 1e-3, 0.3], ids=["none", "little", "much"])
def test_a_correct_integer_sum_is_not_accused(levels, honest):
    """Zero is as crowded as its neighbours: no sign of values without noise.

    A correct run fails with probability .001; seeds are fixed.
    """
    result = audit_of(levels, honest)
    assert result.verdict is Verdict.CONSISTENT, str(result)
    assert not {i.check for i in result.findings if i.status in (Status.FAIL, Status.WARN)}
    assert result.epsilon_lower <= result.claim.epsilon


@pytest.mark.parametrize("levels", [4, 64])
def test_half_of_the_discrete_noise_is_named(levels):
    result = audit_of(levels, 0.3, share=0.5)
    assert result.verdict is Verdict.VIOLATION
    assert "noise scale" in {i.check for i in result.findings if i.status is Status.FAIL}
