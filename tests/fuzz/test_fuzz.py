"""A bounded share of ``make fuzz``: damage is refused in words, or changes nothing."""

from __future__ import annotations

import pytest

from tests.fuzz import engine, subjects

# 65 subjects, so about 500 inputs.
EACH = 8
# A small file of each kind of container; the others are in ``make fuzz``.
EVERY_BYTE = ["scores", "step store", "content of a run folder", "CSV table"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    made = subjects.make(tmp_path_factory.mktemp("fuzz"))
    return {subject.name: subject for subject in made}


def test_damaged_files_are_refused_or_say_the_same(found):
    failures = []
    for subject in found.values():
        outcome = engine.fuzz(subject, range(EACH))
        healed = outcome.counts["same answer"] == outcome.inputs
        assert outcome.counts["refused"] or healed, f"{subject.name} believes everything"
        failures += outcome.failures
    assert not failures, "\n".join(failures[:10])


@pytest.mark.parametrize("name", EVERY_BYTE)
def test_no_byte_of_a_file_can_change_what_it_says(name, found):
    outcome = engine.every_byte(found[name], changes=1)
    assert not outcome.failures, "\n".join(outcome.failures[:10])
    assert outcome.counts["refused"] > 0.6 * outcome.inputs


def test_what_the_engine_calls_a_failure(found):
    """It must be able to fail: a reader that believes damage, and one that breaks."""
    scores = found["scores"]

    def judged(read, content=b"other", forged=False):
        subject = subjects.Subject("x", b"x", read)
        outcome = engine.Outcome("x")
        engine.judge(subject, "truth", content, forged, outcome)
        return dict(outcome.counts), len(outcome.failures)

    assert judged(lambda content: "lie") == ({"believed": 1}, 1)
    assert judged(lambda content: "lie", forged=True) == ({"another answer": 1}, 0)
    assert judged(lambda content: "truth") == ({"same answer": 1}, 0)
    assert judged(lambda content: 1 / 0) == ({"raw exceptions": 1}, 1)
    assert judged(scores.read, b"PK") == ({"refused": 1}, 0)
