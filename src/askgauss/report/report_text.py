"""What a report says, in words; every number in it was computed elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from askgauss._text import one_line
from askgauss.checks.causes import ordered
from askgauss.figures.numbers import Meaning, usable
from askgauss.figures.summary import RunSummary
from askgauss.report.advice import advice
from askgauss.report.result_text import measured, method_of
from askgauss.results import (
    AuditResult,
    Consequence,
    Finding,
    Status,
    Verdict,
    confidence_in_words,
    number,
)

__all__ = [
    "StatusWord",
    "advice_rows",
    "bound",
    "consequence",
    "headline",
    "interval",
    "meaning_rows",
    "ordered",
    "p_value",
    "part_rows",
    "percent",
    "reason",
    "statement",
    "status",
    "value",
]

_HEADLINES = {
    Verdict.VIOLATION: "Violation",
    Verdict.CONSISTENT: "Consistent",
    Verdict.INCONCLUSIVE: "Inconclusive",
    Verdict.INVALID: "Invalid",
    None: "A bound, no verdict",
}
_CONSEQUENCES = {
    Consequence.BREACH: "claim broken",
    Consequence.INVALIDATES: "bound too high",
    Consequence.LOOSENS: "bound too low",
    Consequence.INFORMS: "nothing",
}


@dataclass(frozen=True, slots=True)
class StatusWord:
    """A status in a word, a sign that needs no colour, and its class in the style sheet."""

    word: str
    sign: str
    css: str


_STATUS = {
    Status.FAIL: StatusWord("fail", "✕", "fail"),
    Status.WARN: StatusWord("warning", "!", "warn"),
    Status.INFO: StatusWord("note", "i", "info"),
    Status.PASS: StatusWord("pass", "✓", "pass"),
    Status.NOT_RUN: StatusWord("not run", "–", "skip"),
}
_PART_STATUS = {
    "fine": StatusWord("tested", "✓", "pass"),
    "broken": StatusWord("broken", "✕", "fail"),
    "not tested": StatusWord("not tested", "–", "skip"),
}


def headline(result: AuditResult) -> str:
    """The verdict in a word."""
    return _HEADLINES[result.verdict]


def reason(result: AuditResult) -> str:
    """Why, in a sentence that begins with a capital."""
    text = one_line(result.reason)
    if not text:
        text = (
            "no claim was given to hold the run to."
            if result.claim is None
            else "this method gives an estimate without a guarantee."
        )
    return text[:1].upper() + text[1:]


def advice_rows(result: AuditResult) -> list[dict[str, str]]:
    """What this means, what to do and who should, for somebody who is no statistician."""
    told = advice(result)
    rows = (
        ("What this means", told.meaning),
        ("What to do", told.action),
        ("Who should act", f"{told.actor[:1].upper()}{told.actor[1:]}."),
    )
    return [{"name": name, "words": one_line(words, 900)} for name, words in rows]


def status(finding: Finding) -> StatusWord:
    """The status of a finding."""
    return _STATUS[finding.status]


def consequence(finding: Finding) -> str:
    """What a failure of the check would mean."""
    return "" if finding.status is Status.NOT_RUN else _CONSEQUENCES[finding.consequence]


def p_value(finding: Finding) -> str:
    """The p-value of a check, where it has one."""
    given = finding.p_value
    if given is None:
        return ""
    return "< 1e−300" if given < 1e-300 else f"{given:.2g}".replace("-", "−")


def value(given: float | None) -> str:
    """A number for a table; a dash where there is none."""
    if given is None:
        return "–"
    if math.isinf(given):
        return "∞" if given > 0.0 else "−∞"
    if given == round(given) and abs(given) < 1e15:
        return f"{given:,.0f}".replace("-", "−")
    return f"{given:.4g}".replace("-", "−")


def bound(given: float) -> str:
    """A lower bound on epsilon."""
    return "ε = ∞" if math.isinf(given) else f"ε ≥ {value(given)}"


def interval(given: tuple[float, float] | None) -> str:
    """An interval for a table."""
    if given is None:
        return ""
    low, high = given
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return f"{value(low)} to {value(high)}"
    # As many decimals as the width of the interval needs.
    decimals = max(0, 1 - math.floor(math.log10(high - low)))
    if decimals > 6:
        return f"{value(low)} to {value(high)}"
    return " to ".join(f"{end:,.{decimals}f}".replace("-", "−") for end in given)


def percent(given: float | None, *, up: bool) -> str:
    """A share, rounded to the side that promises nothing: up for at most, down for at least."""
    if given is None:
        return "–"
    if given in (0.0, 1.0):
        return f"{100.0 * given:.0f} %"
    scaled = given * 1000.0
    # Beyond a nine or two the digits that matter are further back.
    digits = 1
    while min(given, 1.0 - given) < 0.5 * 10.0**-digits and digits < 6:
        digits, scaled = digits + 1, scaled * 10.0
    rounded = (math.ceil(scaled - 1e-9) if up else math.floor(scaled + 1e-9)) / 10.0**digits
    return f"{rounded:.{digits}f} %"


def meaning_rows(meaning: Meaning) -> list[dict[str, str]]:
    """What epsilon means, claimed beside measured."""
    names = (
        ("best true positive rate minus false positive rate", meaning.advantage),
        ("true positives at 1 % false positives", meaning.true_positives),
        ("belief in presence, from 50 % before", meaning.belief),
    )
    return [
        {
            "name": name,
            "claimed": percent(pair[0], up=True),
            "measured": percent(pair[1], up=False),
        }
        for name, pair in names
    ]


def part_rows(result: AuditResult) -> list[dict[str, Any]]:
    """Every part of the training, those first that were found broken or not tested."""
    order = ("broken", "not tested", "fine")
    return [
        {
            "name": part.name,
            "status": _PART_STATUS[part.status],
            "detail": one_line(part.smallest or part.how_to_test, 400),
        }
        for part in sorted(result.scope, key=lambda part: order.index(part.status))
    ]


def statement(result: AuditResult, run: RunSummary) -> list[str]:
    """What was audited, how, and what follows: paragraphs that can be quoted."""
    return [_claimed(result), _audited(result, run), _found(result), _untested(result)]


def _claimed(result: AuditResult) -> str:
    claim = result.claim
    if claim is None:
        return "No privacy claim was given to this audit."
    relation = {
        "add-remove": f"adding or removing one {claim.unit}",
        "zero-out": f"leaving out what one {claim.unit} adds",
        "replace": f"replacing one {claim.unit}",
    }[claim.adjacency]
    parts = [
        None if claim.noise_multiplier is None else f"noise multiplier {claim.noise_multiplier:g}",
        None if claim.scheme is None else f"{claim.scheme}",
        None if claim.steps is None else f"{claim.steps:,} steps",
        None if claim.clip_norm is None else f"clip norm {claim.clip_norm:g}",
    ]
    described = ", ".join(part for part in parts if part is not None)
    mechanism = f", from a mechanism with {described}" if described else ""
    return (
        f"The training run claims ({claim.epsilon:g}, {claim.delta:g})-differential privacy with "
        f"respect to {relation}{mechanism}."
    )


def _audited(result: AuditResult, run: RunSummary) -> str:
    text = (
        f"The audit compared {result.present:,} canaries that were present in the run with "
        f"{result.absent:,} that were not"
    )
    text += f", over {run.steps:,} steps" if run.steps is not None else ""
    if run.scheme:
        text += f", each present one drawn by {run.scheme}"
    elif run.sampling_rate is not None:
        text += f", each present one in a step with probability {run.sampling_rate:.4g}"
    if run.sampling == "own coin":
        text += " (drawn by the audit itself, not by the sampler of the training)"
    elif run.sampling:
        text += " (drawn by the sampler of the training)"
    text += ". "
    if run.background is not None:
        known = "was" if run.background == "known" else "was not"
        text += f"The contribution of all other records {known} subtracted. "
    text += f"The method is {method_of(result)}; its bound holds with confidence "
    text += f"{confidence_in_words(result.confidence)}."
    return text


def not_usable(result: AuditResult) -> str:
    """Why there is no bound to use."""
    if result.carries_bound:
        return f"{bound(result.epsilon_lower)} is not valid"
    return measured(result)


def _found(result: AuditResult) -> str:
    found = number(result.epsilon_lower)
    if usable(result):
        text = f"It found that epsilon is at least {found} at delta {result.delta:g}"
        text += ". "
        if result.if_gaussian is not None:
            text += f"Had Gaussian noise been declared, it would be {number(result.if_gaussian)}. "
    elif result.carries_bound:
        text = f"Its bound of {found} must not be used: an assumption it rests on failed a check. "
    else:
        text = f"It found {measured(result)}. "
    if result.distribution_free is not None:
        free = number(result.distribution_free)
        text += f"Without that assumption, epsilon is at least {free} at delta {result.delta:g}. "
    if result.verdict is None:
        return text + "No verdict follows from that."
    text += f"Verdict: {result.verdict.value}. {reason(result)} "
    text += f"A correct run ends in VIOLATION or INVALID with probability {result.gate_error:g}"
    text += " at most. "
    if result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE):
        text += (
            "No evidence against a claim is not evidence for it: an audit proves nothing private."
        )
    return text.rstrip()


def _untested(result: AuditResult) -> str:
    text = " ".join(
        f"{label[:1].upper()}{label[1:]}{'' if label == 'outside' else ':'} {words}."
        for label, words in result.scope_rows()
    )
    idle = [one_line(item.check, 60) for item in result.findings if item.status is Status.NOT_RUN]
    if idle:
        text += f" Checks that could not be made: {', '.join(idle)}."
    return text
