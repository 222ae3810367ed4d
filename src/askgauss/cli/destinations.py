"""Where a command's documents go: a file, whole or not at all, or standard output."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from askgauss.cli.program import explain_os_error
from askgauss.exceptions import AskGaussError, InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.results import AuditResult

__all__ = [
    "Documents",
    "Html",
    "Json",
    "Junit",
    "Markdown",
    "OutputError",
    "write_document",
    "write_text",
]

STANDARD = "-"

Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH|-", help="Write the result as JSON.")
]
Junit = Annotated[
    str | None, typer.Option("--junit", metavar="PATH|-", help="Write JUnit XML for CI.")
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="PATH|-", help="Write the report as one HTML file.")
]
Markdown = Annotated[
    str | None, typer.Option("--markdown", metavar="PATH|-", help="Write a Markdown summary.")
]


class OutputError(AskGaussError):
    """A document could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents asked for, each by its path; ``-`` is standard output."""

    json: str | None = None
    junit: str | None = None
    html: str | None = None
    markdown: str | None = None

    def __post_init__(self) -> None:
        names: dict[str, list[str]] = {}
        for name, path in self._asked():
            place = path if path == STANDARD else str(Path(path).absolute())
            names.setdefault(place, []).append(f"--{name}")
        for place, sharing in names.items():
            if len(sharing) > 1:
                where = "on standard output" if place == STANDARD else f"in {place!r}"
                raise InvalidArgumentError(
                    f"Expected one document {where}, got {' and '.join(sharing)}. Give all but one "
                    "another path."
                )

    def _asked(self) -> list[tuple[str, str]]:
        paths = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return [(name, path) for name, path in paths if path is not None]

    @property
    def on_stdout(self) -> bool:
        """Whether standard output belongs to a document, and not to text for a person."""
        return any(path == STANDARD for _, path in self._asked())

    def write(self, result: AuditResult) -> None:
        """Write every document asked for."""
        # All are made before any is written: if one cannot be, none is.
        documents = [(path, render(result, name)) for name, path in self._asked()]
        for path, text in documents:
            write_text(path, text, private=result.private)


def render(result: AuditResult, form: str) -> str:
    """A result as text of one of the forms that `Documents` names."""
    if form == "json":
        return result.to_json() + "\n"
    from askgauss import report

    renderers = {"junit": report.junit, "markdown": report.markdown, "html": report.render}
    return renderers[form](result)


def write_text(path: str, text: str, *, private: bool = False) -> None:
    """Write text to a file, whole or not at all, or to standard output."""
    write_document(path, lambda stream: stream.write(text.encode("utf-8")), private=private)


def write_document(
    path: str, write: Callable[[IO[bytes]], object], *, private: bool = False
) -> None:
    """Let ``write`` fill a file, whole or not at all, or standard output.

    Args:
        path: The file, or ``-``.
        write: Writes the document to a stream.
        private: Whether only its owner may read the file.

    Raises:
        OutputError: The file cannot be written.
    """
    if path == STANDARD:
        # Put together first: a document that cannot be made leaves nothing behind here either.
        buffer = io.BytesIO()
        write(buffer)
        sys.stdout.flush()
        left = buffer.getbuffer()
        while left:
            # An unbuffered stream may take only a part, and says how much.
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
        return
    from askgauss.files import atomic

    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            # A device or a pipe is written to, never replaced; a folder fails here as it should.
            with target.open("wb") as stream:
                write(stream)
        else:
            with atomic.atomic_write(target, private=private) as stream:
                write(stream)
    except OSError as error:
        raise OutputError(f"Cannot write {path!r}: {explain_os_error(error)}") from error
