"""The command that prints what a check tests."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from askgauss.cli.terminal import say
from askgauss.exceptions import InvalidArgumentError

__all__ = ["explain"]


def explain(
    check: Annotated[
        str | None, typer.Argument(help="Name of a check, such as 'noise scale'; all if none.")
    ] = None,
) -> None:
    """Print what a check tests, what it assumes, and what to do if it fails."""
    import difflib

    from askgauss.checks.registry import registered

    known = registered()
    if check is None:
        say("\n".join(f"{name:<36} {_first_line(known[name].test)}" for name in sorted(known)))
        return
    name = check.strip().lower()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise InvalidArgumentError(
            f"Expected the name of a check, got {check!r}. "
            + (f"Near names: {', '.join(near)}." if near else "'askgauss explain' lists all.")
        )
    found = known[name]
    causes = sorted(other.name for other in known.values() if name in other.explains)
    lines = [
        f"{found.name}: {inspect.getdoc(found.test) or 'made by the auditor or by a replay'}",
        f"  part        {found.part.name if found.part else 'what the audit itself assumes'}",
        f"  severity    {found.severity.value}, where it fails as a violation",
    ]
    if found.part is not None:
        lines.append(f"  to test it  {found.part.how_to_test}")
    if causes:
        lines.append(f"  may follow  from {', '.join(causes)}: fix those first")
    if found.explains:
        lines.append(f"  explains    {', '.join(found.explains)}")
    say("\n".join(lines))


def _first_line(test: object) -> str:
    return (inspect.getdoc(test) or "made by the auditor or by a replay").splitlines()[0]
