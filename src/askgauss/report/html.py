"""The report as one HTML file, and the notebook card."""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import TYPE_CHECKING, Any

from askgauss import policy
from askgauss._text import one_line, printable
from askgauss.figures import numbers as figure_numbers
from askgauss.figures import plots
from askgauss.figures.numbers import Comparable, Missing
from askgauss.figures.summary import Summary
from askgauss.files import codec
from askgauss.report import report_text
from askgauss.report.drawing import WIDTH, Drawer
from askgauss.results import AuditResult, Status, Verdict, confidence_in_words, number

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["card", "render"]

_SCHEMA = 1
_COMPARED = 9
_EVIDENCE = 6000
# Checks that the figure of the noise's shape shows the failure of.
_SHAPES = {"noise shape", "noise extremes", "values without noise", "noise precision"}


def render(result: AuditResult, comparison: Comparable | None = None) -> str:
    """One self-contained HTML page: no script, nothing fetched, light, dark and on paper.

    Args:
        result: The audit.
        comparison: Other auditors' bounds on the same scores, shown beside it.

    Returns:
        The page.

    Raises:
        FileFormatError: The tables in the result's metadata are corrupt.
    """
    summary = Summary.from_metadata(result.metadata)
    page = _header(result, comparison) | _body(result, summary)
    return _templates().get_template("template.html").render(page=page, style=_style_sheet())


def card(result: AuditResult) -> str:
    """The head of the report, to stand in a notebook.

    Args:
        result: The audit.

    Returns:
        A piece of HTML that brings its own style.
    """
    page = _header(result, None)
    inside = _templates().get_template("card.html").render(page=page)
    verdict = page["verdict"]
    return (
        f'<div class="askgauss card" data-verdict="{verdict}">'
        f"<style>{_style_sheet()}</style>{inside}</div>"
    )


@functools.cache
def _templates() -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def _resource(name: str) -> str:
    return resources.files("askgauss.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _style_sheet() -> Any:
    from markupsafe import Markup

    return Markup(_resource("style.css"))  # our own file


# --- the page ------------------------------------------------------------------------------------


def _header(result: AuditResult, comparison: Comparable | None) -> dict[str, Any]:
    """What the report and the notebook card share."""
    claim = result.claim
    facts = [
        {
            "name": "claimed",
            "value": "none" if claim is None else f"ε = {claim.epsilon:g}",
            "note": f"at δ = {result.delta:g}",
        },
        {
            "name": "measured",
            "value": report_text.bound(result.epsilon_lower)
            if figure_numbers.usable(result)
            else "nothing",
            "note": f"with confidence {confidence_in_words(result.confidence)}"
            if figure_numbers.usable(result)
            else report_text.not_usable(result),
        },
    ]
    if result.distribution_free is not None:
        facts.append(
            {
                "name": "without assumptions",
                "value": report_text.bound(result.distribution_free),
                "note": f"with confidence {confidence_in_words(result.confidence)}",
            }
        )
    if result.power is not None and claim is not None:
        facts.append(
            {
                "name": "would have noticed",
                "value": f"{math.floor(100.0 * result.power)} %",
                "note": f"of leaks of ε = {policy.ALTERNATIVE * claim.epsilon:g}",
            }
        )
    numbers = figure_numbers.epsilon_axis(result, comparison)
    shown = f"claimed {number(numbers.claimed)}, " if numbers.claimed is not None else ""
    if figure_numbers.usable(result):
        caption = "Epsilon lies somewhere on the bar, which begins at the bound"
        caption += "; the ring is an estimate." if result.epsilon_point is not None else "."
    elif result.carries_bound:
        caption = "The bound is drawn for the record only: an assumption it rests on failed."
    else:
        caption = "There is no bound."
    if len(numbers.bounds) > 1:
        caption += " The first method decided; the others are shown for comparison only."
    figure = Drawer(result).draw(
        plots.epsilon_axis,
        numbers,
        kind="axis",
        title="",
        caption=caption,
        label=f"Epsilon on one axis: {shown}measured at least {number(result.epsilon_lower)}.",
        size=(4.3, 0.85 + (0.46 if len(numbers.bounds) < 3 else 0.36) * len(numbers.bounds)),
    )
    return {
        "verdict": "NONE" if result.verdict is None else result.verdict.value,
        "headline": report_text.headline(result),
        "reason": report_text.reason(result),
        "facts": facts,
        "advice": report_text.advice_rows(result),
        "scope": [
            {"name": name, "words": one_line(words, 600)}
            for name, words in (*result.scope_rows(), *(("note", note) for note in result.notes))
        ],
        "axis": figure,
        "version": one_line(result.version, 40),
    }


def _body(result: AuditResult, summary: Summary) -> dict[str, Any]:
    curves = figure_numbers.tradeoff_curves(result)
    meaning = curves.meaning
    failed = sum(item.status is Status.FAIL for item in result.findings)
    tested = sum(item.p_value is not None for item in result.findings)
    return {
        "compared": _compared(result),
        "parts": report_text.part_rows(result),
        "sections": _by_interest(result, _sections(result, summary, curves))
        + _course_section(result),
        "meaning": report_text.meaning_rows(meaning),
        "meaning_note": _meaning_note(result, meaning),
        "findings_lead": (
            f"{len(result.findings)} checks, {failed} failed. The {tested} that test something "
            f"share a false-alarm probability of {0.5 * result.gate_error:g}, by Holm's procedure."
            if result.findings
            else "No checks were made: the audit ran without diagnostics."
        ),
        "findings": [
            {
                "status": report_text.status(item),
                "name": one_line(item.check, 80),
                "summary": one_line(item.summary, 600),
                "remedy": one_line(item.remedy, 600),
                "consequence": report_text.consequence(item),
                "p_value": report_text.p_value(item),
            }
            for item in report_text.ordered(result.findings)
        ],
        "statement": [one_line(item) for item in report_text.statement(result, summary.run)],
        "versions": _versions(result, summary),
        "evidence": _evidence(result),
    }


def _compared(result: AuditResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "name": "epsilon",
            "measured": report_text.bound(result.epsilon_lower).removeprefix("ε "),
            "interval": "",
            "claimed": "–" if result.claim is None else f"{result.claim.epsilon:g}",
            "status": report_text.StatusWord(
                "–" if result.verdict is None else result.verdict.value.lower(),
                "",
                "fail" if result.verdict is not None else "skip",
            ),
        }
    ]
    found = [
        item
        for item in report_text.ordered(result.findings)
        if item.measured is not None and item.claimed is not None
    ]
    for item in found[: _COMPARED - 1]:
        rows.append(
            {
                "name": one_line(item.check, 60),
                "measured": report_text.value(item.measured),
                "interval": report_text.interval(item.interval),
                "claimed": report_text.value(item.claimed),
                "status": report_text.status(item),
            }
        )
    return rows


