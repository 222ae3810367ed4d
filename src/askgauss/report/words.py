"""A result in words, for terminals, logs and reports; every number was computed elsewhere."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from askgauss import policy, power
from askgauss._text import confidence_in_words, number, of_the_claim, one_line, whole_percent
from askgauss.checks.gate import leading, ordered, root_causes
from askgauss.checks.registry import severity
from askgauss.checks.scope import OUTSIDE, scope_of
from askgauss.results import (
    MEMBERSHIP,
    PRIVATE_NOTE,
    AuditResult,
    Consequence,
    Finding,
    Part,
    Status,
    Verdict,
    membership_gap,
)

if TYPE_CHECKING:
    from askgauss.figures.leak_figures import Meaning
    from askgauss.figures.summary import RunSummary

__all__ = [
    "Advice",
    "StatusWord",
    "advice",
    "advice_rows",
    "bound",
    "brief",
    "closing_rows",
    "consequence",
    "describe",
    "headline",
    "interval",
    "meaning_rows",
    "measured",
    "method",
    "not_usable",
    "ordered",
    "p_value",
    "part_rows",
    "percent",
    "reason",
    "scope_line",
    "scope_rows",
    "sight",
    "statement",
    "status",
    "text",
    "value",
]

_WIDTH = 100
_TERMINAL, _MOST_LINES = 80, 14
_LABEL = 12
_MOST_FINDINGS = 5
_SHOWN = (Status.FAIL, Status.WARN, Status.INFO)
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
    Consequence.INFORMS: "informational",
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
    "broken": StatusWord("violated", "✕", "fail"),
    "not tested": StatusWord("not tested", "–", "skip"),
}


# --- the result as text --------------------------------------------------------------------------


def text(result: AuditResult) -> str:
    """The whole answer: verdict, bound, method, what it could see, scope, notes, findings."""
    verdict = "NO VERDICT" if result.verdict is None else result.verdict.value
    lines = [one_line(f"{verdict}: {_why(result)}")]
    for label, words in _rows(result):
        lines += _wrapped(words, width=_WIDTH, first=f"  {label:<{_LABEL}}", then=_LABEL + 2)
    shown = [item for item in result.findings if item.status in _SHOWN]
    for finding in ordered(shown)[:_MOST_FINDINGS]:
        lines += _wrapped(f"{finding} {finding.remedy}", width=_WIDTH, first="  ", then=6)
    if len(shown) > _MOST_FINDINGS:
        lines.append(
            f"  and {len(shown) - _MOST_FINDINGS} more findings, in the report and the JSON"
        )
    return "\n".join(lines)


def brief(result: AuditResult) -> str:
    """The answer in at most 14 lines of 80 columns: verdict, numbers, what was not tested, next."""
    verdict = "NO VERDICT" if result.verdict is None else result.verdict.value
    failed = [item.check for item in ordered(result.findings) if item.status is Status.FAIL]
    untested = [part.name for part in _with_status(result.scope, "not tested")]
    canaries = f"{result.present:,} inserted and {result.absent:,} held-out canaries"
    # Each with the lines it may take; the next step takes what is left.
    rows = (
        ("claimed", "" if result.claim is None else str(result.claim), 1),
        ("measured", measured(result), 2),
        ("method", f"{result.auditor.name}; {canaries}", 1),
        ("power", sight(result), 2),
        ("failed", ", ".join(failed), 1),
        ("not tested", ", ".join(untested) if result.scope else "every part", 3),
        ("private", PRIVATE_NOTE.rpartition(". ")[2] if result.private else "", 1),
        ("next", advice(result).action, _MOST_LINES),
    )
    lines = _wrapped(f"{verdict}: {_why(result)}", width=_TERMINAL, first="", then=2, most=2)
    for label, words, most in rows:
        if words:
            first = f"  {label:<{_LABEL}}"
            room = min(most, _MOST_LINES - len(lines))
            lines += _wrapped(words, width=_TERMINAL, first=first, then=_LABEL + 2, most=room)
    return "\n".join(lines)


def _wrapped(
    words: str, *, width: int, first: str, then: int, most: int | None = None
) -> list[str]:
    # Names come from outside: one line until it is wrapped, and no word is cut for a line to begin
    # with what a name wants there.
    return textwrap.wrap(
        one_line(words),
        width=width,
        break_long_words=False,
        break_on_hyphens=False,
        initial_indent=first,
        subsequent_indent=" " * then,
        max_lines=most,
        placeholder=" …",
    )


def _why(result: AuditResult) -> str:
    """The reason of the verdict, or why there is none."""
    if result.verdict is not None and result.reason:
        return result.reason
    if result.claim is None:
        return "no claim was given to compare the run with."
    return "this method gives an estimate without a guarantee."


def _rows(result: AuditResult) -> Iterator[tuple[str, str]]:
    """Labelled lines between the verdict and the findings."""
    if result.claim is not None:
        yield "claimed", str(result.claim)
    yield "measured", measured(result)
    canaries = f"{result.present:,} inserted and {result.absent:,} held-out canaries"
    yield "method", f"{method(result)}; {canaries}"
    if result.distribution_free is not None:
        free = f"epsilon >= {number(result.distribution_free.epsilon_lower)}"
        yield "instead", f"{free} by the distribution-free method"
    if result.if_gaussian is not None:
        stated = f"epsilon >= {number(result.if_gaussian.epsilon_lower)}"
        yield "if Gaussian", f"{stated}, had Gaussian noise been declared"
    if math.isfinite(result.ceiling):
        yield "ceiling", f"this method could report at most {number(result.ceiling)}"
    if result.commitment is not None:
        yield "committed", f"sha256 {result.commitment}"
    yield from closing_rows(result)


def closing_rows(result: AuditResult) -> Iterator[tuple[str, str]]:
    """What the audit could see, what it tested, notes, where it comes from, and what to do."""
    if seen := sight(result):
        yield "power", seen
    yield from scope_rows(result)
    for note in result.notes:
        yield "note", note
    if result.provenance is not None:
        yield "source", str(result.provenance)
    yield "next", advice(result).action


def method(result: AuditResult) -> str:
    """The method, and what its bound assumes."""
    more = ""
    if getattr(result.auditor, "replaced", False):
        more = ", and that a gradient and its opposite are clipped and noised alike"
    return f"{result.auditor.name}, assuming {result.assumption.value}{more}"


def measured(result: AuditResult) -> str:
    """The bound in words; one that must not be used is called so."""
    gap = membership_gap(result.findings)
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


def sight(result: AuditResult) -> str:
    """What an audit like this calls a violation, and how often; empty where unknown."""
    seen = ""
    if result.smallest_leak is not None:
        seen = f"flags a true epsilon of {number(result.smallest_leak)} in 80% of audits"
    if result.power is not None and result.claim is not None:
        alternative = policy.ALTERNATIVE * result.claim.epsilon
        share = f"{alternative:g} in {whole_percent(result.power)}"
        seen = f"{seen}, one of {share}" if seen else f"flags a true epsilon of {share} of audits"
    return f"{seen}; false-alarm rate at most {result.gate_error:.2g}" if seen else ""


def scope_rows(result: AuditResult) -> list[tuple[str, str]]:
    """What was tested, what is broken, what was not tested and how it would be, what none can be.

    Every output shows these rows, and no other list of parts.
    """
    tested = [
        f"{part.name} (detects {part.smallest})" if part.smallest else part.name
        for part in _with_status(result.scope, "fine")
    ]
    untested = [f"{names} ({how})" if how else names for names, how in _untested(result.scope)]
    rows = (
        ("tested", tested),
        ("violated", [part.name for part in _with_status(result.scope, "broken")]),
        ("not tested", untested if result.scope else ["every part: no checks were made"]),
        ("outside", [f"any audit of one run: {', '.join(OUTSIDE)}"]),
    )
    return [(label, "; ".join(items)) for label, items in rows if items]


def _with_status(scope: Iterable[Part], status: str) -> list[Part]:
    return [part for part in scope if part.status == status]


def _untested(scope: Iterable[Part]) -> list[tuple[str, str]]:
    """Parts that were not tested, those together that one step would test, and that step."""
    together: dict[str, list[str]] = {}
    for part in _with_status(scope, "not tested"):
        together.setdefault(part.how_to_test, []).append(part.name)
    return [(", ".join(names), how) for how, names in together.items()]


def scope_line(result: AuditResult) -> str:
    """The same rows in one line."""
    return ". ".join(f"{label}: {words}" for label, words in scope_rows(result))


# --- what follows from it ------------------------------------------------------------------------

# Methods that an audit takes where none is asked for.
_DEFAULTS = ("gaussian-shift", "subsampled-gaussian")

_MAINTAINER = "the maintainer of the training code"
_AUDITOR = "the person who runs the audit"
_OWNER = "the owner of the privacy claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What follows from a result.

    Attributes:
        meaning: What it means, without statistics.
        action: The next step, with a number where one helps.
        actor: Who should take it.
        present: How many present canaries would be enough, where that is the next step.
        absent: How many absent ones beside them.
    """

    meaning: str
    action: str
    actor: str
    present: int | None = None
    absent: int | None = None


