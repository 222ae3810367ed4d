"""What an exhibit is, as its folder says it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

EXHIBITS = Path(__file__).parent / "exhibits"

VARIANTS = ("broken", "mended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A file of a package registry, named and fixed by its hash.

    Attributes:
        name: The package.
        version: Its version.
        sha256: The digest of the file that is installed.
    """

    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One bug.

    Attributes:
        name: The name of its folder.
        title: What is wrong, in a line.
        library: Whose bug it is.
        live: Whether the newest release looked at still has it.
        broken: What is installed to show the bug.
        mended: What is installed for the fixed version; the same where that is another use of it.
        twin: How the fixed version differs from the broken run.
        wrong: What is wrong, in a few sentences.
        known: Where it is documented.
        finding: The finding that names it; empty where no audit detects it.
        verdict: The verdict of the broken run.
        why_unseen: Why no audit detects it, where none does.
        maintainer: For a live bug: what to run, what one expects, what one sees, and where.
        fast: Whether it is quick enough for every run of the tests.
        newest_python: The newest Python its releases are made for, such as "3.11"; any if empty.
        unavailable: Why it cannot be shown on any machine, where it cannot, and what was tried.
    """

    name: str
    title: str
    library: str
    live: bool
    broken: tuple[Release, ...]
    mended: tuple[Release, ...]
    twin: str
    wrong: str
    known: str
    finding: str
    verdict: str
    why_unseen: str = ""
    maintainer: str = ""
    fast: bool = False
    newest_python: str = ""
    unavailable: str = ""

    @property
    def folder(self) -> Path:
        """The folder of its description and its script."""
        return EXHIBITS / self.name

    def releases(self, variant: str) -> tuple[Release, ...]:
        """What one of its two runs needs beside the packages of the project itself."""
        return self.broken if variant == "broken" else self.mended


def load(folder: Path) -> Exhibit:
    """Read ``exhibit.toml`` of a folder."""
    content = tomllib.loads((folder / "exhibit.toml").read_text(encoding="utf-8"))
    for variant in VARIANTS:
        content[variant] = tuple(Release(**item) for item in content.get(variant, ()))
    return Exhibit(name=folder.name, **content)


def every() -> tuple[Exhibit, ...]:
    """All exhibits, by name."""
    return tuple(load(path.parent) for path in sorted(EXHIBITS.glob("*/exhibit.toml")))
