"""Runs that went on from a checkpoint: what to ask where model and audit may have parted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from askgauss.results import Finding

__all__ = ["resumed_at", "with_resumes"]

# Steps that are named; of more, the last one.
_NAMED = 3
# What fails where the model goes on from another step than the audit: steps are recorded twice or
# not at all, and what the noise was is taken for that of another step.
_PARTED = frozenset(
    {
        "carry-over",
        "noise after restarts",
        "noise by entry",
        "noise by level",
        "noise by node",
        "noise drift",
        "noise of related nodes",
        "noise reused at other coordinates",
        "noise sums across steps",
        "noise where planted",
        "repeated noise",
        "serial correlation",
        "shared noise",
        "step count",
        "whole-run correlation",
    }
)


def resumed_at(resumed: tuple[int, ...]) -> str:
    """A sentence that asks about the checkpoints a run went on from; empty if there are none.

    Examples:
        >>> resumed_at((100,))
        'The run was resumed after step 100: were model and audit checkpoints of the same step?'
    """
    if not resumed:
        return ""
    steps = [f"{step:,}" for step in resumed]
    if len(steps) > _NAMED:
        places = f"{len(steps):,} times, the last time after step {steps[-1]}"
    elif len(steps) > 1:
        places = f"after steps {', '.join(steps[:-1])} and {steps[-1]}"
    else:
        places = f"after step {steps[0]}"
    return f"The run was resumed {places}: were model and audit checkpoints of the same step?"


def with_resumes(findings: Iterable[Finding], resumed: tuple[int, ...]) -> tuple[Finding, ...]:
    """Findings before the gate, with that question behind remedies where it may be the cause."""
    question = resumed_at(resumed)
    return tuple(
        replace(item, remedy=f"{item.remedy} {question}")
        if question and item.remedy and item.check in _PARTED
        else item
        for item in findings
    )
