"""What an audit may promise of a run that was watched, and could be ended by what was seen."""

from __future__ import annotations

import math
from collections.abc import Iterable

from askgauss.results import Finding, Status

__all__ = ["error_share", "stated_share", "stopping"]

_NAME = "stopping"
# What all other ends together may add to the error of an audit at the planned one.
_ELSEWHERE = 0.01


def error_share(taken: int, planned: int | None) -> float:
    """The share of its error that an audit after so many steps may spend.

    Whoever watches a run may end it when it looks worst. Audits at all steps hold together at the
    sum of their errors: at the planned end that of one audit, at any other step t a hundredth of
    6 / (pi^2 t k^2) of it, with k the number of binary digits of t, which adds up to a hundredth.

    Args:
        taken: Steps that were taken.
        planned: Steps that were planned before the run; None where nobody said.

    Examples:
        >>> error_share(100, 100), f"{error_share(50, 100):.1g}", error_share(50, None)
        (1.0, '3e-06', 1.0)
    """
    if planned is None or taken < 1 or taken == planned:
        return 1.0
    return _ELSEWHERE * 6.0 / (math.pi**2 * taken * taken.bit_length() ** 2)


def stated_share(findings: Iterable[Finding]) -> float:
    """The share of its error that a result was stated with, by its finding *stopping*."""
    found = next((item for item in findings if item.check == _NAME), None)
    if found is None or found.measured is None or found.claimed is None:
        return 1.0
    return error_share(int(found.measured), int(found.claimed))


def stopping(taken: int, planned: int | None) -> Finding | None:
    """What a result says about the end of a watched run; None where it is the planned one."""
    if planned is None:
        return Finding(
            check=_NAME,
            status=Status.INFO,
            summary="the run was watched, and no number of steps was planned. Bound, checks and "
            "verdict hold if the run was not ended by what its monitor showed.",
            remedy="Say how long the run will be: Monitor(claim=PrivacyClaim(..., steps=...)).",
        )
    if taken == planned:
        return None
    return Finding(
        check=_NAME,
        status=Status.INFO,
        summary=f"the run was watched, and ended after {taken:,} steps where {planned:,} were "
        "planned. Bound, checks and verdict are stated with an error so small that they hold "
        "whenever it was ended, whatever its monitor showed.",
        measured=float(taken),
        claimed=float(planned),
    )
