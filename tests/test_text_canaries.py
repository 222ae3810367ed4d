"""Texts as canaries: who is in the training set, and what their losses become."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.canaries import TextCanaries
from askgauss.exceptions import InvalidArgumentError, ScoresError

WORDS = [f"w{index}" for index in range(40)]


def test_new_tokens_are_their_own_and_coins_choose():
    canaries = TextCanaries.new_tokens(["one ", "two "], count=1000, seed=0)
    assert len(set(canaries.tokens)) == 1000
    assert {text.split(" ")[0] for text in canaries.texts} == {"one", "two"}
    present = [text for text, member in zip(canaries.texts, canaries.member, strict=True) if member]
    assert list(canaries.present_texts) == present
    # Within six deviations of a fair coin: less than 2e-9 that it is not.
    assert abs(len(present) - 500) < 6 * np.sqrt(250)
    again = TextCanaries.new_tokens(["one ", "two "], count=1000, seed=0)
    assert again.texts == canaries.texts
    assert again.fingerprint() == canaries.fingerprint()
    other = TextCanaries.new_tokens(["one ", "two "], count=1000, seed=1)
    assert (other.member != canaries.member).any()
    assert other.fingerprint() != canaries.fingerprint()


def test_random_words_are_split_where_asked():
    canaries = TextCanaries.random_words(WORDS, length=6, given=2, present=3, absent=5, seed=0)
    assert (canaries.size, int(canaries.member.sum()), canaries.fair_coins) == (8, 3, False)
    for prefix, suffix, text in zip(
        canaries.prefixes, canaries.suffixes, canaries.texts, strict=True
    ):
        assert (len(prefix.split()), len(suffix.split())) == (2, 4)
        assert text == prefix + suffix
        assert set(text.split()) <= set(WORDS)


def test_scores_are_losses_turned_round_and_the_reference_is_taken_off():
    canaries = TextCanaries.new_tokens(["a "], count=200, seed=0)
    easy = np.random.default_rng(0).normal(8.0, 3.0, canaries.size)
    losses = easy - 2.0 * canaries.member
    plain, taken_off = canaries.scores(losses), canaries.scores(losses, reference=easy)
    np.testing.assert_allclose(plain.score, -losses)
    np.testing.assert_allclose(taken_off.score, 2.0 * canaries.member)
    assert (plain.member == canaries.member).all()
    assert plain.metadata.fair_coins
    assert not plain.metadata.gaussian
    # Auditors that guess membership take them as they are; a perfect guess of 200 says much.
    result = ag.audit(taken_off, delta=1e-5, auditor=ag.OneRun())
    assert result.epsilon_lower > 3.0


def test_scores_of_a_model_that_saw_nothing_say_nothing():
    """At confidence .95 at most 5 of 100 bounds are above zero; over 12 in less than 1 of 500."""
    canaries = TextCanaries.new_tokens(["a "], count=100, seed=0)
    chance = np.random.default_rng(1)
    above = 0
    for _ in range(100):
        scores = canaries.scores(chance.normal(size=canaries.size))
        above += ag.audit(scores, delta=1e-5, auditor=ag.OneRun()).epsilon_lower > 0.0
    assert above <= 12


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TextCanaries.new_tokens([], count=10), "prefixes"),
        (lambda: TextCanaries.new_tokens("abc", count=10), "prefixes"),
        (lambda: TextCanaries.new_tokens(["a "]), "count"),
        (lambda: TextCanaries.random_words(["a"], count=10), "words"),
        (lambda: TextCanaries.random_words(WORDS, length=3, given=3, count=10), "given"),
        (lambda: TextCanaries.random_words(["a", "b"], length=3, count=90), "alike"),
        (lambda: TextCanaries(("a", "b"), ("c", "d", "e", "f")), "prefix and a suffix"),
        (lambda: TextCanaries(("a",) * 4, ("b", "c", "d", "")), "empty"),
        (lambda: TextCanaries(("a",) * 4, (1, 2, 3, 4)), "suffixes"),
    ],
)
def test_what_makes_no_canaries_is_said(make, said):
    with pytest.raises(InvalidArgumentError, match=said):
        make()


def test_losses_must_be_one_a_canary():
    canaries = TextCanaries.new_tokens(["a "], count=10, seed=0)
    with pytest.raises(InvalidArgumentError, match="10 canaries"):
        canaries.scores(np.zeros(5))
    with pytest.raises((InvalidArgumentError, ScoresError), match="finite"):
        canaries.scores(np.full(10, np.nan))
