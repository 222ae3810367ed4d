"""The evidence pack of a result: documents that release tooling reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from askgauss.cli.audit_commands import read_result
from askgauss.cli.destinations import write_text
from askgauss.cli.options import Lenient
from askgauss.cli.terminal import as_table, note, say

__all__ = ["attest"]


def attest(
    source: Annotated[
        str, typer.Argument(metavar="RESULT|RUN", help="A result as JSON, or the folder of a run.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the documents go.")
    ] = Path("evidence"),
    subject: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A file the statement is about, such as the weights; repeat for several. By "
            "default the file that was audited.",
        ),
    ] = None,
    lenient: Lenient = False,
) -> None:
    """Write the evidence pack: in-toto statement, CycloneDX ML-BOM, SARIF, model-card block.

    The documents describe the result and bind it to files by their digests; nothing private is in
    them. Exits with 0 when they were written, whatever the verdict: the statement says it.
    """
    from askgauss.evidence.attestation import FILES, evidence_pack
    from askgauss.evidence.provenance import file_digest
    from askgauss.files.run_folder import RunFolder

    place = Path(source)
    inside = place.is_dir()
    result = read_result(str(RunFolder(place).result) if inside else source, regular=inside)
    subjects = {path.name: file_digest(path) for path in subject or ()}
    pack = evidence_pack(result, subjects=subjects or None, lenient=lenient)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in pack.items():
        write_text(str(output / name), text)
    say(as_table([(str(output / name), f" {FILES[name]}") for name in pack]))
    note("the documents are not signed: sign the statement with your release key.")
