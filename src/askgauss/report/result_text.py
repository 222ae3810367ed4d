"""A result as text for a terminal, a log or a test report; every number was computed elsewhere."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from askgauss import policy
from askgauss._text import one_line
from askgauss.checks.causes import ordered
from askgauss.checks.scope import OUTSIDE
from askgauss.results import AuditResult, Part, Status, Verdict, number, whole_percent

__all__ = [
    "measured",
    "method_of",
    "of_the_claim",
    "scope_line",
    "scope_rows_of",
    "sight_of",
    "text_of",
]

_WIDTH = 100
_LABEL = 12
_MOST_FINDINGS = 5
_SHOWN = (Status.FAIL, Status.WARN, Status.INFO)


def text_of(result: AuditResult) -> str:
    """The whole answer: verdict, bound, method, what it could see, scope, notes, findings."""
    lines = []
    if result.claim is not None and result.verdict is not None:
        lines.append(one_line(f"{result.verdict.value}: {result.reason}"))
    elif result.claim is None:
        lines.append("NO VERDICT: no claim was given to hold the run to.")
    else:
        lines.append("NO VERDICT: this method gives an estimate without a guarantee.")
    for label, words in _rows(result):
        lines += textwrap.wrap(
            one_line(words),
            width=_WIDTH,
            break_long_words=False,
            initial_indent=f"  {label:<{_LABEL}}",
            subsequent_indent=" " * (_LABEL + 2),
        )
    shown = [item for item in result.findings if item.status in _SHOWN]
    for finding in ordered(shown)[:_MOST_FINDINGS]:
        lines += textwrap.wrap(
            one_line(f"{finding} {finding.remedy}"),
            width=_WIDTH,
            break_long_words=False,
            initial_indent="  ",
            subsequent_indent="      ",
        )
    if len(shown) > _MOST_FINDINGS:
        lines.append(
            f"  and {len(shown) - _MOST_FINDINGS} more findings, in the report and the JSON"
        )
    return "\n".join(lines)


def _rows(result: AuditResult) -> Iterator[tuple[str, str]]:
    """Labelled lines between the verdict and the findings."""
    claim = result.claim
    if claim is not None:
        yield "claimed", str(claim)
    yield "measured", measured(result)
    canaries = f"{result.present:,} present and {result.absent:,} absent canaries"
    yield "method", f"{method_of(result)}; {canaries}"
    if result.distribution_free is not None:
        free = f"epsilon >= {number(result.distribution_free)}"
        yield "instead", f"{free} by the distribution-free method"
    if result.if_gaussian is not None:
        stated = f"epsilon >= {number(result.if_gaussian)}"
        yield "if Gaussian", f"{stated}, had Gaussian noise been declared"
    if math.isfinite(result.ceiling):
        yield "ceiling", f"this method could report at most {number(result.ceiling)}"
    if result.commitment is not None:
        yield "committed", f"sha256 {result.commitment}"
    if result.sight:
        yield "would see", result.sight
    yield from result.scope_rows()
    for note in result.notes:
        yield "note", note
    if result.provenance is not None:
        yield "source", str(result.provenance)
    yield "next", result.next_step


def method_of(result: AuditResult) -> str:
    """The method, and what its bound assumes."""
    more = ""
    if getattr(result.auditor, "replaced", False):
        more = ", and that a gradient and its opposite are clipped and noised alike"
    return f"{result.auditor.name}, assuming {result.assumption.value}{more}"


def measured(result: AuditResult) -> str:
    """The bound in words; one that must not be used is called so."""
    gap = policy.membership_gap(result.findings)
    if gap is not None:
        return f"no bound: membership {'was not randomised' if gap == 'fixed' else 'is not stated'}"
    if result.verdict is Verdict.INVALID:
        return f"no usable bound; {number(result.epsilon_lower)} rests on an assumption that failed"
    share, claim = "", result.claim
    if claim is not None and claim.delta == result.delta:
        share = f" ({of_the_claim(result.epsilon_lower, claim.epsilon)})"
    return (
        f"epsilon >= {number(result.epsilon_lower)} at delta {result.delta:g}, "
        f"confidence {result.confidence:g}{share}"
    )


def of_the_claim(epsilon: float, claimed: float) -> str:
    """How much of the claim a bound is: a share, or how many times."""
    share = whole_percent(epsilon / claimed)
    return f"{share} the claim" if share.endswith("times") else f"{share} of the claim"


def sight_of(result: AuditResult) -> str:
    """What an audit like this calls a violation, and how often; empty where unknown."""
    parts = []
    if result.smallest_leak is not None:
        parts.append(f"a true epsilon of {number(result.smallest_leak)} in 80% of audits")
    if result.power is not None and result.claim is not None:
        alternative = policy.ALTERNATIVE * result.claim.epsilon
        one = "one" if parts else "a true epsilon"
        parts.append(f"{one} of {alternative:g} in {whole_percent(result.power)}")
    if not parts:
        return ""
    return f"{', '.join(parts)}; a sound run is called broken in at most {result.gate_error:.2g}"


def scope_rows_of(result: AuditResult) -> list[tuple[str, str]]:
    """What was tested, what is broken, what was not tested and how it would be, what none can be.

    Every output shows these rows, and no other list of parts.
    """
    tested = [
        f"{part.name} ({part.smallest} would show)" if part.smallest else part.name
        for part in _named(result, "fine")
    ]
    unseen: dict[str, list[str]] = {}
    for part in _named(result, "not tested"):
        unseen.setdefault(part.how_to_test, []).append(part.name)
    untested = [
        f"{', '.join(names)} ({how})" if how else ", ".join(names) for how, names in unseen.items()
    ]
    rows = (
        ("tested", tested),
        ("broken", [part.name for part in _named(result, "broken")]),
        ("not tested", untested if result.scope else ["every part: no checks were made"]),
        ("outside", [f"any audit of one run: {', '.join(OUTSIDE)}"]),
    )
    return [(label, "; ".join(items)) for label, items in rows if items]


def _named(result: AuditResult, status: str) -> list[Part]:
    return [part for part in result.scope if part.status == status]


def scope_line(result: AuditResult) -> str:
    """The same rows in one line."""
    return ". ".join(f"{label}: {words}" for label, words in scope_rows_of(result))
