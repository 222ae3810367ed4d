"""A short part of the gate's calibration; the numbers in docs/faults.md are from ``make faults``.

Seeds are fixed. Over the choice of the seed a gate exactly at its error fails a case with
probability 1e-4.
"""

from __future__ import annotations

import pytest

from tests.calibration.gate import SETTINGS, Setting, count_alarms


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_correct_runs_raise_no_more_alarms_than_the_gate_error(setting):
    """At a gate error of one tenth, so that few runs are enough to see it exceeded."""
    alarms = count_alarms(setting, 6, gate_error=0.1, seed=100)
    assert alarms.false <= alarms.allowed(0.1), alarms


def test_at_the_default_gate_error_there_is_none():
    alarms = count_alarms(SETTINGS[0], 4, gate_error=0.001, seed=300)
    assert alarms.false == 0, alarms
    assert not alarms.checks


def test_the_count_would_notice_a_gate_that_lets_too_many_through():
    """A claim of four fifths of the truth is refused almost always."""

    class Bold(Setting):
        @property
        def claim(self):
            honest = Setting.claim.fget(self)
            return type(honest)(epsilon=0.8 * honest.epsilon, delta=honest.delta)

    bold = Bold(400, 400, 60, 0.2, 1.0)
    alarms = count_alarms(bold, 8, gate_error=0.1, seed=1)
    assert alarms.false > alarms.allowed(0.1)
