"""The diagrams of the documentation: ``python .ci/pictures.py [FOLDER]`` (``make pictures``).

Each is one small SVG that follows the reader's light or dark setting and loads nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2430 }
.small { font-size: 12px; fill: #4a5160 }
rect { fill: #f3f5f9; stroke: #5b6476 }
.strong { fill: #dfe8fb; stroke: #2f5bb7 }
path { fill: none; stroke: #5b6476; stroke-width: 1.5 }
marker path { fill: #5b6476; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaf0 } .small { fill: #b6bccb }
  rect { fill: #262b36; stroke: #98a1b5 } .strong { fill: #1d3158; stroke: #8fb0f5 }
  path { stroke: #98a1b5 } marker path { fill: #98a1b5 }
}
"""


@dataclass
class Picture:
    """Boxes and arrows on a canvas."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: int, y: int, width: int, name: str, *lines: str, strong: bool = False
    ) -> tuple[int, int, int, int]:
        """A box with a name and small lines below it; returns x, y, width and height."""
        height = 30 + 17 * len(lines)
        kind = ' class="strong"' if strong else ""
        self.parts.append(f'<rect{kind} x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        middle = x + width // 2
        self.parts.append(self._text(middle, y + 20, name))
        for number, line in enumerate(lines):
            self.parts.append(self._text(middle, y + 38 + 17 * number, line, small=True))
        return x, y, width, height

    def note(self, x: int, y: int, text: str, anchor: str = "start") -> None:
        """A small line of text."""
        self.parts.append(self._text(x, y, text, small=True, anchor=anchor))

    def arrow(self, *points: tuple[int, int]) -> None:
        """A line through the points, with a head at its end."""
        way = " L ".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="M {way}" marker-end="url(#head)"/>')

    def _text(self, x: int, y: int, text: str, small: bool = False, anchor: str = "middle") -> str:
        kind = ' class="small"' if small else ""
        return f'<text{kind} x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'

    def svg(self) -> str:
        """The document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>'
        )
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, f"<style>{_STYLE}</style>", marker, *self.parts, "</svg>\n"])


def data_flow() -> Picture:
    """The way of the data through an audit."""
    picture = Picture(860, 250, "Canaries, recorder, transcript, scores, auditor, result, report")
    names = ("canaries", "recorder", "transcript", "scores", "auditor", "result", "report")
    notes = (
        ("inserted or", "held out"),
        ("reads every", "noisy gradient"),
        ("what each step", "released"),
        ("one number", "per canary"),
        ("lower bound", "and p-value"),
        ("verdict, scope,", "findings"),
        ("text, HTML,", "JSON, SARIF"),
    )
    for place, (name, lines) in enumerate(zip(names, notes, strict=True)):
        strong = name in ("transcript", "result")
        picture.box(10 + 121 * place, 90, 104, name, *lines, strong=strong)
        if place:
            picture.arrow((10 + 121 * place - 17, 122), (10 + 121 * place - 1, 122))
    picture.box(100, 10, 178, "training loop", "Opacus, JAX, your own")
    picture.arrow((187, 57), (187, 88))
    picture.box(494, 10, 104, "claim", "epsilon, delta")
    picture.arrow((546, 57), (546, 88))
    picture.box(494, 195, 104, "checks", "of the run")
    picture.arrow((598, 218), (667, 218), (667, 156))
    return picture


def adversaries() -> Picture:
    """What each adversary sees."""
    picture = Picture(820, 250, "What each adversary sees of a training run")
    places = ("records", "clipped sum", "noisy gradient", "weights", "model's outputs")
    for number, name in enumerate(places):
        picture.box(10 + 164 * number, 20, 140, name, strong=number >= 2)
        if number:
            picture.arrow((10 + 164 * number - 24, 35), (10 + 164 * number - 1, 35))
    rows = (
        (338, "white-box", "every step: certifies", "most of epsilon"),
        (502, "final model", "one or more", "snapshots"),
        (666, "black-box", "losses, logits,", "attack scores"),
    )
    for x, name, first, second in rows:
        picture.box(x, 110, 140, name, first, second)
        picture.arrow((x + 70, 50), (x + 70, 108))
    picture.note(10, 130, "hidden by the mechanism:")
    picture.note(10, 148, "records and clipped sums")
    picture.note(
        10, 215, "All of them may know every record but the canary (add-remove adjacency)."
    )
    picture.note(10, 233, "Black-box bounds need membership drawn at random before training.")
    return picture


def verdict() -> Picture:
    """How a verdict is reached."""
    picture = Picture(760, 330, "How a verdict is reached")
    picture.box(20, 10, 220, "deterministic checks", "of steps, rows, weights, noise")
    picture.box(20, 95, 220, "statistical checks", "of the assumptions")
    picture.box(20, 180, 220, "test of the claim", "p-value at the claimed epsilon")
    picture.box(20, 265, 220, "power", "against 1.25 times the claim")
    for top in (57, 142, 227):
        picture.arrow((130, top), (130, top + 36))
        picture.note(138, top + 24, "nothing found")
    picture.box(520, 10, 220, "VIOLATION", "exit code 1", strong=True)
    picture.box(520, 95, 220, "INVALID", "exit code 3", strong=True)
    picture.box(520, 180, 220, "INCONCLUSIVE", "exit code 3", strong=True)
    picture.box(520, 265, 220, "CONSISTENT", "exit code 0", strong=True)
    picture.arrow((240, 33), (518, 33))
    picture.note(260, 26, "the guarantee is broken")
    picture.arrow((240, 110), (400, 110), (400, 45), (518, 45))
    picture.arrow((240, 125), (518, 125))
    picture.note(260, 142, "the bound may be too high")
    picture.arrow((240, 203), (440, 203), (440, 52), (518, 52))
    picture.note(260, 220, "rejected")
    picture.arrow((240, 280), (470, 280), (470, 203), (518, 203))
    picture.note(260, 273, "too little")
    picture.arrow((240, 300), (518, 300))
    picture.note(260, 317, "enough")
    return picture


def main(folder: Path) -> None:
    """Write every picture."""
    for picture in (data_flow, adversaries, verdict):
        name = picture.__name__.replace("_", "-")
        (folder / f"{name}.svg").write_text(picture().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
