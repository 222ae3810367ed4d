from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from askgauss.checks import gate
from askgauss.checks.gate import apply_gate
from askgauss.checks.registry import fact, judged, not_run
from askgauss.results import Consequence, Finding, Status


def checks(*p_values, consequence=Consequence.INVALIDATES):
    return [
        replace(
            judged(value, "found.", consequence=consequence, remedy="Do it."),
            check=f"check {index}",
        )
        for index, value in enumerate(p_values)
    ]


def statuses(findings, error=0.01):
    return [item.status for item in apply_gate(findings, error)]


def test_holm_steps_down():
    # Thresholds .01/3, .01/2, .01/1.
    assert statuses(checks(0.003, 0.0049, 0.0099)) == [Status.FAIL] * 3
    assert statuses(checks(0.0034, 0.0049, 0.0099)) == [Status.PASS] * 3
    assert statuses(checks(0.003, 0.0051, 0.0099)) == [Status.FAIL, Status.PASS, Status.PASS]


def test_order_and_checks_without_a_p_value_do_not_matter():
    listed = [
        not_run("more"),
        *checks(0.5, 0.001),
        fact(False, "ok.", consequence=Consequence.BREACH),
    ]
    assert statuses(listed) == [Status.NOT_RUN, Status.PASS, Status.FAIL, Status.PASS]


def test_consequences():
    for consequence in Consequence:
        serious = consequence in (Consequence.BREACH, Consequence.INVALIDATES)
        expected = Status.FAIL if serious else Status.WARN
        assert statuses(checks(0.0, consequence=consequence)) == [expected]
        assert fact(True, "wrong.", consequence=consequence).status is expected


def test_a_small_p_value_that_the_gate_lets_pass_is_worth_a_look():
    (finding,) = apply_gate(checks(5e-4), 1e-4)
    assert finding.status is Status.INFO
    assert finding.remedy
    (finding,) = apply_gate(checks(0.2), 1e-4)
    assert (finding.status, finding.remedy) == (Status.PASS, "")


def test_what_is_tolerable_cannot_fail():
    finding = judged(0.0, "tiny.", consequence=Consequence.BREACH, tolerable=True)
    assert apply_gate([finding], 0.01)[0].status is Status.PASS


def test_the_family_wise_error_is_kept():
    """4,000 families of 5 uniform p-values, at 5 standard errors: fails with 3e-7."""
    uniform = np.random.default_rng(0).random((4000, 5))
    failed = sum(Status.FAIL in statuses(checks(*row), 0.05) for row in uniform)
    assert failed <= 0.05 * 4000 + 5 * np.sqrt(0.05 * 0.95 * 4000)
    assert failed > 0.03 * 4000


def test_not_run_says_what_it_needs():
    finding = replace(not_run("more canaries"), check="shape")
    assert str(finding) == "[not run] shape: not run: needs more canaries."


@pytest.mark.parametrize("value", [-1e-12, 1.0 + 1e-9])
def test_p_values_stay_within_their_range(value):
    assert 0.0 <= checks(value)[0].p_value <= 1.0


def failing(*names):
    return [
        replace(
            judged(0.0, "found.", consequence=Consequence.BREACH, remedy=f"Mend {name}."),
            check=name,
        )
        for name in names
    ]


def test_what_may_follow_from_another_failure_says_so():
    names = ("repeated noise", "shared noise", "duplicate scores", "contribution")
    remedies = [item.remedy for item in apply_gate(failing(*names), 0.01)]
    assert remedies[0] == "Mend repeated noise."
    # Duplicates follow from shared noise, and that from repeated noise: the first is to be mended.
    for remedy in remedies[1:3]:
        assert remedy.startswith("Probably caused by 'repeated noise'.")
    assert remedies[3] == "Mend contribution."


def test_a_symptom_alone_is_its_own_cause():
    passing = judged(1.0, "ok.", consequence=Consequence.BREACH)
    passing = replace(passing, check="repeated noise")
    items = apply_gate([passing, *failing("serial correlation")], 0.01)
    assert items[1].remedy == "Mend serial correlation."


def wrong(check, consequence=Consequence.BREACH, p_value=0.0, measured=None):
    return Finding(
        check=check, status=Status.FAIL, summary=f"{check} is wrong.", consequence=consequence,
        p_value=p_value, measured=measured, remedy=f"Mend {check}.",
    )  # fmt: skip


ONE_NOISE = (wrong("repeated noise", measured=-0.99), wrong("shared noise", measured=1.0))
QUIET = (wrong("planted noise", measured=0.8), wrong("even contribution"))
HEAVY = (wrong("noise by coordinate", Consequence.INVALIDATES), wrong("noise shape"))


@pytest.mark.parametrize("said", [(), ONE_NOISE, QUIET, HEAVY, (*ONE_NOISE, *QUIET, *HEAVY)])
def test_no_cause_follows_from_itself(said):
    """A chain that came back to itself would never end."""
    follows = gate._directed({item.check: item for item in said})

    def symptoms(name, above=()):
        assert name not in above, (*above, name)
        for symptom in follows.get(name, ()):
            symptoms(symptom, (*above, name))

    for name in follows:
        symptoms(name)


@pytest.mark.parametrize(
    ("findings", "lead"),
    [
        (ONE_NOISE, "shared noise"),
        ((wrong("repeated noise", measured=1.0), wrong("shared noise", measured=1.0),
          wrong("serial correlation", measured=1.0)), "repeated noise"),
        ((wrong("repeated noise", measured=1.0), wrong("shared noise", measured=1.0),
          wrong("serial correlation", measured=0.1)), "shared noise"),
        (QUIET, "planted noise"),
        (HEAVY, "noise shape"),
        ((wrong("single plantings"), wrong("contribution")), "contribution"),
        ((wrong("contribution"), wrong("record contributions", p_value=None)),
         "record contributions"),
        # What is exact and invalidates leads what follows from it; of what does not, the breach.
        ((wrong("contribution"), wrong("sum of records", Consequence.INVALIDATES, None)),
         "sum of records"),
        ((wrong("noise scale"), wrong("sum of records", Consequence.INVALIDATES, None)),
         "noise scale"),
        ((wrong("noise scale"), wrong("step count", p_value=None)), "step count"),
    ],
)  # fmt: skip
def test_the_cause_leads(findings, lead):
    for order in (findings, findings[::-1]):
        assert gate.leading(order).check == lead
        assert gate.named(order).startswith(f"{lead}: ")
        assert gate.ordered(order)[0].check == lead
    assert gate.leading([]) is None
