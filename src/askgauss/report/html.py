"""The HTML report, the notebook card, the page of a replay, and figures as inline SVG."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from askgauss import policy
from askgauss._text import confidence_in_words, one_line, printable
from askgauss.figures import style
from askgauss.figures.leak_figures import (
    EpsilonAxis,
    EpsilonByCanaries,
    EpsilonBySteps,
    Meaning,
    TradeOffCurves,
)
from askgauss.figures.run_figures import (
    BoundByStep,
    EvidenceByStep,
    GramMatrix,
    NoiseByStep,
    NoiseByTensor,
    NoiseShape,
)
from askgauss.figures.score_figures import (
    Convergence,
    GaussianDistance,
    ScoreDensity,
    ScoreHistogram,
)
from askgauss.figures.style import AuditFigure, NothingToDrawError
from askgauss.figures.summary import Summary, tables_of
from askgauss.files import codec
from askgauss.report import words
from askgauss.results import AuditResult, Status, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

    from askgauss.comparison import Comparison
    from askgauss.replay import ReplayReport

__all__ = ["SECTIONS", "Section", "card", "render", "render_replay", "svg"]


# The colours figures are drawn in, and the names the style sheet knows them by.
_COLORS = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "paper",
    style.OTHER: "other",
    style.CLAIM: "claim",
    **dict.fromkeys(style.ACCENTS.values(), "accent"),
}


def svg(figure: AuditFigure, prefix: str) -> Any:
    """A figure as inline SVG that takes its colours and its type from the page.

    Args:
        figure: The figure.
        prefix: What its ids begin with, so that they meet no other figure's nor another report's.
    """
    from markupsafe import Markup, escape
    from matplotlib.figure import Figure

    options: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": prefix,
        "text.parse_math": False,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "path.simplify": True,
    }
    with _drawing(options):
        canvas = Figure(figsize=figure.size, layout="constrained")
        figure.plot(canvas.add_subplot())
        canvas.patch.set_alpha(0.0)
        for ax in canvas.axes:
            ax.patch.set_alpha(0.0)
        stream = io.StringIO()
        canvas.savefig(stream, format="svg", dpi=110, metadata={"Date": None, "Creator": None})
    drawn = _compact(stream.getvalue(), prefix)
    head, rest = drawn.split(">", 1)
    spoken = escape(figure.label)
    return Markup(f'{head} role="img" aria-label="{spoken}"><title>{spoken}</title>{rest}')


_DRAWING = threading.Lock()


@contextlib.contextmanager
def _drawing(options: Any) -> Iterator[None]:
    """Our few settings of matplotlib, which belong to the whole process, while a figure is drawn.

    One figure at a time: settings of two that overlap would be put back in the wrong order. Only
    these are put back, so that what somebody else sets meanwhile stays. Whoever draws in another
    thread meanwhile draws by them: matplotlib has one set of settings for all threads.
    """
    import matplotlib as mpl

    with _DRAWING:
        before: Any = {name: mpl.rcParams[name] for name in options}
        mpl.rcParams.update(options)
        try:
            yield
        finally:
            mpl.rcParams.update(before)


def _compact(drawn: str, prefix: str) -> str:
    """What the backend wrote, less what a page does not need, in the page's colours and type."""
    drawn = drawn[drawn.index("<svg") :]
    # A style element inside an inline image would speak to the whole page.
    drawn = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', drawn))

    def named(found: re.Match[str]) -> str:
        return f' id="{prefix}-{found[1]}"' if found[1] in used else ""

    def tag(found: re.Match[str]) -> str:
        inside = re.sub(r' id="([^"]+)"', named, found[0])
        inside = re.sub(r'(url\(|href=")#([^)"]+)', rf"\1#{prefix}-\2", inside)
        # The size of the type is kept; its face is the page's.
        inside = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", inside)
        inside = re.sub(r"font-family: [^;\"]*; ?", "", inside)
        inside = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", inside)
        inside = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", inside)
        inside = re.sub(r"\s*\n\s*", " ", inside)
        return inside.replace("; ", ";").replace(": ", ":")

    drawn = re.sub(r"<[^>]+>", tag, drawn)
    for color, name in _COLORS.items():
        drawn = drawn.replace(color, f"var(--{name})")
    drawn = re.sub(r">\s+<", "><", drawn)
    while (shorter := re.sub(r"<(g|defs)></\1>|<(g|defs)/>", "", drawn)) != drawn:
        drawn = shorter
    return drawn


