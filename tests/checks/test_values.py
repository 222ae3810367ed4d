"""Checks of single values, of correlations and of the sampler in time, on runs of their own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.checks import diagnose
from askgauss.checks.context import Context
from askgauss.results import Status, Verdict

STEPS, RATE, PRESENT, ABSENT = 100, 0.1, 120, 200


def recorded(release, *, seed=0, noise=1.0, clip_norm=1.0, steps=STEPS):
    """A run that releases what ``release`` makes of fresh noise, the plantings and the step."""
    canaries = ag.DiracCanaries(present=PRESENT, absent=ABSENT, dimension=400, seed=seed)
    recorder = ag.Recorder(
        canaries, sampling_rate=RATE, noise_multiplier=noise, clip_norm=clip_norm
    )
    rng = np.random.default_rng([seed, 7])
    for step in range(steps):
        planted = np.zeros(canaries.size)
        planted[recorder.sample()] = clip_norm
        fresh = noise * clip_norm * rng.standard_normal(canaries.size)
        recorder.observe(release(fresh, planted, step), background=0.0)
    return recorder.transcript()


def claim(noise=1.0, steps=STEPS):
    run = {"noise_multiplier": noise, "sampling_rate": RATE, "steps": steps}
    return ag.PrivacyClaim(epsilon=accounting.dpsgd_epsilon(**run, delta=1e-5), delta=1e-5, **run)


def failed(transcript, **options):
    findings = diagnose(transcript, claim=claim(**options))
    return {item.check for item in findings if item.status in (Status.FAIL, Status.WARN)}


def by_name(transcript):
    return {item.check: item for item in diagnose(transcript, claim=claim())}


def test_nothing_is_found_where_nothing_is_wrong():
    found = by_name(recorded(lambda fresh, planted, step: fresh + planted))
    assert not [item for item in found.values() if item.status in (Status.FAIL, Status.WARN)]
    for name in ("noise scale", "contribution", "noise by coordinate", "planted noise"):
        assert found[name].sees
    assert found["whole-run correlation"].sees


def test_texts_of_what_passed_do_not_accuse():
    for seed in range(3):
        run = recorded(lambda fresh, planted, step: fresh + planted, seed=seed)
        for item in by_name(run).values():
            if item.status is Status.PASS:
                assert "implies" not in item.summary
                assert "beyond chance" not in item.summary
                assert item.remedy == ""


def test_a_single_planting_too_many():
    def once(fresh, planted, step):
        if step == 50:
            planted[np.flatnonzero(planted)[:1]] = 9.0
        return fresh + planted

    assert failed(recorded(once)) == {"single plantings"}


def test_one_value_that_is_no_noise():
    def once(fresh, planted, step):
        fresh[~(planted > 0)] += 9.0 * (np.arange((planted == 0).sum()) == 3) * (step == 20)
        return fresh + planted

    assert "noise extremes" in failed(recorded(once))


def test_a_schedule_is_judged_in_its_own_units():
    """The noise of every step is a tenth of that of the first after ten steps, and declared."""
    noise = np.repeat([10.0, 1.0], [10, STEPS - 10])
    canaries = ag.DiracCanaries(present=PRESENT, absent=ABSENT, dimension=400, seed=4)
    recorder = ag.Recorder(canaries, sampling_rate=RATE)
    rng = np.random.default_rng(4)
    for scale in noise:
        released = scale * rng.standard_normal(canaries.size)
        released[recorder.sample()] += 1.0
        recorder.observe(released, background=0.0, noise_multiplier=scale)
    history = [(float(scale), RATE, 1) for scale in noise]
    kept = ag.PrivacyClaim(epsilon=accounting.history_epsilon(history, 1e-5), delta=1e-5)
    result = ag.audit(recorder.transcript(), claim=kept)
    assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)
    assert not [i for i in result.findings if i.status in (Status.FAIL, Status.WARN)]


class TestLattice:
    def test_whole_numbers_are_discrete_noise_and_no_short_format(self):
        run = recorded(lambda fresh, planted, step: np.rint(fresh + planted), clip_norm=10.0)
        context = Context(run, claim())
        assert context.lattice == pytest.approx(1.0, rel=1e-6)
        assert context.spacing_in_deviations == pytest.approx(0.1, rel=0.02)
        assert not failed(run)
        assert "even lattice" in by_name(run)["noise precision"].summary

    @pytest.mark.parametrize("spacing", [0.3, 0.01, 0.002])
    def test_so_is_any_even_lattice(self, spacing):
        run = recorded(lambda fresh, planted, step: spacing * np.rint((fresh + planted) / spacing))
        assert Context(run, claim()).lattice == pytest.approx(spacing, rel=1e-4)
        assert not failed(run)

    @pytest.mark.parametrize("drawn", [True, False], ids=["drawn on it", "rounded to it"])
    def test_a_lattice_as_coarse_as_the_noise(self, drawn):
        """Zeros are many by either law, and none of them lacks its noise."""
        generator, places = np.random.default_rng(1), np.arange(-12, 13)
        mass = np.exp(-0.5 * places**2)

        def coarse(fresh, planted, step):
            noise = generator.choice(places, fresh.shape, p=mass / mass.sum())
            return planted + (noise if drawn else np.rint(fresh))

        assert "values without noise" not in failed(recorded(coarse))

    @pytest.mark.parametrize("bits", [8, 11])
    def test_a_short_format_is_named(self, bits):
        def short(fresh, planted, step):
            mantissa, exponent = np.frexp(fresh)
            return np.ldexp(np.rint(mantissa * 2**bits), exponent - bits) + planted

        run = recorded(short)
        assert Context(run, claim()).lattice == 0.0
        assert "noise precision" in failed(run)

    def test_ordinary_noise_lies_on_none(self):
        for precision in (np.float32, np.float64):
            run = recorded(lambda fresh, planted, step, p=precision: (fresh + planted).astype(p))
            assert Context(run, claim()).lattice == 0.0


class TestSampler:
    def run(self, sampler, *, seed=0, steps=200, present=100):
        canaries = ag.DiracCanaries(present=present, absent=100, dimension=300, seed=seed)
        recorder = ag.Recorder(canaries, noise_multiplier=1.0, poisson=True, records=present)
        rng, members = np.random.default_rng([seed, 3]), np.flatnonzero(canaries.member)
        for step in range(steps):
            drawn = members[sampler(rng, members.size, step)]
            released = rng.standard_normal(canaries.size)
            released[drawn] += 1.0
            recorder.observe(released, background=0.0, planted=drawn, batch_size=drawn.size)
        transcript = recorder.transcript()
        return transcript.with_facts(replace(transcript.facts, accounted_sampling_rate=RATE))

    @staticmethod
    def poisson(rng, size, step):
        return rng.random(size) < RATE

    def test_returns_are_counted_as_one_by_one(self):
        run = self.run(self.poisson, steps=40)
        finding = {item.check: item for item in diagnose(run)}["sampling in time"]
        flags = run.kept_planted[:, run.member[run.kept]]
        first = flags[:-1].sum()  # everyone drawn, but in the last step, gets a coin in the next
        again = (flags[1:] & flags[:-1]).sum()
        assert run.steps.gaps[0] == again
        rate = run.canaries.planted.sum() / (100 * 40)
        if "again 1 steps" in finding.summary:
            assert finding.claimed == pytest.approx(rate * first)

    def test_are_at_most_nominal(self):
        p_values = {"sampling in time": [], "batch sizes": []}
        for seed in range(150):
            for item in diagnose(self.run(self.poisson, seed=seed, steps=40, present=60)):
                if item.check in p_values:
                    p_values[item.check].append(item.p_value)
        for found in p_values.values():
            for level in (0.3, 0.1, 0.02):
                assert np.mean(np.array(found) <= level) < level + 3.5 * math.sqrt(level / 150)

    def test_groups_that_take_turns(self):
        def cyclic(rng, size, step):
            return (np.arange(size) % 4 == step % 4) & (rng.random(size) < 4 * RATE)

        assert "sampling in time" in failed(self.run(cyclic))

    def test_batches_of_one_size(self):
        def fixed(rng, size, step):
            return np.isin(np.arange(size), rng.permutation(size)[: round(RATE * size)])

        assert "batch sizes" in failed(self.run(fixed))

    def test_batches_that_are_larger_than_accounted_for(self):
        def more(rng, size, step):
            return rng.random(size) < 1.3 * RATE

        found = {item.check: item for item in diagnose(self.run(more), claim=claim(steps=200))}
        assert found["batch sizes"].status is Status.FAIL
        assert "implies epsilon" in found["batch sizes"].summary


def test_numbers_of_numpy_are_numbers():
    run = recorded(lambda fresh, planted, step: fresh + planted)
    plain = claim()
    numpys = ag.PrivacyClaim(
        epsilon=np.float64(plain.epsilon),
        delta=np.float64(1e-5),
        noise_multiplier=np.float64(1.0),
        sampling_rate=np.float64(RATE),
        steps=np.int64(STEPS),
    )
    one, other = (ag.audit(run, claim=item) for item in (plain, numpys))
    assert other.verdict is one.verdict
    assert other.epsilon_lower == one.epsilon_lower
    assert ag.AuditResult.from_json(other.to_json()).findings == other.findings


@pytest.mark.parametrize("follows", [False, True])
def test_noise_that_follows_the_size_of_the_batch(follows):
    """Batches of 2,000 give or take 42: too little to show from step to step, enough to give away.

    A correct run fails for one seed in a thousand; its p-value is below .01 for one in a hundred.
    """
    draw = np.random.default_rng(1)
    canaries = ag.DiracCanaries(present=100, absent=900, dimension=1200, seed=1)
    recorder = ag.Recorder(canaries, sampling_rate=0.1, noise_multiplier=1.2, records=20_000)
    for _ in range(150):
        size = int(draw.binomial(20_000, 0.1))
        released = 1.2 * (size / 2_000 if follows else 1.0) * draw.standard_normal(canaries.size)
        released[recorder.sample()] += 1.0
        recorder.observe(released, background=0.0, batch_size=size)
    claim = ag.PrivacyClaim(
        epsilon=6.2, delta=1e-5, noise_multiplier=1.2, sampling_rate=0.1, steps=150
    )
    result = ag.audit(recorder.transcript(), claim=claim)
    item = next(item for item in result.findings if item.check == "noise and batch size")
    low, high = item.interval
    assert low < float(follows) < high
    if follows:
        assert item.status is Status.FAIL
        assert result.verdict in (ag.Verdict.INVALID, ag.Verdict.VIOLATION)
    else:
        assert item.p_value > 0.01
        assert result.verdict not in (ag.Verdict.INVALID, ag.Verdict.VIOLATION)