def advice(result: AuditResult) -> Advice:
    """What a result means, the next step, and who should take it.

    Args:
        result: The audit.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> draw = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=draw.normal(size=50), absent=draw.normal(size=50), noise="gaussian")
        >>> advice(ag.audit(scores, delta=1e-5)).action
        'Audit it against a claim: --epsilon and --delta, or claim=PrivacyClaim(...).'
    """
    if result.verdict is Verdict.VIOLATION:
        return _violation(result)
    if result.verdict is Verdict.INVALID:
        return _invalid(result)
    if result.verdict is Verdict.INCONCLUSIVE:
        return _inconclusive(result)
    if result.verdict is Verdict.CONSISTENT:
        return _consistent(result)
    if membership_gap(result.findings) is not None:
        return _ask_for_membership(result)
    if result.claim is None:
        return Advice(
            meaning="This is a measurement without a claim to compare it with: it can neither "
            "pass nor fail.",
            action="Audit it against a claim: --epsilon and --delta, or claim=PrivacyClaim(...).",
            actor=_AUDITOR,
        )
    return Advice(
        meaning="This method gives an estimate without a guarantee: nothing follows for the claim.",
        action="Audit with a method that gives a bound, such as the default one.",
        actor=_AUDITOR,
    )


def _violation(result: AuditResult) -> Advice:
    breached = policy.failures(result.findings, Consequence.BREACH)
    breach = leading(result.findings) if breached else None
    claimed = "" if result.claim is None else f" of epsilon {result.claim.epsilon:g}"
    if breach is not None:
        meaning = (
            f"The private training is broken: {breach.check}. The privacy claim{claimed} does not "
            "hold for this run."
        )
        step = breach.remedy
    else:
        meaning = (
            f"This run gives away more about single records than its privacy claim{claimed} allows."
        )
        step = (
            "Every part that was measured by itself looks as claimed: look at the accountant, the "
            "steps that were not recorded, and the claim itself."
        )
        if result.claim is not None and result.claim.adjacency == "replace":
            step = (
                "Replacing a record moves a sum by two clip norms: account for replace-one "
                "neighbours, which add-remove accountants do not."
            )
    action = f"Do not release the model under this claim. {step} Then train and audit again."
    return Advice(meaning=meaning, action=action, actor=f"{_MAINTAINER}, and {_OWNER}")