_SCHEMA = 1
_COMPARED = 9
_EVIDENCE = 6000
# Checks that the figure of the noise's shape shows the failure of.
_SHAPES = {"noise shape", "noise extremes", "values without noise", "noise precision"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the report, with its figures."""

    name: str
    title: str
    lead: str
    figures: tuple[type[AuditFigure], ...]


SECTIONS = (
    Section(
        name="scores",
        title="The scores",
        lead="One number a canary: what the run released about it, summed. The audit reads the "
        "distance between the two groups against the width of the noise.",
        figures=(ScoreHistogram, GaussianDistance),
    ),
    Section(
        name="leak",
        title="The leak",
        lead="Every attack errs in two ways. The lower the curve, the less it must err, and the "
        "more the run leaks.",
        figures=(TradeOffCurves, EpsilonByCanaries),
    ),
    Section(
        name="canaries",
        title="Independent and alike",
        lead="The bound takes canaries for independent and identically distributed. Both would "
        "show here if they were not.",
        figures=(GramMatrix, ScoreDensity),
    ),
    Section(
        name="noise",
        title="The noise",
        lead="What was released where no canary was included is noise alone, so its scale can be "
        "measured step by step and tensor by tensor, and its shape be looked at.",
        figures=(NoiseByStep, NoiseByTensor, NoiseShape),
    ),
    Section(
        name="steps",
        title="Over the steps",
        lead="Privacy is spent step by step, and the sum of many steps is close to Gaussian "
        "whatever a step is.",
        figures=(EpsilonBySteps, Convergence),
    ),
)
"""Every section with figures of any result; a watched run has one more."""


def render(result: AuditResult, comparison: Comparison | None = None) -> str:
    """One self-contained HTML page: no script, nothing fetched, light, dark and on paper.

    Args:
        result: The audit.
        comparison: Other auditors' bounds on the same scores, shown beside it.

    Returns:
        The page.
    """
    made = {kind: _made(kind, result) for section in _sections(result) for kind in section.figures}
    page = _header(result, comparison) | _body(result, made)
    return _rendered("template.html", result=result, page=page)


def _made(kind: type[AuditFigure], result: AuditResult) -> AuditFigure | str:
    """A figure with its numbers, or why there is none."""
    try:
        return kind.from_result(result)
    except NothingToDrawError as missing:
        return missing.reason


def _sections(result: AuditResult) -> list[Section]:
    """Where the noise is not what the bound takes it for, it is what to look at first."""
    failed = {item.check for item in result.findings if item.status is Status.FAIL}
    sections = list(SECTIONS)
    if failed & _SHAPES:
        sections.sort(key=lambda item: item.name != "noise")
    return [*sections, *_course_section(result)]


def _course_section(result: AuditResult) -> list[Section]:
    """How a run that was watched went; nothing where nobody watched."""
    course = _made(BoundByStep, result)
    if not isinstance(course, BoundByStep):
        return []
    alarm, untested = course.feed.alarm, course.feed.untested
    happened = "There was no alarm." if alarm is None else one_line(str(alarm), 600)
    unseen = "; ".join(f"{name}: {why}" for name, why in untested.items())
    return [
        Section(
            name="course",
            title="While it trained",
            lead=f"A monitor watched every step. {happened}"
            + (f" Not watched: {one_line(unseen, 400)}." if unseen else ""),
            figures=(BoundByStep, EvidenceByStep),
        )
    ]


def card(result: AuditResult) -> str:
    """The head of the report, to stand in a notebook.

    Args:
        result: The audit.

    Returns:
        A piece of HTML that brings its own style.
    """
    inside = _rendered("card.html", result=result, page=_header(result, None))
    verdict = "NONE" if result.verdict is None else result.verdict.value
    return (
        f'<div class="askgauss card" data-verdict="{verdict}">'
        f"<style>{_style_sheet()}</style>{inside}</div>"
    )


@functools.cache
def _templates() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    # Every text that may come from outside passes through it.
    environment.filters["line"] = one_line
    environment.globals |= {"words": words, "style": _style_sheet()}
    return environment


def _rendered(template: str, **content: Any) -> str:
    return _templates().get_template(template).render(**content)


def _resource(name: str) -> str:
    return resources.files("askgauss.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _style_sheet() -> Any:
    from markupsafe import Markup

    return Markup(_resource("style.css"))  # our own file


# --- the page ------------------------------------------------------------------------------------


def _shown(
    result: AuditResult, kind: type[AuditFigure], figure: AuditFigure | str
) -> dict[str, Any]:
    """A figure for the template, or the line that says why there is none."""
    if isinstance(figure, str):
        return {"title": kind.title, "svg": "", "missing": figure}
    prefix = f"g{zlib.crc32(repr(result).encode('utf-8', 'replace')):08x}-{kind.__name__}"
    return {
        "title": kind.title,
        "caption": figure.caption,
        "kind": kind.kind,
        "svg": svg(figure, prefix),
    }


def _header(result: AuditResult, comparison: Comparison | None) -> dict[str, Any]:
    """What the report and the notebook card share."""
    claim, free = result.claim, result.distribution_free
    confidence = f"with confidence {confidence_in_words(result.confidence)}"
    claimed = "none" if claim is None else f"ε = {claim.epsilon:g}"
    facts = [("claimed", claimed, f"at δ = {result.delta:g}")]
    if result.usable:
        facts.append(("measured", words.bound(result.epsilon_lower), confidence))
    else:
        facts.append(("measured", "nothing", words.not_usable(result)))
    if free is not None:
        facts.append(("without assumptions", words.bound(free.epsilon_lower), confidence))
    if result.power is not None and claim is not None:
        leaks = f"of leaks of ε = {policy.ALTERNATIVE * claim.epsilon:g}"
        facts.append(("power", f"{math.floor(100.0 * result.power)} %", leaks))
    return {
        "facts": facts,
        "scope": [*words.scope_rows(result), *(("note", note) for note in result.notes)],
        "axis": _shown(result, EpsilonAxis, EpsilonAxis.from_result(result, comparison)),
    }


def _body(result: AuditResult, made: dict[type[AuditFigure], AuditFigure | str]) -> dict[str, Any]:
    curves, summary = made[TradeOffCurves], tables_of(result)
    assert isinstance(curves, TradeOffCurves)
    meaning = curves.meaning
    failed = sum(item.status is Status.FAIL for item in result.findings)
    tested = sum(item.p_value is not None for item in result.findings)
    return {
        "compared": _compared(result),
        "sections": [
            (section, [_shown(result, kind, made[kind]) for kind in section.figures])
            for section in _sections(result)
        ],
        "meaning": words.meaning_rows(meaning),
        "meaning_note": _meaning_note(result, meaning),
        "findings_lead": (
            f"{len(result.findings)} checks, {failed} failed. The {tested} that test something "
            f"share a false-alarm probability of {0.5 * result.gate_error:g}, by Holm's procedure."
            if result.findings
            else "No checks were made: the audit ran without diagnostics."
        ),
        "statement": words.statement(result, summary.run),
        "versions": _versions(result, summary),
        "evidence": _evidence(result),
    }


def _compared(result: AuditResult) -> list[tuple[str, str, str, str, words.StatusWord]]:
    """What was measured, its interval, what was claimed, and the result."""
    verdict = words.StatusWord("–", "", "skip")
    if result.verdict is not None:
        verdict = words.StatusWord(result.verdict.value.lower(), "", "fail")
    claimed = "–" if result.claim is None else f"{result.claim.epsilon:g}"
    measured = words.bound(result.epsilon_lower).removeprefix("ε ")
    found = [
        item
        for item in words.ordered(result.findings)
        if item.measured is not None and item.claimed is not None
    ]
    return [
        ("epsilon", measured, "", claimed, verdict),
        *(
            (
                item.check,
                words.value(item.measured),
                words.interval(item.interval),
                words.value(item.claimed),
                words.status(item),
            )
            for item in found[: _COMPARED - 1]
        ),
    ]


def _meaning_note(result: AuditResult, meaning: Meaning) -> str:
    note = f"Belief: but for events of probability {result.delta:g}."
    if result.claim is None:
        return note
    if meaning.from_mechanism:
        note += " Claimed rates are those of the mechanism described in the claim."
    elif meaning.from_gaussian:
        note += " Claimed rates are those of a Gaussian mechanism of the claimed ε and δ."
    else:
        note += " Claimed rates are those of the worst mechanism the claimed ε and δ allow."
    below = result.epsilon_lower <= result.claim.epsilon
    if result.verdict is Verdict.VIOLATION and below:
        note += " The violation is not in these rates: a part of the mechanism is broken."
    return note


def _versions(result: AuditResult, summary: Summary) -> list[tuple[str, str]]:
    run = summary.run
    options = codec.to_plain(result.auditor)
    rows = [
        ("askgauss", result.version),
        ("report schema", str(_SCHEMA)),
        ("auditor", result.auditor.name),
        ("options", ", ".join(f"{key} = {item}" for key, item in options.items()) or "none"),
        ("number formats met", ", ".join(run.precision)),
        *_provenance(result),
        *summary.environment,
        *(("note", note) for note in run.notes),
    ]
    return [(name, item) for name, item in rows if item]


def _provenance(result: AuditResult) -> list[tuple[str, str]]:
    source = result.provenance
    if source is None:
        return []
    return [
        ("audited file", source.file),
        ("its SHA-256", source.sha256),
        ("audited at", source.audited),
        ("command", source.command),
        ("commit", source.commit),
        ("environment", ", ".join(f"{key} {item}" for key, item in source.environment.items())),
    ]


def _evidence(result: AuditResult) -> str:
    shown = json.dumps(codec.to_plain(result.evidence), indent=2, ensure_ascii=False)
    lines = [printable(line) for line in shown.replace("  ", "\u00a0\u00a0").splitlines()]
    shown = "\n".join(lines)
    return shown if len(shown) <= _EVIDENCE else shown[:_EVIDENCE] + "\n… the rest is in the JSON."


def render_replay(report: ReplayReport) -> str:
    """A replay as one self-contained HTML page: no script, nothing fetched."""
    remedies = {item.check.removeprefix("replay: "): item.remedy for item in report.findings}
    return _rendered("replay.html", report=report, remedies=remedies)
