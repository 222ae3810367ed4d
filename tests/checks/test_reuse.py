"""Noise used again in loops of one's own, where only some coordinates are seen."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.results import Status

NAME = "noise reused at other coordinates"
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.0, sampling_rate=0.2)
SIZES = (400, 400, 400)


def drawn(root):
    return np.random.default_rng(root).normal(0.0, 2.0, SIZES[0])


def by_layer(lag, sign=1.0):
    """Seeds that are sums of step and layer, which is then found some steps later."""

    def noise(step, seed, last):
        return np.concatenate(
            [sign**layer * drawn(1000 * seed + step + lag * layer) for layer in range(3)]
        )

    return noise


def fresh(step, seed, last):
    return np.concatenate([drawn([seed, step, layer]) for layer in range(3)])


def rolled(step, seed, last):
    return fresh(step, seed, last) if last is None else np.roll(last, 1)


def reversed_every_second(step, seed, last):
    return -last[::-1] if step % 2 else fresh(step, seed, last)


def one_key_a_step(step, seed, last):
    return np.concatenate([drawn([seed, step])] * 3)


def repeated(step, seed, last):
    return last if step % 2 else fresh(step, seed, last)


def on_a_grid(spacing):
    return lambda step, seed, last: np.rint(fresh(step, seed, last) / spacing) * spacing


def audited(noise, seed=1, steps=60):
    canaries = ag.DiracCanaries(present=20, absent=100, tensors=SIZES, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=0.2, noise_multiplier=2.0)
    records, last = np.random.default_rng(seed), None
    for step in range(steps):
        total = records.normal(0.0, 1.0, sum(SIZES)).astype(np.float32)
        background = canaries.project(total)
        canaries.plant(total, recorder.sample(), clip_norm=1.0)
        last = noise(step, seed, last)
        released = total + last.astype(np.float32)
        recorder.observe(
            canaries.project(released), background=background,
            watch=(released - total)[canaries.watch],
        )  # fmt: skip
    return ag.audit(recorder.transcript(), claim=CLAIM)


def finding(result):
    return next((item for item in result.findings if item.check == NAME), None)


@pytest.mark.parametrize(
    "noise",
    [by_layer(1), by_layer(3), by_layer(1, -1.0), rolled, reversed_every_second],
    ids=["next step", "third step", "negated", "rolled", "reversed"],
)
def test_reuse_in_other_tensors_and_steps_is_a_violation(noise):
    for seed in (1, 2):
        result = audited(noise, seed)
        assert result.verdict is ag.Verdict.VIOLATION
        assert result.reason.startswith(NAME)


def test_where_it_was_used_again_is_said():
    assert "was reused in step 2 in tensor" in finding(audited(by_layer(1))).summary


def test_correct_runs_say_what_share_was_compared():
    for seed in range(5):
        found = finding(audited(fresh, seed))
        assert found.status is Status.PASS
        assert "10 % of the model" in found.sees
        # So little of the model does not make the part tested by itself.
        assert found.visible > 0.8


@pytest.mark.parametrize("spacing", [2.0**-8, 0.25, 1.0, 3.0])
def test_noise_on_a_grid_is_no_noise_used_again(spacing):
    for seed in (0, 1):
        found = finding(audited(on_a_grid(spacing), seed))
        assert found is None or found.status in (Status.NOT_RUN, Status.PASS)


@pytest.mark.parametrize(
    ("noise", "name"), [(one_key_a_step, "shared noise"), (repeated, "repeated noise")]
)
def test_reuse_within_a_step_or_at_the_same_coordinates_keeps_its_name(noise, name):
    result = audited(noise)
    assert result.verdict is ag.Verdict.VIOLATION
    assert result.reason.startswith(name)
    assert finding(result) is None


@pytest.mark.parametrize("change", [lambda last: -last[::-1], lambda last: np.roll(last, 1)])
def test_watched_places_show_noise_that_is_reversed_or_shifted_in_large_tensors(change):
    """Hardly any two observed canaries lie at places that such noise has in common."""
    for seed in (1, 2):
        canaries = ag.DiracCanaries(present=20, absent=100, tensors=(20_000,) * 3, seed=seed)
        recorder = ag.Recorder(canaries, sampling_rate=0.2, noise_multiplier=2.0)
        chance, noise = np.random.default_rng(seed), np.zeros(0)
        for step in range(40):
            recorder.sample()
            noise = change(noise) if step % 2 else chance.normal(0.0, 2.0, 60_000)
            observed = canaries.project(noise)
            recorder.observe(observed, background=0.0, watch=noise[canaries.watch])
        result = ag.audit(recorder.transcript(), claim=CLAIM)
        assert finding(result).status is Status.FAIL
        assert "1 step later" in finding(result).summary