def _invalid(result: AuditResult) -> Advice:
    broken = leading(result.findings)
    name = "an assumption" if broken is None else f"the check of {broken.check}"
    return Advice(
        meaning="The audit could not measure what this run gives away, because "
        f"{name} failed. That is neither good nor bad news about the claim: it is untested.",
        action=f"{'' if broken is None else broken.remedy} Then audit again.".strip(),
        actor=f"{_MAINTAINER}, together with {_AUDITOR}",
    )


def _inconclusive(result: AuditResult) -> Advice:
    if membership_gap(result.findings) is not None:
        return _ask_for_membership(result)
    weak, kinds = policy.weakness(result.findings, result.scope, result.power), policy.WeaknessKind
    if weak is None or weak.kind is kinds.POWER:
        return _more_canaries(result)
    if weak.kind is kinds.PARTS:
        names = " and ".join(part.name for part in weak.parts)
        how = weak.parts[0].how_to_test
        return _weak(f"no check could assess {names}", f"{how[:1].upper()}{how[1:]}.")
    found = weak.finding
    assert found is not None
    if weak.kind is kinds.STEPS:
        return _weak(
            f"only {found.measured:,.0f} of {found.claimed:,.0f} steps were audited",
            "If training stopped early, claim the epsilon accounted for the steps that were "
            f"taken, PrivacyClaim(..., steps={found.measured:.0f}), and say planned_steps= when "
            "attaching; if not, attach the audit to the whole run.",
        )
    return _weak(
        "canaries added less to a step than a record may",
        f"{found.remedy} Or plant canaries of a whole clip norm: "
        "CanaryAudit(optimizer, ...) without ExampleCanaries does.",
    )


