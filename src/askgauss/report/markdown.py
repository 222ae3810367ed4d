"""A short table for the comment of a CI job."""

from __future__ import annotations

import re

from askgauss._text import one_line
from askgauss.report import report_text
from askgauss.report.result_text import measured, method_of
from askgauss.results import AuditResult, Status

__all__ = ["escaped", "markdown"]

# Signs that Markdown, or a forge that renders it, gives a meaning: emphasis, tables, links, HTML,
# people and issues to notify.
_SIGNS = re.compile(r"[\\`*_{}\[\]()<>#@|~!&$]|(?<=[a-zA-Z]):(?=/)|(?<=www)\.", re.IGNORECASE)
_SHOWN = Status.FAIL, Status.WARN


def markdown(result: AuditResult) -> str:
    """The audit as a few lines of Markdown.

    Args:
        result: The audit.

    Returns:
        A heading, a table, and the findings that failed or warn.
    """
    claim = result.claim
    rows = [
        ("claimed", "none" if claim is None else str(claim)),
        ("measured", measured(result)),
        ("method", method_of(result)),
        ("canaries", f"{result.present:,} present, {result.absent:,} absent"),
    ]
    if result.sight:
        rows.append(("would see", result.sight))
    rows += result.scope_rows()
    rows += [("note", note) for note in result.notes]
    if result.provenance is not None:
        rows.append(("source", str(result.provenance)))
    rows.append(("next", result.next_step))
    lines = [
        f"### askgauss: {report_text.headline(result)}",
        "",
        escaped(report_text.reason(result)),
        "",
    ]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(item)} |" for name, item in rows]
    shown = [item for item in report_text.ordered(result.findings) if item.status in _SHOWN]
    if shown:
        lines += ["", "| finding | measured | claimed | what to do |", "|---|---:|---:|---|"]
    for item in shown:
        said = (
            f"**{escaped(item.check)}** ({report_text.status(item).word}): {escaped(item.summary)}"
        )
        figures = f"{report_text.value(item.measured)} | {report_text.value(item.claimed)}"
        lines.append(f"| {said} | {figures} | {escaped(item.remedy)} |")
    quiet = len(result.findings) - len(shown)
    if quiet:
        lines += ["", f"{quiet} other checks passed, noted something, or were not run."]
    return "\n".join(lines) + "\n"


def escaped(content: str) -> str:
    """Text that means nothing but itself in Markdown, on one line."""
    return _SIGNS.sub(lambda found: f"&#{ord(found.group())};", one_line(content))
