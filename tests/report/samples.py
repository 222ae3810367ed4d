"""Results of every kind that a report must be able to show; each is made once."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

import askgauss as ag
from askgauss import report
from askgauss.results import Consequence, Finding, Status
from askgauss.simulation import simulate_dpsgd, simulate_scores

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
HOSTILE = '<script>alert("x")</script>&"\'\x1b[31m\u202e$\\frac{ @all #1 [a](http://evil.example)'


def _through_json(result: ag.AuditResult) -> ag.AuditResult:
    return ag.AuditResult.from_json(result.to_json())


@functools.cache
def violation() -> ag.AuditResult:
    """A transcript with less noise than it claims."""
    transcript = simulate_dpsgd(
        steps=120, sampling_rate=0.2, noise_multiplier=1.5, present=150, absent=150, seed=0
    )
    claim = ag.PrivacyClaim(
        epsilon=6.0, delta=1e-5, noise_multiplier=2.5, sampling_rate=0.2, steps=120
    )
    return _through_json(ag.audit(transcript, claim=claim))


@functools.cache
def consistent() -> ag.AuditResult:
    """Scores that keep their claim."""
    scores = simulate_scores(
        steps=2500, sampling_rate=0.0819, noise_multiplier=2.6, present=2500, absent=2500, seed=1
    )
    return _through_json(ag.audit(scores, claim=CLAIM))


@functools.cache
def inconclusive() -> ag.AuditResult:
    """Too few canaries to tell."""
    scores = simulate_scores(
        steps=2500, sampling_rate=0.0819, noise_multiplier=2.6, present=30, absent=30, seed=1
    )
    return _through_json(ag.audit(scores, claim=CLAIM))


@functools.cache
def heavy_tails() -> ag.CanaryScores:
    generator = np.random.default_rng(0)
    return ag.CanaryScores.from_groups(
        present=generator.standard_t(3, 1500) + 1.6,
        absent=generator.standard_t(3, 1500),
        noise="gaussian",
    )


@functools.cache
def invalid() -> ag.AuditResult:
    """Scores that are not Gaussian."""
    return _through_json(ag.audit(heavy_tails(), claim=CLAIM))


@functools.cache
def no_claim() -> ag.AuditResult:
    """A bound, no verdict."""
    scores = simulate_scores(
        steps=500, sampling_rate=1.0, noise_multiplier=20.0, present=300, absent=300, seed=2
    )
    return _through_json(ag.audit(scores, delta=1e-5))


@functools.cache
def no_noise() -> ag.AuditResult:
    """An unbounded leak: nothing can be drawn to scale."""
    scores = ag.CanaryScores.from_groups(present=np.ones(50), absent=np.zeros(50), noise="gaussian")
    return _through_json(ag.audit(scores, claim=CLAIM))


@functools.cache
def bare() -> ag.AuditResult:
    """An audit without diagnostics keeps nothing for the figures."""
    scores = simulate_scores(
        steps=500, sampling_rate=0.5, noise_multiplier=10.0, present=200, absent=200, seed=3
    )
    return _through_json(ag.audit(scores, claim=CLAIM, diagnostics=False))


@functools.cache
def counting() -> ag.AuditResult:
    """A method without a model of the scores."""
    scores = simulate_scores(
        steps=500, sampling_rate=0.5, noise_multiplier=5.0, present=400, absent=400, seed=4
    )
    return _through_json(ag.audit(scores, claim=CLAIM, auditor=ag.OneRun()))


@functools.cache
def hostile() -> ag.AuditResult:
    """Names and texts that try to be markup, formulas or terminal commands."""
    transcript = simulate_dpsgd(
        steps=60,
        sampling_rate=0.3,
        noise_multiplier=2.0,
        present=60,
        absent=60,
        seed=5,
        canaries="spread",
    )
    facts = dataclasses.replace(
        transcript.facts,
        tensors=(HOSTILE, "$\\frac{", "\x1b[2J", "x" * 5000),
        notes=(HOSTILE,) * 40,
        precision=(HOSTILE,),
        exercised=("noise", HOSTILE),
    )
    result = ag.audit(transcript.with_facts(facts), claim=CLAIM)
    finding = Finding(
        check=HOSTILE,
        status=Status.FAIL,
        summary=HOSTILE,
        consequence=Consequence.BREACH,
        measured=float("inf"),
        interval=(float("-inf"), float("inf")),
        claimed=0.0,
        p_value=0.0,
        remedy=HOSTILE + "\n| not | a | row |",
    )
    return _through_json(
        dataclasses.replace(
            result,
            verdict=ag.Verdict.VIOLATION,
            reason=HOSTILE,
            findings=(finding, *result.findings),
            version=HOSTILE,
        )
    )


ALL = {
    item.__name__: item
    for item in (
        violation,
        consistent,
        inconclusive,
        invalid,
        no_claim,
        no_noise,
        bare,
        counting,
        hostile,
    )
}


@functools.cache
def page(name: str) -> str:
    """The report of one of them."""
    return report.render(ALL[name]())
