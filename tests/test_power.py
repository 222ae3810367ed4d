"""Power: against simulated audits, and each unknown against the power it should give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting, power
from askgauss.auditors import GaussianShift, OneRun, SubsampledGaussian
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.simulation import simulate_dpsgd, simulate_scores

PLAN = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "present": 2500,
    "absent": 2500,
    "steps": 2500,
    "sampling_rate": 0.08192,
    "alternative": 1.25,
    "confidence": 0.95,
    "power": 0.8,
}


def solved(name, auditor=None, **changes):
    return power.solve(**PLAN | changes | {name: None}, auditor=auditor)


def test_power_known_from_elsewhere():
    """2500 / 2500 at epsilon 1 has .68, and 2500 / 250000 has .91."""
    assert solved("power", GaussianShift()).power == pytest.approx(0.68, abs=0.01)
    more = solved("power", GaussianShift(), absent=250_000)
    assert more.power == pytest.approx(0.91, abs=0.01)


CASES = [
    (GaussianShift(), "present", {"absent": 3000, "alternative": 5.0}),
    (GaussianShift(), "absent", {"present": 3000, "alternative": 5.0}),
    (GaussianShift(), "steps", {"present": 300, "absent": 300, "alternative": 5.2}),
    (GaussianShift(), "alternative", {"present": 300, "absent": 300}),
    (SubsampledGaussian(), "present", {"absent": 100, "alternative": 4.4}),
    (SubsampledGaussian(), "absent", {"present": 200, "alternative": 4.4}),
    (SubsampledGaussian(), "steps", {"present": 300, "absent": 300, "alternative": 4.4}),
    (SubsampledGaussian(), "alternative", {"present": 50, "absent": 50}),
]


@pytest.mark.parametrize(("auditor", "name", "changes"), CASES, ids=lambda case: str(case)[:20])
def test_what_is_found_gives_the_power_and_a_little_less_does_not(auditor, name, changes):
    changes = changes | {"epsilon": 4.0}
    plan = solved(name, auditor, **changes)
    assert plan.power >= 0.8
    value = getattr(plan, name)
    less = value - 0.005 if name == "alternative" else value - 1
    if less < {"present": 2, "absent": 2, "steps": 1, "alternative": plan.epsilon}[name]:
        return  # the least there can be is enough
    known = PLAN | changes | {name: less}
    assert power.solve(**known | {"power": None}, auditor=auditor).power < 0.8


@pytest.mark.calibration
def test_power_of_the_shift_is_that_of_simulated_audits():
    """400 audits; off by 5 standard errors with probability 6e-7."""
    plan = solved("power", GaussianShift(), epsilon=4.0, alternative=5.0, present=60, absent=60)
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=5.0, delta=1e-5, sampling_rate=0.08192, steps=2500
    )
    noticed = [
        ag.audit(
            simulate_scores(
                steps=2500,
                sampling_rate=0.08192,
                noise_multiplier=noise,
                present=60,
                absent=60,
                seed=seed,
            ),
            delta=1e-5,
            diagnostics=False,
        ).epsilon_lower
        > 4.0
        for seed in range(400)
    ]
    assert 0.2 < plan.power < 0.8
    assert np.mean(noticed) == pytest.approx(plan.power, abs=5 * 0.5 / 20)


def test_methods_without_a_law_are_simulated():
    plan = solved(
        "power", OneRun(), epsilon=0.2, alternative=6.0, present=300, absent=300, steps=100
    )
    assert plan.power > 0.9
    none = solved("power", OneRun(), epsilon=4.0, alternative=6.0, present=50, absent=50, steps=100)
    assert none.power < 0.1


def test_no_number_is_large_enough():
    """With two absent canaries no number of present ones tells one epsilon from the next."""
    with pytest.raises(UnsupportedError, match="found none"):
        solved("present", GaussianShift(), absent=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "exactly one of present, absent, .* got none"),
        ({"present": None, "power": None}, "got present, power"),
        ({"power": None, "alternative": 0.9}, r"alternative above the claim of 1, got 0\.9"),
        ({"alternative": None, "power": 0.01}, r"power in \(0\.05, 1\)"),
        ({"power": None, "present": 1}, "present "),
        ({"power": None, "confidence": 0.4}, "confidence"),
        ({"power": None, "sampling_rate": 0.0}, "sampling_rate"),
    ],
)
def test_arguments(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        power.solve(**PLAN | changes)


def test_a_plan_reads_as_a_sentence():
    told = str(solved("present", epsilon=8.0, alternative=10.0))
    assert told.startswith("With ")
    assert "subsampled-gaussian would contradict a claim of epsilon 8 at delta 1e-05" in told


def test_a_plan_says_where_its_result_could_not_be_published():
    few = solved("present", epsilon=8.0, alternative=10.0)
    assert ("must not be published" in str(few)) == (few.present < 30)
    assert "must not be published" in str(replace(few, present=29))
    assert "must not be published" in str(replace(few, absent=29))
    assert "must not be published" not in str(replace(few, present=30, absent=30))


class TestSmallestLeak:
    run = simulate_dpsgd(
        steps=200, sampling_rate=0.1, noise_multiplier=2.0, present=200, absent=200, seed=0
    )
    claim = ag.PrivacyClaim(
        epsilon=accounting.dpsgd_epsilon(
            noise_multiplier=2.0, sampling_rate=0.1, steps=200, delta=1e-5
        ),
        delta=1e-5,
    )

    @pytest.mark.parametrize("auditor", [None, GaussianShift()], ids=["transcript", "scores"])
    def test_it_is_where_power_reaches_four_fifths(self, auditor):
        result = ag.audit(self.run, claim=self.claim, auditor=auditor)
        leak = result.smallest_leak
        assert leak > self.claim.epsilon
        for true, above in ((1.01 * leak, True), (0.98 * leak, False)):
            chance = result.auditor.power(
                result.evidence,
                epsilon=self.claim.epsilon,
                true_epsilon=true,
                delta=1e-5,
                error=result.gate_error / 2,
            )
            assert (chance >= 0.8) == above
        assert f"a true epsilon of {leak:.4g} in 80% of audits" in str(result)
        assert ag.AuditResult.from_json(result.to_json()) == result

    def test_none_where_it_means_nothing(self):
        assert ag.audit(self.run, delta=1e-5).smallest_leak is None
        refuted = ag.PrivacyClaim(epsilon=0.1, delta=1e-5)
        assert ag.audit(self.run, claim=refuted).smallest_leak is None
        slow = ag.audit(self.run.scores(), claim=self.claim, auditor=ag.GaussianRectangle())
        assert slow.smallest_leak is None
