"""What a pre-commit hook asks of files that are about to be kept for good."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer

from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import note

__all__ = ["check_results"]


def check_results(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to look at.")],
    refuse_private: Annotated[
        bool,
        typer.Option(
            "--refuse-private",
            help="Refuse transcripts, scores, checkpoints and results of few canaries instead.",
        ),
    ] = False,
) -> None:
    """Check files before they are committed: results are whole, and nothing private is kept.

    JSON of other tools is left alone. Exits with 2 if a file is refused.
    """
    refused = [path for path in files if _refused(path, refuse_private)]
    if refused:
        raise typer.Exit(ExitCode.FAILURE)


def _refused(path: Path, private: bool) -> bool:
    from askgauss import _files, _plain
    from askgauss.exceptions import AskGaussError
    from askgauss.results import AuditResult

    with path.open("rb") as stream:
        content = stream.read(_files.DOCUMENT_BYTES + 1)
    try:
        if private:
            kind = _private_kind(path, content)
            if kind is not None:
                note(f"{path} is {kind}: as sensitive as the training data. Keep it elsewhere.",
                     always=True)  # fmt: skip
            return kind is not None
        found = _plain.parse(_whole(content))
        if isinstance(found, dict) and found.get("kind") == "askgauss-result":
            AuditResult.from_json(content)
    except AskGaussError as error:
        if b"askgauss-" not in content:
            return False
        note(f"{path}: {error}", always=True)
        return True
    return False


def _private_kind(path: Path, content: bytes) -> str | None:
    """What a file that must not be given away is; None if it is none of ours, or may be."""
    from askgauss import _files, _plain

    if content.startswith(b"PK"):
        with path.open("rb") as stream:
            return _files.read_kind(stream, str(path))
    # JSON of other tools is not parsed.
    found = _plain.parse(_whole(content)) if b'"askgauss-' in content else None
    if isinstance(found, dict) and found.get("private") is True:
        return str(found.get("kind"))
    return None


def _whole(content: bytes) -> bytes:
    """A document of ours; what is larger was read in part, and is none."""
    from askgauss import _files

    return _files.read_stream(io.BytesIO(content), "it", _files.DOCUMENT_BYTES)
