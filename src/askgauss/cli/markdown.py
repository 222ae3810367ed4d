"""A result as Markdown, for a pull request or the summary page of a CI job."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from askgauss.cli.terminal import one_line

if TYPE_CHECKING:
    from askgauss.results import AuditResult

__all__ = ["to_markdown"]

_ORDER = ("fail", "warn", "info", "pass", "not run")


def to_markdown(result: AuditResult) -> str:
    """Markdown of a result: the verdict, the numbers, and every check."""
    from askgauss.results import number

    title = "Privacy audit" if result.verdict is None else f"Privacy audit: {result.verdict.value}"
    rows = [
        ("measured", f"epsilon ≥ {number(result.epsilon_lower)} at delta {result.delta:g}"),
        ("confidence", f"{result.confidence:g}"),
        ("method", f"{result.auditor.name}, assuming {result.assumption.value}"),
        ("canaries", f"{result.present:,} present, {result.absent:,} absent"),
    ]
    if result.claim is not None:
        rows.insert(0, ("claimed", str(result.claim)))
    if result.power is not None and result.claim is not None:
        rows.append(("power", f"{result.power:.0%} at epsilon {1.25 * result.claim.epsilon:g}"))
    lines = [f"## {title}", ""]
    if result.reason:
        lines += [_escaped(result.reason), ""]
    lines += _table(("", ""), rows)
    if result.findings:
        ordered = sorted(result.findings, key=lambda item: _ORDER.index(item.status.value))
        lines += ["", *_table(
            ("check", "status", "what was found"),
            [
                (item.check, item.status.value, f"{item.summary} {item.remedy}".rstrip())
                for item in ordered
            ],
        )]
    if result.version:
        lines += ["", f"askgauss {_escaped(result.version)}"]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    rule = tuple("---" for _ in head)
    body = [tuple(_escaped(cell) for cell in row) for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def _escaped(text: str) -> str:
    """One line that means only its letters, in Markdown and in the HTML made of it."""
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", html.escape(one_line(text), quote=False))
