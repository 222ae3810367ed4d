"""Fixed runs answer what they answered; ``make snapshots`` shows and keeps a meant change."""

from __future__ import annotations

import dataclasses

import pytest

from tests.snapshots import written
from tests.snapshots.cases import cases

CASES = {case.name: case for case in cases()}
_KEEP = "if this is meant: make snapshots, and look at the difference"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.training] if case.trains else [])
        for name, case in CASES.items()
    ],
)
def test_a_fixed_run_answers_the_same(name):
    case = CASES[name]
    now, kept = case.taken(), written.load(name)
    numbers = written.other_numbers(kept, now, case.tolerance)
    assert not numbers, "\n".join([_KEEP, *numbers])
    words = written.other_words(kept, now, written.load_words())
    assert not words, "\n".join([_KEEP, *words])


def test_every_kept_run_is_made():
    assert {path.stem for path in written.FOLDER.iterdir()} == set(CASES)


def test_every_kept_sentence_is_said_by_some_run():
    said = {key for name in CASES for group in written.load(name).said.values() for key in group}
    assert said == set(written.load_words())


def test_every_verdict_is_among_them():
    verdicts = {written.load(name).fields.get("verdict") for name in CASES}
    assert verdicts >= {"CONSISTENT", "VIOLATION", "INVALID", "INCONCLUSIVE"}


@pytest.mark.parametrize("before", [0.123, 5, "short", [1.0, 2.0, 3.0]])
def test_another_field_is_seen(before):
    other = {"short": "other", 5: 6}.get(before if isinstance(before, (str, int)) else 0)
    after = other if other is not None else [1.0, 2.0, 3.1] if before == [1.0, 2.0, 3.0] else 0.124
    kept, now = (dataclasses.replace(written.Snapshot(), fields={"a": v}) for v in (before, after))
    assert written.other_numbers(kept, now, 1e-6) == [f"a: {before!r} -> {after!r}"]
    assert not written.other_numbers(kept, kept, 0.0)


def test_words_and_numbers_are_told_apart():
    kept = written.taken({}, {"text": "The noise is 0.499 times the claim. Epsilon 35."})
    number = written.taken({}, {"text": "The noise is 0.700 times the claim. Epsilon 35."})
    word = written.taken({}, {"text": "Noise is 0.499 times the claim. Epsilon 35."})
    digit = written.taken({}, {"text": "The noise is 0.500 times the claim. Epsilon 35."})
    assert written.other_numbers(kept, number, 1e-6) == ["text: 0.499 -> 0.700"]
    assert not written.other_words(kept, number, kept.words)
    assert not written.other_numbers(kept, word, 1e-6)
    assert written.other_words(kept, word, kept.words) == [
        "text - The noise is # times the claim.",
        "text + Noise is # times the claim.",
    ]
    # One more in the last printed digit is rounding.
    assert not written.other_numbers(kept, digit, 1e-6)