def _weak(
    why: str, action: str, *, present: int | None = None, absent: int | None = None
) -> Advice:
    meaning = f"No evidence against the claim, but {why}. Treat the claim as untested."
    return Advice(meaning=meaning, action=action, actor=_AUDITOR, present=present, absent=absent)


def _ask_for_membership(result: AuditResult) -> Advice:
    (asked,) = [item for item in result.findings if item.check == MEMBERSHIP]
    return Advice(
        meaning="Nothing follows for the run: it is not known whether the two groups of canaries "
        "were alike before training.",
        action=asked.remedy,
        actor=_AUDITOR,
    )


def _more_canaries(result: AuditResult) -> Advice:
    """How many canaries would be enough; where no number is, what would."""
    why = "this audit was too weak to detect a leak a quarter above it"
    needed = power.needed_canaries(result, power=policy.WANTED_POWER)
    if needed is None:
        return _weak(why, _no_number_is_enough(result))
    present, absent = needed
    if (present, absent) == (result.present, result.absent):
        return _weak(
            why, "Audit again with another seed: these numbers of canaries are enough on average."
        )
    run, claim = None if result.summary is None else result.summary.run, result.claim
    assert claim is not None
    attached = ""
    if run is not None and run.steps is not None and run.source == "transcript":
        attached = f", or CanaryAudit(..., planned_steps={run.steps}) if it is to be this short"
    if run is not None and run.fair_coins:
        count = max(2 * present, 2 * absent)
        said = f"{count:,} canaries, each inserted with probability one half (CanaryAudit(..., "
        said += f"canaries={count}); DiracCanaries(count=...) is the same)"
    else:
        said = f"{present:,} inserted and {absent:,} held-out canaries (CanaryAudit(..., "
        said += f"present={present}, absent={absent}); DiracCanaries takes the same)"
    action = (
        f"Train again with {said}{attached}: such an audit flags a true epsilon of "
        f"{number(policy.ALTERNATIVE * claim.epsilon)} nine times in ten."
    )
    return _weak(why, action, present=present, absent=absent)


def _no_number_is_enough(result: AuditResult) -> str:
    name = result.auditor.name
    room = None if result.summary is None else result.summary.run.places
    if name in _DEFAULTS and result.power is None:
        return "Audit a claim at a delta above 0, against which power can be computed."
    if result.power is None:
        return f"{name} does not state its power: audit with the default method."
    if room is not None and name == "subsampled-gaussian":
        return (
            f"This model has room for {room:,} canaries, one a parameter, and no number of "
            "them is enough for this claim. Use ExampleCanaries, which are records and take no "
            "room, or train with a smaller sampling rate, at which fewer canaries do."
        )
    if not result.noise_declared:
        return (
            "Thresholds on scores certify little of a large epsilon. Audit from inside the "
            'training (CanaryAudit), or with auditor="one-run-fdp" where the mechanism is '
            "close to a Gaussian one."
        )
    if name in _DEFAULTS:
        return (
            f"No number of canaries is enough for {name} at this claim: audit the transcript "
            "rather than scores, over more of the steps."
        )
    return (
        f"Not even {power.LARGEST_SIMULATED:,} inserted and as many held-out canaries are "
        f"enough for {name} at this claim: audit with the default method, from the "
        "transcript where there is one."
    )


