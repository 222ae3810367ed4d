"""The count that adapts a clip norm: its noise, and whether anybody accounted for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.recording.facts import ClipCountFacts
from askgauss.results import Consequence, Status

STEPS, RATE, DELTA = 100, 0.1, 1e-5
DEVIATION, TOGETHER = 1.0, 1.0
# Of the gradients alone.
GRADIENTS = (TOGETHER**-2 - (2.0 * DEVIATION) ** -2) ** -0.5


def counted(*, noise: float = GRADIENTS, present: int = 40, absent: int = 100, **count: float):
    """A run whose clip norm follows a count, its gradients declared to have their own noise."""
    run = ag.simulate_dpsgd(
        steps=STEPS,
        sampling_rate=RATE,
        noise_multiplier=noise,
        present=present,
        absent=absent,
        seed=0,
    )
    facts = ClipCountFacts(
        **{
            "releases": STEPS,
            "shown": STEPS,
            "read": STEPS,
            "square": float(STEPS),
            "deviation": DEVIATION,
            "noise_multiplier": TOGETHER,
        }
        | count
    )
    return run.with_facts(replace(run.facts, clip_count=facts, noise_multiplier=GRADIENTS))


def judged(*, told: float = TOGETHER, name: str, **count: float):
    run, accounted = counted(**count), ((told, RATE, STEPS),)
    run = run.with_facts(replace(run.facts, accounted=accounted))
    epsilon = accounting.history_epsilon(accounted, DELTA)
    result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA))
    return result, next(item for item in result.findings if item.check == name)


@pytest.mark.parametrize(
    "name", ["noise of the clipping count", "accounting of the clipping count"]
)
def test_a_count_as_stated_passes(name):
    result, finding = judged(name=name)
    assert finding.status is Status.PASS
    assert result.verdict is not ag.Verdict.VIOLATION


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_a_count_with_less_noise_is_a_breach(ratio):
    result, finding = judged(name="noise of the clipping count", square=STEPS * ratio**2)
    assert finding.status is Status.FAIL
    assert finding.consequence is Consequence.BREACH
    assert result.verdict is ag.Verdict.VIOLATION


def test_a_count_that_the_clip_norm_never_tells_breaks_nothing():
    _, finding = judged(name="noise of the clipping count", square=0.0, shown=0)
    assert finding.consequence is Consequence.INFORMS


def test_a_count_with_more_noise_costs_no_privacy():
    _, finding = judged(name="noise of the clipping count", square=9.0 * STEPS)
    assert finding.consequence is Consequence.LOOSENS
    assert finding.status is Status.WARN


def test_a_count_that_was_left_out_of_the_accounting_is_a_breach():
    result, finding = judged(name="accounting of the clipping count", told=GRADIENTS)
    assert finding.consequence is Consequence.BREACH
    assert finding.status is Status.FAIL
    assert (finding.measured, finding.claimed) == (TOGETHER, GRADIENTS)
    # A record moves the count by a half at least: together they leak what the two multipliers give.
    implied = float(finding.summary.split("implies epsilon ")[1].split()[0])
    both = accounting.history_epsilon(((TOGETHER, RATE, STEPS),), DELTA)
    assert implied == pytest.approx(both, rel=0.01)
    assert result.verdict is ag.Verdict.VIOLATION


def test_too_few_counts_are_not_judged():
    _, finding = judged(name="noise of the clipping count", read=3, square=0.0)
    assert finding.status is Status.NOT_RUN


def test_facts_of_no_run_are_refused():
    wrong = codec.to_plain(ClipCountFacts(releases=STEPS, square=-1.0))
    with pytest.raises(FileFormatError, match="square"):
        codec.from_plain(ClipCountFacts, wrong, "facts.clip_count")


def test_steps_that_differ_are_composed_in_what_was_accounted():
    """Two kinds of steps leak more than either alone."""
    run = ag.simulate_dpsgd(
        steps=STEPS, sampling_rate=RATE, noise_multiplier=1.0, present=20, absent=50, seed=0
    )
    kinds = ((1.0, RATE, 50), (1.1, RATE, 50))
    run = run.with_facts(replace(run.facts, accounted=kinds))
    whole = accounting.history_epsilon(kinds, DELTA)
    alone = max(accounting.history_epsilon([kind], DELTA) for kind in kinds)

    def accounted(epsilon: float):
        result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA))
        return next(item for item in result.findings if item.check == "accounted epsilon")

    assert alone < 0.9 * whole
    assert accounted(0.95 * whole).status is Status.FAIL
    assert accounted(whole).status is Status.PASS
    assert accounted(whole).measured == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize(("noise", "broken"), [(GRADIENTS, False), (TOGETHER, True)])
def test_gradients_have_more_noise_than_both_together(noise, broken):
    run = counted(noise=noise, present=200, absent=600)
    epsilon = accounting.history_epsilon(((TOGETHER, RATE, STEPS),), DELTA)
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA, noise_multiplier=TOGETHER)
    found = next(
        item for item in ag.audit(run, claim=claim).findings if item.check == "noise scale"
    )
    assert found.claimed == pytest.approx(GRADIENTS)
    assert (found.status is not Status.PASS) is broken
