"""An adaptive clip norm spends budget of its own: the noisy count by which it moves."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError
from askgauss.federated import AuditedAggregator, Server
from askgauss.results import Status
from askgauss.sampling import EveryStep

ROUNDS, DELTA, DEVIATION, BOTH = 30, 1e-5, 1.0, 1.5
# What the updates alone need, so that both have a noise multiplier of BOTH.
UPDATES = (BOTH**-2 - (2.0 * DEVIATION) ** -2) ** -0.5


def judged(told):
    """An adaptive server that claims the epsilon of this noise multiplier."""
    aggregate = AuditedAggregator(
        Server(noise_multiplier=UPDATES, adaptive=True, seed=3),
        dimension=600,
        present=60,
        absent=500,
        clip_norm=lambda server: float(server.clip_norm),
        noise_multiplier=UPDATES,
        count_deviation=DEVIATION,
        seed=4,
    )
    rng = np.random.default_rng(5)
    for _ in range(ROUNDS):
        aggregate(list(rng.normal(0.0, 0.05, (6, 600))), [1.0] * 6)
    claim = ag.PrivacyClaim(
        epsilon=EveryStep().epsilon(noise_multiplier=told, steps=ROUNDS, delta=DELTA),
        delta=DELTA,
        noise_multiplier=told,
        steps=ROUNDS,
        sampling=EveryStep(),
        unit="user",
    )
    found = aggregate.result(claim=claim).findings
    return next(item for item in found if item.check == "accounting of the clipping count")


def test_noise_of_both_is_what_was_accounted_for():
    assert judged(BOTH).status is Status.PASS


def test_a_count_that_nobody_accounted_for_is_named():
    finding = judged(UPDATES)
    assert finding.status is Status.FAIL
    assert "The count was left out" in finding.summary


@pytest.mark.parametrize(
    ("clip_norm", "deviation"), [(lambda server: 1.0, -1.0), (1.0, 2.0)], ids=["negative", "fixed"]
)
def test_what_makes_no_sense_is_refused(clip_norm, deviation):
    with pytest.raises(InvalidArgumentError, match="count_deviation"):
        AuditedAggregator(
            Server(noise_multiplier=1.0),
            dimension=700,
            clip_norm=clip_norm,
            count_deviation=deviation,
        )