def _meaning_note(result: AuditResult, meaning: figure_numbers.Meaning) -> str:
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


def _versions(result: AuditResult, summary: Summary) -> list[dict[str, str]]:
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
    return [
        {"name": one_line(name, 60), "value": one_line(item, 400)} for name, item in rows if item
    ]


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


def _sections(
    result: AuditResult, summary: Summary, curves: figure_numbers.TradeOffCurves
) -> list[dict[str, Any]]:
    drawer = Drawer(result)
    score_curves, density = (
        figure_numbers.score_curves(result),
        figure_numbers.score_density(result),
    )
    noise, tensors = figure_numbers.noise_by_step(result), figure_numbers.noise_by_tensor(result)
    shape, gram = figure_numbers.noise_shape(result), figure_numbers.gram(result)
    law = getattr(score_curves, "present_law", None) is not None
    outside = getattr(score_curves, "outside", 0)
    return [
        {
            "id": "scores",
            "name": "scores",
            "title": "The scores",
            "lead": "One number a canary: what the run released about it, summed. The audit reads "
            "the distance between the two groups against the width of the noise.",
            "figures": [
                drawer.draw(
                    plots.scores,
                    score_curves,
                    title="Present and absent scores",
                    caption="Lines are the fitted Gaussians"
                    + ("; dashes the law of the mechanism as it is described." if law else ".")
                    + (f" {outside:,} scores lie outside, in the last bins." if outside else ""),
                    label="Histograms of the scores of present and absent canaries with fits.",
                ),
                drawer.draw(
                    plots.pit,
                    figure_numbers.pit_curves(result),
                    title="Distance from the fitted Gaussian",
                    caption="Gaussian scores stay inside their band everywhere, in 95 % of runs.",
                    label="Empirical minus fitted distribution of the scores, with a band.",
                ),
            ],
        },
        {
            "id": "leak",
            "name": "leak",
            "title": "The leak",
            "lead": "Every attack errs in two ways. The lower the curve, the less it must err, and "
            "the more the run leaks.",
            "figures": [
                drawer.draw(
                    plots.tradeoff,
                    curves,
                    title="Trade-off curve",
                    caption=curves.missing
                    or "The measured curve goes through the bounds at many deltas.",
                    label="False negative rate against false positive rate: claim and bound.",
                    kind="square",
                    size=(3.9, 3.7),
                ),
                drawer.draw(
                    plots.epsilon_by_canaries,
                    figure_numbers.epsilon_by_canaries(result),
                    title="With more or fewer canaries",
                    caption="What the same run would have shown; the dot is this audit.",
                    label="The bound on epsilon by number of canaries.",
                ),
            ],
        },
        {
            "id": "canaries",
            "name": "canaries",
            "title": "Independent and alike",
            "lead": "The bound takes canaries for independent and identically distributed. Both "
            "would show here if they were not.",
            "figures": [
                drawer.draw(
                    plots.gram,
                    gram,
                    title="Gram matrix",
                    caption="Cosines between what was released about pairs of canaries. "
                    + (
                        ""
                        if isinstance(gram, Missing)
                        else f"What chance gives is left blank: it may give {gram.chance:.2f} over "
                        f"{gram.steps:,} steps. The largest here is {gram.largest:.2f}."
                    ),
                    label="Gram matrix of the canaries: off the diagonal only chance is expected.",
                    kind="square",
                    size=(3.9, 3.7),
                ),
                drawer.draw(
                    plots.score_density,
                    density,
                    title="Standardised score by canary",
                    caption="Bands or trends would mean that canaries are not all alike.",
                    label="Density of standardised scores by canary index.",
                ),
            ],
        },
        {
            "id": "noise",
            "name": "noise",
            "title": "The noise",
            "lead": "What was released where nothing was planted is noise alone, so its scale can "
            "be measured step by step and tensor by tensor, and its shape be looked at.",
            "figures": [
                drawer.draw(
                    plots.noise_by_step,
                    noise,
                    title="Noise by step",
                    caption="In clip norms, with pointwise 99 % intervals.",
                    label="Scale of the noise by step, measured and claimed.",
                ),
                drawer.draw(
                    plots.noise_by_tensor,
                    tensors,
                    title="Noise by tensor",
                    caption="In clip norms, with 99 % intervals."
                    + (
                        ""
                        if isinstance(tensors, Missing) or tensors.of == len(tensors.names)
                        else f" The {len(tensors.names)} of {tensors.of} furthest from the rest."
                    ),
                    label="Scale of the noise by tensor, measured and claimed.",
                    size=(
                        WIDTH,
                        2.2
                        if isinstance(tensors, Missing)
                        else max(2.0, 0.8 + 0.22 * len(tensors.names)),
                    ),
                ),
                drawer.draw(
                    plots.noise_shape,
                    shape,
                    title="Shape of the noise",
                    caption="On a log axis, where tails show. "
                    + (
                        ""
                        if isinstance(shape, Missing)
                        else f"{shape.values:,} values, {shape.outside:,} of them further out than "
                        "this reaches."
                    ),
                    label="How often the noise was how large, beside Gaussian noise.",
                ),
            ],
        },
        {
            "id": "steps",
            "name": "steps",
            "title": "Over the steps",
            "lead": "Privacy is spent step by step, and the sum of many steps is close to Gaussian "
            "whatever a step is.",
            "figures": [
                drawer.draw(
                    plots.epsilon_by_steps,
                    figure_numbers.epsilon_by_steps(result),
                    title="After more or fewer steps",
                    caption="What the same kind of run would have shown; the dot is this audit.",
                    label="The bound on epsilon by number of steps.",
                ),
                drawer.draw(
                    plots.convergence,
                    figure_numbers.convergence(result),
                    title="Convergence to the Gaussian",
                    caption="Distance between the law of a present score and a Gaussian.",
                    label="Kolmogorov distance from the Gaussian by number of steps.",
                ),
            ],
        },
    ]