def _consistent(result: AuditResult) -> Advice:
    seen = ""
    if result.smallest_leak is not None:
        seen = f" that flags a true epsilon of {number(result.smallest_leak)} four times in five"
    untested = _with_status(result.scope, "not tested")
    meaning = f"An audit{seen} found nothing against the claim. That is no proof of privacy"
    if not untested:
        return Advice(
            meaning=f"{meaning}.",
            action="Keep the result with the model: askgauss attest puts it in a form that others "
            "can check.",
            actor=_OWNER,
        )
    names = ", ".join(part.name for part in untested)
    how = untested[0].how_to_test
    return Advice(
        meaning=f"{meaning}, and says nothing of what was not tested: {names}.",
        action=f"Decide whether that is enough. To test more: {how}.",
        actor=_OWNER,
    )


# --- the report ----------------------------------------------------------------------------------


def headline(result: AuditResult) -> str:
    """The verdict in a word."""
    return _HEADLINES[result.verdict]


def reason(result: AuditResult) -> str:
    """Why, in a sentence that begins with a capital."""
    sentence = one_line(_why(result))
    return sentence[:1].upper() + sentence[1:]


def advice_rows(result: AuditResult) -> list[tuple[str, str]]:
    """What this means, what to do and who should, for somebody who is no statistician."""
    found = advice(result)
    return [
        ("What this means", found.meaning),
        ("What to do", found.action),
        ("Who should act", f"{found.actor[:1].upper()}{found.actor[1:]}."),
    ]


def status(finding: Finding) -> StatusWord:
    """The status of a finding."""
    return _STATUS[finding.status]


def consequence(finding: Finding) -> str:
    """What a failure of the check means, with its severity where it failed."""
    if finding.status is Status.NOT_RUN:
        return ""
    rank = severity(finding) if finding.status in (Status.FAIL, Status.WARN) else None
    meaning = _CONSEQUENCES[finding.consequence]
    return meaning if rank is None else f"{meaning} ({rank.value})"


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


def meaning_rows(meaning: Meaning) -> list[tuple[str, str, str]]:
    """What epsilon means: claimed at most, measured at least."""
    names = (
        ("best true positive rate minus false positive rate", meaning.advantage),
        ("true positives at 1 % false positives", meaning.true_positives),
        ("belief in presence, from 50 % before", meaning.belief),
    )
    return [
        (name, percent(claimed, up=True), percent(least, up=False))
        for name, (claimed, least) in names
    ]


def part_rows(result: AuditResult) -> list[tuple[Part, StatusWord]]:
    """Every part of the training, those first that were found broken or not tested."""
    order = ("broken", "not tested", "fine")
    parts = sorted(result.scope, key=lambda part: order.index(part.status))
    return [(part, _PART_STATUS[part.status]) for part in parts]


def statement(result: AuditResult, run: RunSummary) -> list[str]:
    """What was audited, how, and what follows: paragraphs that can be quoted."""
    return [_claimed(result), _audited(result, run), _found(result), _not_covered(result)]


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
        f"The audit compared {result.present:,} canaries that were inserted into the run with "
        f"{result.absent:,} held-out ones"
    )
    text += f", over {run.steps:,} steps" if run.steps is not None else ""
    if run.scheme:
        text += f", each inserted one drawn by {run.scheme}"
    elif run.sampling_rate is not None:
        text += f", each inserted one in a step with probability {run.sampling_rate:.4g}"
    if run.sampling == "own coin":
        text += " (drawn by the audit itself, not by the sampler of the training)"
    elif run.sampling:
        text += " (drawn by the sampler of the training)"
    text += ". "
    if run.background is not None:
        known = "was" if run.background == "known" else "was not"
        text += f"The contribution of all other records {known} subtracted. "
    text += f"The method is {method(result)}; its bound holds with confidence "
    text += f"{confidence_in_words(result.confidence)}."
    return text


def not_usable(result: AuditResult) -> str:
    """Why there is no bound to use."""
    if result.carries_bound:
        return f"{bound(result.epsilon_lower)} is not valid"
    return measured(result)


