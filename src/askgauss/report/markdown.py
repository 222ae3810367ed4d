"""A short table for the comment of a CI job."""

from __future__ import annotations

import re

from askgauss._text import one_line
from askgauss.report import words
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
        ("measured", words.measured(result)),
        ("method", words.method(result)),
        ("canaries", f"{result.present:,} present, {result.absent:,} absent"),
    ]
    rows += words.closing_rows(result)
    lines = [
        f"### askgauss: {words.headline(result)}",
        "",
        escaped(words.reason(result)),
        "",
    ]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(item)} |" for name, item in rows]
    shown = [item for item in words.ordered(result.findings) if item.status in _SHOWN]
    if shown:
        lines += ["", "| finding | measured | claimed | what to do |", "|---|---:|---:|---|"]
    for item in shown:
        said = f"**{escaped(item.check)}** ({words.status(item).word}): {escaped(item.summary)}"
        figures = f"{words.value(item.measured)} | {words.value(item.claimed)}"
        lines.append(f"| {said} | {figures} | {escaped(item.remedy)} |")
    quiet = len(result.findings) - len(shown)
    if quiet:
        lines += ["", f"{quiet} other checks passed, noted something, or were not run."]
    return "\n".join(lines) + "\n"


def escaped(content: str) -> str:
    """Text that means nothing but itself in Markdown, on one line."""
    return _SIGNS.sub(lambda found: f"&#{ord(found.group())};", one_line(content))
