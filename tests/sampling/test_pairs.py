"""Every scheme accounted for as every other one: the finding names both, each with its epsilon."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.results import Consequence, Finding, Status
from askgauss.sampling import Scheme, mismatch
from tests.sampling.schemes import every_scheme

STEPS, RECORDS, NOISE, DELTA = 40, 100, 1.0, 1e-5
SCHEMES = every_scheme(RECORDS)


@cache
def recorded(place: int) -> ag.Transcript:
    """A run whose batches are drawn by a scheme, as it declares."""
    scheme = SCHEMES[place]
    canaries = ag.DiracCanaries(present=20, absent=20, dimension=40, seed=1)
    recorder = ag.Recorder(canaries, sampling=scheme, noise_multiplier=NOISE, records=RECORDS)
    rng = np.random.default_rng(2)
    for batch in scheme.draw(np.random.default_rng(3), RECORDS, STEPS):
        released = rng.normal(0.0, NOISE, canaries.size)
        released[recorder.sample()] += 1.0
        recorder.observe(released, background=0 if scheme.known_background else None, batch=batch)
    return recorder.transcript()


def found(place: int, accounted: Scheme, epsilon: float) -> Finding:
    claim = ag.PrivacyClaim(
        epsilon=epsilon, delta=DELTA, noise_multiplier=NOISE, steps=STEPS, sampling=accounted
    )
    findings = diagnose(recorded(place), claim=claim)
    return next(item for item in findings if item.check == "accounted sampling")


@pytest.mark.parametrize(
    ("used", "accounted"), [*itertools.permutations(range(len(SCHEMES)), 2)], ids=str
)
def test_a_scheme_accounted_as_another_is_named_with_both_epsilons(used, accounted):
    pair = mismatch(SCHEMES[accounted], SCHEMES[used], NOISE, STEPS, DELTA)
    finding = found(used, SCHEMES[accounted], pair.claimed)
    assert f"{SCHEMES[used]}, and {SCHEMES[accounted]} was accounted for" in finding.summary
    # The noise is what was measured: near the claimed one, on the side that leaks less.
    assert "it spends epsilon at least" in finding.summary
    assert finding.measured is not None
    assert 0.6 * pair.true_at_least < finding.measured < 1.1 * pair.true_at_least
    breach = finding.measured > 1.005 * pair.claimed
    assert (finding.status is Status.FAIL) == breach
    assert (finding.consequence is Consequence.BREACH) == breach


@pytest.mark.parametrize("used", range(len(SCHEMES)), ids=map(str, SCHEMES))
def test_a_scheme_accounted_as_itself_is_fine(used):
    assert found(used, SCHEMES[used], 99.0).status is Status.PASS
