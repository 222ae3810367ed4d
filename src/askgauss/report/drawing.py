"""Figures as inline SVG that takes its colours and its type from the page it stands on."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Iterator
from typing import Any

from askgauss.figures import style
from askgauss.figures.style import AuditFigure

__all__ = ["svg"]

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