def _found(result: AuditResult) -> str:
    found = number(result.epsilon_lower)
    if result.usable:
        text = f"It found that epsilon is at least {found} at delta {result.delta:g}"
        text += ". "
        if result.if_gaussian is not None:
            other = number(result.if_gaussian.epsilon_lower)
            text += f"Had Gaussian noise been declared, it would be {other}. "
    elif result.carries_bound:
        text = f"Its bound of {found} must not be used: an assumption it rests on failed a check. "
    else:
        text = f"It found {measured(result)}. "
    if result.distribution_free is not None:
        free = number(result.distribution_free.epsilon_lower)
        text += f"Without that assumption, epsilon is at least {free} at delta {result.delta:g}. "
    if result.verdict is None:
        return text + "No verdict follows from that."
    text += f"Verdict: {result.verdict.value}. {reason(result)} "
    text += f"A correct run ends in VIOLATION or INVALID with probability {result.gate_error:g}"
    text += " at most. "
    if result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE):
        text += (
            "No evidence against a claim is no evidence for it: no audit can prove a model private."
        )
    return text.rstrip()


def _not_covered(result: AuditResult) -> str:
    text = " ".join(
        f"{label[:1].upper()}{label[1:]}{'' if label == 'outside' else ':'} {words}."
        for label, words in scope_rows(result)
    )
    idle = [one_line(item.check, 60) for item in result.findings if item.status is Status.NOT_RUN]
    if idle:
        text += f" Checks that could not be made: {', '.join(idle)}."
    return text


# --- findings without a verdict ------------------------------------------------------------------

_NARROW = 88
_TITLES = (
    (Status.FAIL, "Failed:"),
    (Status.WARN, "Warnings:"),
    (Status.INFO, "Worth a look, though chance may give it:"),
)


def describe(findings: Iterable[Finding], *, exercised: Sequence[str] = ()) -> str:
    """The findings as text: what failed and why, what was not checked, and what to do next.

    A check that may fail because another one does is named under it.

    Args:
        findings: What `diagnose` returned.
        exercised: Parts of the training that the canaries went through.

    Examples:
        >>> import askgauss as ag
        >>> from askgauss.checks import diagnose
        >>> run = ag.simulate_dpsgd(steps=50, sampling_rate=0.2, noise_multiplier=2.0,
        ...                         present=100, absent=100, seed=0, fault="half-noise")
        >>> print(describe(diagnose(run)).splitlines()[0])
        Failed:
    """
    listed = list(findings)
    missing = [item for item in listed if item.status is Status.NOT_RUN]
    causes = root_causes(listed)
    lines = []
    for status, title in _TITLES:
        chosen = [item for item in listed if item.status is status and item.check not in causes]
        lines += [title] if chosen else []
        for item in chosen:
            lines += _paragraph(item, [name for name in causes if causes[name] == item.check])
    passed = sum(item.status is Status.PASS for item in listed)
    lines.append(f"{passed} of {len(listed)} checks passed; not run: {len(missing) or 'none'}.")
    for item in missing:
        lines.append(_filled(f"  {item.check} {item.summary.removeprefix('not run: ')}", 6))
    untested = _untested(scope_of(listed, exercised))
    lines += ["Not tested:"] if untested else []
    lines += [_filled(f"  {names}: {how}.", 6) for names, how in untested]
    return "\n".join(lines)


def _filled(words: str, indent: int) -> str:
    start = " " * (len(words) - len(words.lstrip()))
    return "\n".join(_wrapped(words, width=_NARROW, first=start, then=indent))


def _paragraph(finding: Finding, symptoms: list[str]) -> Iterator[str]:
    yield _filled(f"  {finding.check}: {finding.summary}", 4)
    if finding.measured is not None and finding.claimed is not None:
        interval = ""
        if finding.interval is not None:
            interval = f" (99 % interval {finding.interval[0]:.4g} to {finding.interval[1]:.4g})"
        yield f"    measured {finding.measured:.4g}{interval}, expected {finding.claimed:.4g}"
    if symptoms:
        yield _filled(f"    may explain: {', '.join(symptoms)}", 4)
    if finding.remedy:
        yield _filled(f"    {finding.remedy}", 4)
