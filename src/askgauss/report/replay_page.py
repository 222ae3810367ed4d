"""A replay as one HTML page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from askgauss._text import one_line, printable
from askgauss.report.html import _style_sheet, _templates

if TYPE_CHECKING:
    from askgauss.replay import ReplayReport

__all__ = ["render_replay"]


def render_replay(report: ReplayReport) -> str:
    """One self-contained HTML page: no script, nothing fetched.

    Args:
        report: The replay.

    Returns:
        The page.
    """
    remedies = {item.check: item.remedy for item in report.findings}
    page = {
        "verdict": report.verdict.value,
        "headline": report.verdict.value.capitalize(),
        "reason": printable(one_line(report.reason)),
        "facts": [
            {"name": "claimed adjacency", "value": report.adjacency},
            {"name": "record", "value": f"{report.record:,} of {report.records:,}"},
            {"name": "steps", "value": str(report.steps)},
        ],
        "differences": [
            {
                "leak": report.adjacency in item.leak_under,
                "name": one_line(item.name),
                "kind": item.kind,
                "seen": one_line(f"{item.values[0]} against {item.values[1]}"),
                "size": "" if item.size is None else f"{item.size:.4g}",
                "steps": ", ".join(str(step) for step in item.steps[:8]),
                "under": ", ".join(item.leak_under),
                "follows": one_line(item.follows),
                "remedy": remedies.get(f"replay: {item.name}", ""),
            }
            for item in report.differences
        ],
        "rows": [{"name": name, "value": one_line(value)} for name, value in report.rows()],
        "version": report.version,
    }
    return _templates().get_template("replay.html").render(page=page, style=_style_sheet())
