from __future__ import annotations

import math
import random

import numpy as np
import pytest

import askgauss as ag
from askgauss._text import number, one_line
from askgauss.report import words
from askgauss.sampling import CyclicPoisson, Poisson
from askgauss.simulation import simulate_scores


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "–"),
        (0.0, "0"),
        (500.0, "500"),
        (12345.0, "12,345"),
        (1.23456, "1.235"),
        (-0.00278, "−0.00278"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (1e20, "1e+20"),
    ],
)
def test_numbers_in_tables(given, shown):
    assert words.value(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, ""),
        ((1.19791, 1.20421), "1.1979 to 1.2042"),
        ((-0.008084, 0.00223), "−0.008 to 0.002"),
        ((95.2, 1403.9), "95 to 1,404"),
        ((2.0, 2.0), "2 to 2"),
        ((-math.inf, 3.0), "−∞ to 3"),
        ((1.0, 1.0 + 1e-12), "1 to 1"),
    ],
)
def test_intervals_have_the_digits_their_width_needs(given, shown):
    assert words.interval(given) == shown


def test_shares_are_rounded_to_the_side_that_promises_nothing():
    assert words.percent(None, up=True) == "–"
    assert words.percent(0.0, up=False) == "0 %"
    assert words.percent(1.0, up=True) == "100 %"
    assert words.percent(0.5937, up=False) == "59.3 %"
    assert words.percent(0.5937, up=True) == "59.4 %"
    assert words.percent(0.9996646, up=True) == "99.9665 %"
    generator = random.Random(0)
    for _ in range(2000):
        given = generator.choice([generator.random(), 10.0 ** generator.uniform(-9, 0)])
        given = generator.choice([given, 1.0 - given])
        most = float(words.percent(given, up=True).removesuffix(" %"))
        least = float(words.percent(given, up=False).removesuffix(" %"))
        assert least - 1e-9 <= 100.0 * given <= most + 1e-9
        assert most - least <= 0.11


def test_one_line_keeps_words_and_spells_out_what_cannot_be_seen():
    assert one_line("layer.0.weight") == "layer.0.weight"
    assert one_line("Größe ≥ 3 · 日本語") == "Größe ≥ 3 · 日本語"
    assert one_line("a\x1b[31mb\x00c\u202ed") == r"a\x1b[31mb\x00c\u202ed"
    assert one_line("one\ntwo\tthree") == "one two three"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


def test_a_bound_above_the_claim_beside_a_verdict_that_lets_it_pass_is_explained():
    """The bound is stated at one confidence, the gate decides at another: every form says so."""
    scores = simulate_scores(
        steps=2500, sampling_rate=0.0819, noise_multiplier=2.6, present=2500, absent=2500, seed=1
    )
    bound = ag.audit(scores, delta=1e-5).epsilon_lower
    claim = ag.PrivacyClaim(epsilon=0.995 * bound, delta=1e-5)
    result = ag.audit(scores, claim=claim)
    gate = ag.audit(scores, delta=1e-5, confidence=0.9995).epsilon_lower
    assert gate < claim.epsilon < result.epsilon_lower
    assert result.verdict is ag.Verdict.CONSISTENT
    words = (
        f"the bound of {number(bound)} is above the claimed {claim.epsilon:g}, but only at "
        "confidence 0.95, which a correct run may reach by chance in 1 of 20 audits; at confidence "
        f"0.9995, where the gate decides, it is {number(gate)}."
    )
    for form in (str(result), result.to_json(), result.to_html(), result.to_markdown()):
        assert words[4:] in form
    assert "no evidence" not in str(result)


def stated(scheme):
    """The statement on a run that was recorded and claimed by one scheme."""
    canaries = ag.DiracCanaries(present=40, absent=60, dimension=400, seed=0)
    recorder = ag.Recorder(canaries, sampling=scheme, noise_multiplier=1.6)
    draw = np.random.default_rng(1)
    for _ in range(40):
        planted = np.isin(np.arange(100), recorder.sample())
        recorder.observe(planted + draw.normal(0.0, 1.6, 100), background=0.0)
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, sampling=scheme)
    result = ag.audit(recorder.transcript(), claim=claim)
    return " ".join(words.statement(result, result.summary.run))


@pytest.mark.parametrize("scheme", [Poisson(rate=0.2), CyclicPoisson(rate=0.4, cycle=2)])
def test_the_statement_names_the_scheme_that_was_claimed_and_the_one_that_was_used(scheme):
    told = stated(scheme)
    assert f"from a mechanism with {scheme}." in told
    assert f"each inserted one drawn by {scheme}" in told
    assert "Poisson sampling rate" not in told
