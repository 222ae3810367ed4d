"""Schemes back from files."""

from __future__ import annotations

from typing import Any

from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.fixed import EveryStep, FixedSize, TruncatedPoisson
from askgauss.sampling.independent import CyclicPoisson, MinSeparation, Poisson
from askgauss.sampling.scheme import Scheme

__all__ = ["from_plain"]

_SCHEMES: dict[str, type[Scheme]] = {
    scheme.tag: scheme
    for scheme in (
        BallsInBins,
        CyclicPoisson,
        EveryStep,
        FixedSize,
        MinSeparation,
        Poisson,
        Shuffled,
        TruncatedPoisson,
    )
}


def from_plain(value: Any, where: str = "sampling") -> Scheme:
    """The scheme that `Scheme.to_plain` wrote.

    Args:
        value: JSON values.
        where: What to call it in an error.

    Raises:
        FileFormatError: It is not a scheme, or not one that this version knows.

    Examples:
        >>> from_plain({"scheme": "poisson", "rate": 0.05})
        Poisson(rate=0.05)
    """
    tag = value.get("scheme") if isinstance(value, dict) else None
    if not isinstance(tag, str) or tag not in _SCHEMES:
        raise FileFormatError(
            f"Expected {where} to name a sampling scheme ({', '.join(sorted(_SCHEMES))}), got "
            f"{str(tag if isinstance(value, dict) else value)[:80]!r}. A newer askgauss may have "
            "written it."
        )
    content = {name: item for name, item in value.items() if name != "scheme"}
    scheme: Scheme = codec.from_plain(_SCHEMES[tag], content, where)
    return scheme
