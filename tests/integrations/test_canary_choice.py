"""The numbers of canaries that an audit chooses are enough for a verdict, where there is room."""

from __future__ import annotations

import pytest

from askgauss import accounting, policy, power
from askgauss.integrations.canary_choice import default_numbers

# Parameters, records, batch size, steps, claim: runs of a few hundred steps as people have them.
RUNS = {
    "a small network on pictures": (38_000, 20_000, 256, 300, 8.0),
    "a perceptron": (101_770, 10_000, 128, 500, 3.0),
    "a strict claim": (101_770, 10_000, 128, 400, 1.0),
    "few trained parameters": (2_562, 4_000, 64, 300, 8.0),
    "few of them and a stricter claim": (2_562, 4_000, 64, 300, 3.0),
    "a hundred steps": (101_770, 6_000, 200, 100, 8.0),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("told", [False, True], ids=["steps unsaid", "steps planned"])
def test_a_default_audit_of_a_few_hundred_steps_has_enough_power(run, told):
    parameters, records, batch, steps, epsilon = RUNS[run]
    rate = 1.0 / -(-records // batch)
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=epsilon, delta=1e-5, sampling_rate=rate, steps=steps
    )
    present, absent = default_numbers(
        parameters, records, rows=True, sampling_rate=rate, noise_multiplier=noise,
        planned_steps=steps if told else None,
    )  # fmt: skip
    planned = power.solve(
        epsilon=epsilon, delta=1e-5, present=present, absent=absent, steps=steps,
        sampling_rate=rate, alternative=1.25 * epsilon, power=None,
    )  # fmt: skip
    assert planned.power >= policy.ENOUGH_POWER
    # No more of them than a training can carry.
    assert present <= min(records // 4, parameters // 6)
