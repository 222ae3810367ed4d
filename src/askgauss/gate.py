"""The one policy of every gate: what lets a release through, on the command line and in pytest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from askgauss.results import AuditResult, Status, Verdict

__all__ = ["Decision", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate does with a result.

    Attributes:
        passes: Whether it lets the run through.
        exit_code: What the command line exits with: 0 passed, 1 violation, 3 anything else.
        why: Why it does not pass, in one sentence; empty where the verdict says it all.
    """

    passes: bool
    exit_code: int
    why: str = ""


def decide(result: AuditResult, *, lenient: bool = False) -> Decision:
    """Whether a result opens the gate.

    Only CONSISTENT does. An audit that saw nothing because it could see nothing does not, unless
    it is asked to be lenient; one without a claim, without its checks, with a failed check or with
    an unbounded leak never does.

    Args:
        result: The audit.
        lenient: Whether INCONCLUSIVE passes too.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> draw = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=draw.normal(size=50), absent=draw.normal(size=50), noise="gaussian")
        >>> decide(ag.audit(scores, delta=1e-5)).exit_code
        3
    """
    if result.verdict is Verdict.VIOLATION:
        return Decision(passes=False, exit_code=1)
    if result.verdict is Verdict.INVALID:
        return Decision(passes=False, exit_code=3)
    failed = [item.check for item in result.findings if item.status is Status.FAIL]
    if failed:
        return _closed(f"checks failed: {', '.join(failed)}.")
    if math.isinf(result.epsilon_lower):
        return _closed("the bound is infinite: what was audited is not private at all.")
    if result.verdict is None:
        return _closed(
            "there is no claim to hold the run to: give --epsilon and --delta, or claim=."
            if result.claim is None
            else "this method gives an estimate, and no verdict: take another."
        )
    if not result.scope:
        return _closed("no check was run (diagnostics=False): only the bound was tested.")
    if result.verdict is Verdict.INCONCLUSIVE and not lenient:
        return Decision(passes=False, exit_code=3)
    return Decision(passes=True, exit_code=0)


def _closed(why: str) -> Decision:
    return Decision(passes=False, exit_code=3, why=f"the gate stays closed: {why}")
