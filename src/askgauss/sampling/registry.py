"""All schemes by their names, and schemes as users, files and accountants state them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from askgauss import _validate
from askgauss.exceptions import FileFormatError, InvalidArgumentError, UnsupportedError
from askgauss.files import codec
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.fixed import FixedSize, TruncatedPoisson
from askgauss.sampling.independent import CyclicPoisson, EveryStep, MinSeparation, Poisson
from askgauss.sampling.scheme import Scheme

__all__ = ["Mismatch", "assumed_poisson", "from_plain", "mismatch", "scheme_of"]

# A new scheme is entered here, and can then be declared, recorded and read from files.
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


def scheme_of(sampling: Scheme | None, sampling_rate: float | None) -> Scheme | None:
    """The scheme that ``sampling=`` and ``sampling_rate=`` declare together.

    Raises:
        InvalidArgumentError: They contradict each other, or the first is no scheme.
    """
    given: Any = sampling
    if not isinstance(given, (Scheme, type(None))):
        hint = "Make one of askgauss.sampling: Poisson(rate=0.05), Shuffled(batches=20), ..."
        raise _validate.fail("sampling", sampling, "to be a sampling scheme", hint)
    if sampling_rate is None:
        return sampling
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    poisson = Poisson(rate=float(sampling_rate))
    if sampling not in (None, poisson):
        raise InvalidArgumentError(
            f"Expected one of sampling and sampling_rate, got {sampling!r} and {sampling_rate!r}, "
            "which means Poisson sampling. Leave out sampling_rate."
        )
    return poisson


def assumed_poisson(scheme: Scheme | None) -> bool:
    """Whether batches are Poisson sampled as far as declared: no other scheme was."""
    return scheme is None or scheme.poisson_rate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Two schemes and the epsilon of each.

    Attributes:
        declared: The scheme that was accounted for.
        actual: The scheme that drew the batches.
        claimed: What an accountant claims for the first; where there is none, its lower bound.
        true_at_least: The lower bound of the second.
    """

    declared: Scheme
    actual: Scheme
    claimed: float
    true_at_least: float

    @property
    def breaks_the_claim(self) -> bool:
        """Whether the scheme that was used leaks more than the other one may."""
        return self.true_at_least > self.claimed

    def __str__(self) -> str:
        return (
            f"{self.actual} accounted as {self.declared}: claimed {self.claimed:.2f}, true at "
            f"least {self.true_at_least:.2f}"
        )


def mismatch(
    declared: Scheme, actual: Scheme, noise_multiplier: float, steps: int, delta: float
) -> Mismatch:
    """What it costs to account for one scheme and draw batches by another.

    Args:
        declared: The scheme that was accounted for.
        actual: The scheme that drew the batches.
        noise_multiplier: Noise deviation over clipping norm.
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Examples:
        >>> from askgauss.sampling import CyclicPoisson, Poisson
        >>> found = mismatch(Poisson(rate=0.05), CyclicPoisson(rate=0.2, cycle=4), 1.0, 400, 1e-5)
        >>> round(found.claimed, 2), round(found.true_at_least, 2)
        (6.7, 14.53)
    """
    try:
        claimed = declared.epsilon(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    except UnsupportedError:
        claimed = declared.epsilon_lower(
            noise_multiplier=noise_multiplier, steps=steps, delta=delta
        )
    true = actual.epsilon_lower(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    return Mismatch(declared=declared, actual=actual, claimed=claimed, true_at_least=true)
