"""Which failed check may follow from which: one thing that is broken shows in several places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from askgauss.results import Finding, Status

__all__ = ["root_causes"]

# What of the canaries is odd where they add more than they should.
_CONTRIBUTION = (
    "equal variance",
    "normality of present scores",
    "planted noise",
    "single plantings",
    "even contribution",
    "whole-run correlation",
)
# Checks that fail because another one does, by the cause; no chain of them comes back to itself.
_FOLLOWS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        cause: frozenset(symptoms)
        for cause, symptoms in {
            "steps without noise": (
                "noise scale",
                "duplicate scores",
                "noise by step",
                "values without noise",
                "noise drift",
            ),
            "repeated noise": (
                "serial correlation",
                "whole-run correlation",
                "noise spectrum",
                "shared noise",
                "common noise",
                "noise elsewhere again",
                "noise by coordinate",
                "noise extremes",
                "noise scale",
                "noise shape",
                "values without noise",
                "even contribution",
                "carry-over",
            ),
            "serial correlation": (
                "whole-run correlation",
                "noise spectrum",
                "noise elsewhere again",
            ),
            "whole-run correlation": ("noise spectrum", "equal variance"),
            "shared noise": (
                "duplicate scores",
                "noise by step",
                "common noise",
                "noise extremes",
                "noise shape",
            ),
            "noise by tensor": (
                "noise scale",
                "duplicate scores",
                "noise by coordinate",
                "values without noise",
                "noise extremes",
                "noise shape",
            ),
            "noise by coordinate": (
                "noise scale",
                "duplicate scores",
                "values without noise",
                "noise extremes",
                "noise shape",
                "normality of absent scores",
                "normality of present scores",
            ),
            "values without noise": ("planted noise", "noise shape", "noise scale"),
            "noise drift": ("noise by step", "noise scale"),
            "noise and batch size": ("noise by step", "noise scale"),
            "noise by step": ("noise extremes", "noise scale"),
            "noise shape": ("noise by step", "noise extremes"),
            "contribution": _CONTRIBUTION,
            "single plantings": ("planted noise", "even contribution"),
            "carry-over": (
                "noise scale",
                "equal variance",
                "whole-run correlation",
                "common noise",
                "noise by coordinate",
                "noise shape",
                "noise extremes",
            ),
            "update norms": (*_CONTRIBUTION, "contribution", "honest updates", "nan update"),
            "single clients": (
                *_CONTRIBUTION,
                "contribution",
                "update norms",
                "honest updates",
                "client weight",
            ),
            "client weight": ("contribution", "honest updates"),
            "honest updates": (
                "noise scale",
                "noise by step",
                "common noise",
                "noise by coordinate",
                "whole-run correlation",
            ),
            "noise norm": ("noise scale", "noise by step", "noise drift"),
            "sampling rate": ("batch sizes",),
            "sampling scheme": ("sampling of pairs", "sampling in time"),
            "sampling in time": ("sampling of pairs",),
            "normality of absent scores": ("normality of present scores", "equal variance"),
        }.items()
    }
)


def root_causes(findings: Iterable[Finding]) -> dict[str, str]:
    """Failed checks that another failed check may explain, and which: the first of a chain.

    Examples:
        >>> failed = [Finding(check=name, status=Status.FAIL, summary="")
        ...           for name in ("repeated noise", "shared noise", "duplicate scores")]
        >>> root_causes(failed)
        {'shared noise': 'repeated noise', 'duplicate scores': 'repeated noise'}
    """
    wrong = [item.check for item in findings if item.status in (Status.FAIL, Status.WARN)]
    causes: dict[str, str] = {}
    for check in wrong:
        cause = next((name for name in wrong if check in _FOLLOWS.get(name, ())), None)
        if cause is not None:
            causes[check] = cause
    for check, cause in causes.items():
        while cause in causes:
            cause = causes[cause]
        causes[check] = cause
    return causes
