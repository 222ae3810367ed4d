"""Which failed check may follow from which, and which of them leads a result.

One thing that is broken shows in several places. The finding that names it comes first; its remedy
is the one to follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from askgauss.results import Consequence, Finding, Status

__all__ = ["leading", "named", "ordered", "root_causes"]

_ORDER = (Status.FAIL, Status.WARN, Status.INFO, Status.PASS, Status.NOT_RUN)
# What a record that adds too much shows in.
_SENSITIVITY = (
    "contribution",
    "single plantings",
    "planted noise",
    "even contribution",
    "equal variance",
    "normality of present scores",
    "whole-run correlation",
)
_REUSED = "noise reused at other coordinates"
# Coordinates correlate by so much where they all have one noise.
_SAME = 0.999
# Neighbouring steps correlate by as much where all of them have one noise.
_NEIGHBOURS = 0.9
_OF_DRAWS = (
    "sampling rate",
    "sampling scheme",
    "sampling of pairs",
    "sampling in time",
    "batch sizes",
    "single records",
)
# Checks that fail because another one does, by the cause; no chain of them comes back to itself.
_FOLLOWS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        cause: frozenset(symptoms)
        for cause, symptoms in {
            # Deterministic checks of the steps themselves.
            "record contributions": (*_SENSITIVITY, "sum of records"),
            "ghost norms": (*_SENSITIVITY, "sum of records"),
            "sum of records": _SENSITIVITY,
            "steps without noise": (
                "noise scale",
                "duplicate scores",
                "noise by step",
                "values without noise",
                "noise drift",
            ),
            "rows without noise": (
                "noise by row",
                "noise by step",
                "noise extremes",
                "noise scale",
                "noise shape",
                "values without noise",
            ),
            "noise by row": ("noise by step", "noise scale", "noise extremes", "noise shape"),
            _REUSED: (
                "noise of related nodes",
                "noise after restarts",
                "serial correlation",
                "repeated noise",
                "whole-run correlation",
                "noise spectrum",
                "shared noise",
                "common noise",
                "noise by coordinate",
                "noise by tensor",
                "noise extremes",
                "noise scale",
                "noise shape",
                "noise by step",
                "values without noise",
                "even contribution",
                "carry-over",
                "duplicate scores",
            ),
            "repeated noise": (
                "serial correlation",
                "whole-run correlation",
                "noise spectrum",
                "shared noise",
                "common noise",
                "noise sums across steps",
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
                "noise sums across steps",
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
            "divisor by step": (
                "repeated noise",
                "shared noise",
                "common noise",
                "serial correlation",
                "whole-run correlation",
                "noise spectrum",
                "noise sums across steps",
                "noise by coordinate",
                "noise by tensor",
                "noise drift",
                "noise by step",
                "noise and batch size",
                "noise scale",
                "noise shape",
                "noise extremes",
                "planted noise",
                "even contribution",
                "single plantings",
                "carry-over",
            ),
            "noise drift": ("noise by step", "noise scale", "noise sums across steps"),
            "noise and batch size": ("noise by step", "noise scale", "noise sums across steps"),
            "noise by step": ("noise extremes", "noise scale", "noise sums across steps"),
            "noise shape": ("noise by step", "noise extremes", "single plantings", "planted noise"),
            "contribution": _SENSITIVITY[1:],
            "single plantings": ("planted noise", "even contribution"),
            "even contribution": ("planted noise",),
            "noise after restarts": ("repeated noise", "noise of related nodes"),
            "carry-over": (
                "noise scale",
                "equal variance",
                "whole-run correlation",
                "common noise",
                "noise by coordinate",
                "noise shape",
                "noise extremes",
            ),
            "update norms": (*_SENSITIVITY, "honest updates", "nan update"),
            "single clients": (
                *_SENSITIVITY,
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
            "mixed records": (*_SENSITIVITY, "ghost norms", "sum of records"),
            "training loader": _OF_DRAWS,
            "rows per record": (*_OF_DRAWS, "divisor"),
            "repeated batches": _OF_DRAWS,
            "unused batches": (*_OF_DRAWS, "step count"),
            "single records": (
                # Given how many records a step drew: a wrong rate of all does not show there.
                "sampling rate",
                "batch sizes",
                "sampling scheme",
                "sampling of pairs",
                "sampling in time",
            ),
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
    listed = {item.check: item for item in findings if item.status in (Status.FAIL, Status.WARN)}
    follows, wrong = _directed(listed), list(listed)
    causes: dict[str, str] = {}
    for check in wrong:
        cause = next((name for name in wrong if check in follows.get(name, ())), None)
        if cause is not None:
            causes[check] = cause
    for check, cause in causes.items():
        while cause in causes:
            cause = causes[cause]
        causes[check] = cause
    return causes


def _directed(wrong: Mapping[str, Finding]) -> dict[str, frozenset[str]]:
    """What follows from what, the other way round where the findings themselves say so."""
    follows = dict(_FOLLOWS)
    if _one_noise_for_all(wrong):
        # Steps of few different numbers are alike by chance; coordinates of one noise are not.
        symptoms = follows["shared noise"] | follows["repeated noise"]
        symptoms |= {"repeated noise", "noise by tensor"}
        follows["repeated noise"] = frozenset()
        if _measured(wrong, _REUSED) == 0.0:
            # No stretch of values was used again: equal ones are those that coordinates share.
            symptoms |= {_REUSED}
            follows[_REUSED] = frozenset()
        follows["shared noise"] = symptoms - {"shared noise"}
    planted = wrong.get("planted noise")
    if planted is not None and planted.measured is not None and planted.measured < 1.0:
        # A record that adds unevenly adds to what varies where it is; it takes nothing off.
        follows = {name: checks - {"planted noise"} for name, checks in follows.items()}
        follows["planted noise"] = frozenset({"even contribution"})
    coordinate = wrong.get("noise by coordinate")
    if coordinate is not None and coordinate.consequence is not Consequence.BREACH:
        # Coordinates of heavy-tailed noise differ by more than chance, and by no more than that.
        for name in ("noise by coordinate", "values without noise"):
            follows[name] -= {"noise shape"}
        follows["noise shape"] |= {"noise by coordinate"}
    return follows


def _one_noise_for_all(wrong: Mapping[str, Finding]) -> bool:
    """Whether coordinates have one noise, and steps or values are alike only for that.

    Where all steps have the same noise, coordinates are alike too, and neighbouring steps as well.
    """
    return (
        ("repeated noise" in wrong or _REUSED in wrong)
        and _measured(wrong, "shared noise") >= _SAME
        and _measured(wrong, "serial correlation") < _NEIGHBOURS
    )


def _measured(wrong: Mapping[str, Finding], name: str) -> float:
    found = wrong.get(name)
    return 0.0 if found is None or found.measured is None else abs(found.measured)


def leading(findings: Iterable[Finding]) -> Finding | None:
    """The failed finding that names what is wrong; None where none failed.

    A broken claim before a bound that cannot be used; what caused it before what follows from it;
    deterministic checks before statistical ones.
    """
    listed = list(findings)
    failed = [item for item in listed if item.status is Status.FAIL]
    breaches = [item for item in failed if item.consequence is Consequence.BREACH]
    by_check, causes = {item.check: item for item in listed}, root_causes(listed)
    roots = [by_check[causes.get(item.check, item.check)] for item in breaches or failed]
    return min(roots, key=lambda item: item.p_value is not None, default=None)


def named(findings: Iterable[Finding]) -> str:
    """What is wrong, by the finding that leads; and what breaks the claim, where that is another.

    Examples:
        >>> named([Finding(check="contribution", status=Status.FAIL, summary="too much.")])
        'contribution: too much.'
    """
    listed = list(findings)
    lead = leading(listed)
    if lead is None:
        return ""
    said = f"{lead.check}: {lead.summary}"
    if lead.status is Status.FAIL and lead.consequence is Consequence.BREACH:
        return said
    breaches = [
        item
        for item in listed
        if item.status is Status.FAIL and item.consequence is Consequence.BREACH
    ]
    follow = root_causes(breaches)
    breach = next((item for item in breaches if item.check not in follow), None)
    return said if breach is None else f"{said} So {breach.check}: {breach.summary}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; of those the one that leads, then causes before what follows from them."""
    listed = list(findings)
    first, causes = leading(listed), root_causes(listed)
    return sorted(
        listed,
        key=lambda item: (_ORDER.index(item.status), item is not first, item.check in causes),
    )
