"""The first noise against the likely seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.checks.noise_reuse import likely_seeds, numpy_candidates, try_seeds
from askgauss.recording.facts import SeedProbe
from askgauss.recording.transcript import Transcript

PLACES = np.random.default_rng(5).permutation(500)[:40]


def probe(noise: np.ndarray, own: tuple[int, ...] = ()) -> SeedProbe:
    return try_seeds(noise, numpy_candidates(PLACES, likely_seeds(own)))


@pytest.mark.parametrize("seed", [0, 7, 1023, 1337, 2**31 - 1])
@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda seed: np.random.default_rng(seed).standard_normal(500), "default_rng"),
        (
            lambda seed: np.random.default_rng(seed).standard_normal(500, dtype=np.float32),
            "single precision",
        ),
        (lambda seed: np.random.RandomState(seed).standard_normal(500), "numpy.random.seed"),
    ],
)
def test_a_likely_seed_is_found_in_any_scale(seed, draw, name):
    found = probe(3.7 * draw(seed)[PLACES].astype(np.float64)).found
    assert f"({seed})" in found
    assert name in found


def test_the_runs_own_seed_is_tried():
    noise = np.random.default_rng(987_654_321_987).standard_normal(500)[PLACES]
    assert not probe(noise).found
    assert "(987654321987)" in probe(noise, (987_654_321_987,)).found


def test_other_noise_is_no_seeds():
    # Of a correct run a likeness of .995 between 16 numbers has a probability below 1e-11.
    for seed in range(5):
        noise = np.random.default_rng([seed, 99]).standard_normal(40)
        answer = probe(noise)
        assert not answer.found
        assert answer.tried > 1024
        assert len(answer.ways) == 3


@pytest.mark.parametrize("noise", [np.zeros(40), np.full(40, np.nan), np.ones(3)])
def test_noise_that_says_nothing_is_not_compared(noise):
    assert try_seeds(noise, numpy_candidates(PLACES[: noise.size], likely_seeds())).tried == 0


def run(answer: SeedProbe | None) -> Transcript:
    recorded = ag.simulate_dpsgd(
        steps=60, sampling_rate=0.3, noise_multiplier=2.0, present=100, absent=200, seed=0
    )
    return recorded.with_facts(replace(recorded.facts, seed_probe=answer))


def test_the_finding_breaks_a_claim_and_survives_a_file(tmp_path):
    claim = ag.PrivacyClaim(epsilon=6.0, delta=1e-5)
    transcript = run(SeedProbe(tried=1050, ways=("a",), found="jax.random.key(0)"))
    transcript.save(tmp_path / "run.npz")
    again = Transcript.load(tmp_path / "run.npz")
    assert again.facts.seed_probe == transcript.facts.seed_probe
    result = ag.audit(again, claim=claim)
    assert result.verdict is ag.Verdict.VIOLATION
    # The way is told; the seed, by which whoever reads the result would know all noise, is not.
    assert "1,050 common seeds of jax.random.key:" in result.reason
    assert "key(0)" not in result.to_json() + result.to_html() + result.to_junit() + str(result)
    assert "seed_probe.found" in next(f.remedy for f in result.findings if f.remedy)
    assert "key(0)" not in repr(again.facts)
    broken = {part.name for part in result.scope if part.status == "broken"}
    assert broken == {"noise freshness"}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (None, None),
        (SeedProbe(tried=0), "not run"),
        (SeedProbe(tried=1050, ways=("a", "b")), "pass"),
    ],
)
def test_nothing_found_is_no_failure(answer, status):
    findings = {item.check: item for item in ag.audit(run(answer), delta=1e-5).findings}
    found = findings.get("predictable noise")
    assert (None if found is None else found.status.value.replace("_", " ")) == status
