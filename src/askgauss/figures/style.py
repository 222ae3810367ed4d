"""What every figure of an audit is, and how figures look.

A figure is one class: `from_result` computes its numbers, which are its attributes, `plot` draws
them, and `caption` says what they mean. matplotlib is imported when the first one is drawn.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from askgauss._text import one_line
from askgauss.exceptions import MissingExtraError, NotDefinedError
from askgauss.results import AuditResult, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = [
    "ACCENTS",
    "CLAIM",
    "GRID",
    "INK",
    "MUTED",
    "OTHER",
    "PAPER",
    "WIDTH",
    "AuditFigure",
    "NothingToDrawError",
    "axes",
    "count_ticks",
    "few_ticks",
    "label",
    "legend",
    "log_ticks",
    "tidy",
]

INK = "#1b1f24"
MUTED = "#5c6570"
GRID = "#dfe3e8"
PAPER = "#fdfdfc"
OTHER = "#7c8894"
CLAIM = "#33415c"
ACCENTS = {
    Verdict.VIOLATION: "#b3261e",
    Verdict.CONSISTENT: "#1b7348",
    Verdict.INCONCLUSIVE: "#8f5a00",
    Verdict.INVALID: "#7a3fa8",
    None: "#2459a8",
}
WIDTH = 4.6
"""Inches across a figure of the report."""
_LONGEST = 40


class NothingToDrawError(NotDefinedError):
    """The result does not have what a figure shows.

    Attributes:
        reason: What it would need.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"There is nothing to draw: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditFigure(abc.ABC):
    """The numbers of one figure, and how they are drawn.

    Attributes:
        verdict: The verdict of the result, whose colour the measured numbers have.
        title: What the report calls it.
        kind: Its class in the style sheet of the report.
    """

    title: ClassVar[str]
    kind: ClassVar[str] = ""

    verdict: Verdict | None = None

    @classmethod
    @abc.abstractmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers.

        Raises:
            NothingToDrawError: The result does not have what the figure shows.
        """

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What the figure shows, for readers who cannot see it."""

    @property
    @abc.abstractmethod
    def caption(self) -> str:
        """What the figure shows, in a sentence or two."""

    @property
    def size(self) -> tuple[float, float]:
        """Inches across and up in the report."""
        return (3.9, 3.7) if self.kind == "square" else (WIDTH, 2.9)

    @abc.abstractmethod
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw into these axes, or into new ones, and return them."""

    @property
    def accent(self) -> str:
        """The colour of the verdict."""
        return ACCENTS[self.verdict]


def axes(given: Axes | None, width: float = 5.8, height: float = 3.4) -> Axes:
    """The axes that were given, or new ones."""
    if given is not None:
        return given
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError(
            "Figures need matplotlib, which is not installed: pip install matplotlib."
        ) from error
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def tidy(ax: Axes, *, x: str = "", y: str = "", grid: Literal["x", "y", "both", ""] = "y") -> Axes:
    """No frame, a faint grid along one axis, labels."""
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(GRID)
    ax.tick_params(colors=MUTED, length=0, labelsize=9)
    if grid:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(x, color=MUTED, fontsize=9)
    ax.set_ylabel(y, color=MUTED, fontsize=9)
    return ax


def legend(ax: Axes, **options: Any) -> None:
    """A legend without a frame."""
    ax.legend(frameon=False, fontsize=9, labelcolor=MUTED, handlelength=1.4, **options)


def label(text: str) -> str:
    """A name on an axis: the end of it, where names of tensors differ."""
    shown = one_line(text)
    return shown if len(shown) <= _LONGEST else "…" + shown[1 - _LONGEST :]


def log_ticks(axis: Axis, *subs: float, form: str = "{:g}", most: int = 6) -> None:
    """Plain numbers on a logarithmic axis, at these multiples of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=subs or (1.0,), numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form.format(value)))


def count_ticks(ax: Axes) -> None:
    """Numbers in full on a logarithmic axis that counts things, few enough to stand apart."""
    log_ticks(ax.xaxis, 1.0, 3.0, form="{:,.0f}")


def few_ticks(ax: Axes) -> None:
    """Few enough whole numbers below that large ones stand apart."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