def _by_interest(result: AuditResult, sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the noise is not what the bound takes it for, it is what to look at first."""
    failed = {item.check for item in result.findings if item.status is Status.FAIL}
    return (
        sorted(sections, key=lambda item: item["id"] != "noise") if failed & _SHAPES else sections
    )


def _course_section(result: AuditResult) -> list[dict[str, Any]]:
    """How a run that was watched went; nothing where nobody watched."""
    course = figure_numbers.course(result)
    if isinstance(course, Missing):
        return []
    drawer = Drawer(result)
    told = one_line(course.alarm, 600) or "There was no alarm."
    unseen = "; ".join(f"{name}: {why}" for name, why in course.untested.items())
    return [
        {
            "id": "course",
            "name": "course",
            "title": "While it trained",
            "lead": f"A monitor watched every step. {told}"
            + (f" Not watched: {one_line(unseen, 400)}." if unseen else ""),
            "figures": [
                drawer.draw(
                    plots.bound_by_step,
                    course,
                    title="Bound over the steps",
                    caption="Each value speaks of the steps up to it, and all of them hold "
                    "together.",
                    label="The bound on epsilon by step of the run, with the claim.",
                ),
                drawer.draw(
                    plots.evidence_by_step,
                    course,
                    title="Evidence against the claim",
                    caption=f"Of correct runs one in ten to the {course.alarm_at:.3g} ever reaches "
                    "the line.",
                    label="Evidence against the claim by step, and where it alarms.",
                ),
            ],
        }
    ]
