"""Mechanisms of papers, as the mechanism audit's own tests write them from their pseudo-code."""

from __future__ import annotations

from tests.mechanism_audit import exam

import askgauss as ag
from museum.outcomes import Outcome, main, of_mechanism


def show_case(broken: str, mended: str, *, true: float) -> None:
    """Audit one mechanism that was published with a proof, and one that keeps its claim.

    Args:
        broken: A case of the tests that breaks its claim.
        mended: One that does not.
        true: What the literature proves of the broken one.
    """
    cases = {item.name: item for item in (*exam.BROKEN, *exam.CORRECT)}

    def show(variant: str) -> Outcome:
        case = cases[broken if variant == "broken" else mended]
        result = ag.audit_mechanism(
            case.mechanism, case.data, case.neighbour, claim=case.claim, max_samples=100_000
        )
        return of_mechanism(result, true=true if variant == "broken" else None)

    main(show)
