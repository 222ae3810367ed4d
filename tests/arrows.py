"""Which part of the package imports which: ``python -m tests.arrows`` writes the map anew.

A part is a module or a folder directly under ``askgauss``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import askgauss

SOURCE = Path(askgauss.__file__).parent
MAP = Path(__file__).with_suffix(".txt")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules a file imports, and whether only inside functions or for types."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "askgauss":
                names = [f"askgauss.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        above, later = parents.get(node), False
        while above is not None:
            later = later or isinstance(above, ast.FunctionDef) or _for_types(above)
            above = parents.get(above)
        for name in names:
            yield name, later


def part(path: Path) -> str:
    """The part a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def drawn() -> dict[str, tuple[set[str], set[str]]]:
    """For every part, those that it imports at once, and those that it imports only later."""
    found: dict[str, tuple[set[str], set[str]]] = {
        part(path): (set(), set()) for path in SOURCE.rglob("*.py")
    }
    for path in SOURCE.rglob("*.py"):
        here = part(path)
        for name, later in imports(path):
            package, *inner = name.split(".")
            # The rest are names of the package itself.
            if package == "askgauss" and inner and inner[0] in found and inner[0] != here:
                found[here][later].add(inner[0])
    for at_once, later_on in found.values():
        later_on -= at_once
    return found


def lines() -> list[str]:
    """The map, a line a part."""
    return [
        f"{name}: {' '.join(sorted(at_once))}" + (f" | {' '.join(sorted(later))}" if later else "")
        for name, (at_once, later) in sorted(drawn().items())
    ]


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


if __name__ == "__main__":
    MAP.write_text("\n".join(lines()) + "\n")
