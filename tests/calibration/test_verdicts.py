"""A small share of what ``make calibration`` counts: whole verdicts, and leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.auditors import auditor_types
from tests.calibration import full, leak_zoo, powers, verdicts

# One leak of each kind of data; ``make calibration`` audits all of them.
SOME = (
    "transcript: overlapping counters",
    "transcript: less noise where a canary is planted",
    "transcript: noise without its mean",
    "transcript: one record of all counts three times",
    "sampler: cyclic for Poisson",
    "batches: larger than the rate says",
    "unknown background: no noise",
    "examples: noise times .85",
    "tree: twice the clip norm in the last leaves",
    "prefixes: leaves with .7 of their noise",
    "scores: one in a hundred without noise",
)
ALARMS = ag.Verdict.VIOLATION, ag.Verdict.INVALID


@pytest.mark.parametrize("name", SOME)
def test_leaks_are_noticed(name):
    """Each is noticed in at least 95 of 100."""
    (leak,) = [leak for leak in leak_zoo.LEAKS if leak.name == name]
    found = verdicts.noticed(leak.name, leak.run, 1, seed=7)
    assert found.alarms == 1, found


def test_the_zoo_is_large_and_no_name_comes_twice():
    names = [leak.name for leak in leak_zoo.LEAKS]
    assert len(names) == len(set(names)) >= 60
    kinds = {name.split(":")[0] for name in names}
    assert {"transcript", "sampler", "examples", "tree", "scores"} <= kinds


@pytest.mark.parametrize(
    "run",
    [
        replace(leak_zoo._STEPS, steps=100, absent=500),
        replace(leak_zoo._SAMPLED, steps=100),
        leak_zoo.ExampleRun(steps=100, dimension=1000),
        leak_zoo.TreeRun(),
        leak_zoo.ScoreRun(),
    ],
    ids=["transcript", "sampler", "examples", "tree", "scores"],
)
def test_without_their_fault_they_do_not_alarm(run):
    """At the default gate error: one of a thousand seeds fails."""
    result = ag.audit(run.draw(np.random.default_rng(3)), claim=run.claim)
    assert result.verdict not in ALARMS, result.reason


def test_a_tally_counts_alarms_by_cause():
    """Of a claim of a tenth of the truth every audit alarms, at either gate."""

    class Bold(verdicts.SampledScores):
        @property
        def claim(self):
            return ag.PrivacyClaim(epsilon=0.1 * self.epsilon, delta=self.delta)

    found = verdicts.tally(Bold(300, 300, 200, 0.1, 4.0), 12)
    assert found.alarms == found.strict_alarms == found.causes["test of the claim"] == 12
    assert found.strict_causes == found.causes
    assert found.too_loud()
    assert found.z > 30
    fair = verdicts.tally(verdicts.SampledScores(300, 300, 200, 0.1, 4.0), 12)
    assert not fair.too_loud()
    assert not fair.too_high()


def test_power_that_is_off_is_noticed():
    """Power as printed agrees with 60 leaks; one that is made up does not."""
    case = verdicts.SampledScores(300, 300, 200, 0.1, 4.0)
    found = powers.count(powers.PowerCell("cell", case), 4, 60)
    assert found.is_right()
    assert not replace(found, printed=0.99, spread=0.0).is_right()


def test_every_auditor_with_a_verdict_has_a_cell_of_its_power():
    named = {type(cell.auditor).__name__ for cell in powers.CELLS if cell.auditor is not None}
    named |= {"SubsampledGaussian"}  # the default of transcripts
    with_power = {
        kind.__name__
        for kind in auditor_types().values()
        if kind.__module__.startswith("askgauss.")
        and kind().assumption is not ag.Assumption.ESTIMATE
    }
    assert with_power <= named


def test_a_leak_that_is_missed_is_audited_more_often():
    run = leak_zoo.ScoreRun()  # nothing to notice
    found = verdicts.noticed("none", run, 3, more=4)
    assert found.audits == found.verdicts.total() == 7
    assert not found.enough


def test_cells_are_distinct():
    named = [(kind, name, str(options)) for kind, name, _, options in full.WHOLE]
    assert len(named) == len(set(named))
    cells = full.full_grid()
    assert len(cells) == len(set(cells))


def test_the_sections_list_every_cell():
    tallies = [verdicts.tally(verdicts.PLAIN[1], 2)]
    text = "\n".join(verdicts.section("title", "note", tallies))
    assert "30 / 30, laplace, epsilon 1" in text
    leak = leak_zoo.LEAKS[-1]
    told = "\n".join(verdicts.leak_section([verdicts.noticed(leak.name, leak.run, 1)]))
    assert leak.name in told
