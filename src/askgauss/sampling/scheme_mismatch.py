"""What it costs to account for one scheme and draw batches by another."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.exceptions import UnsupportedError
from askgauss.sampling.scheme import Scheme

__all__ = ["Mismatch", "mismatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Two schemes and the epsilon of each.

    Attributes:
        declared: The scheme that was accounted for.
        actual: The scheme that drew the batches.
        claimed: What an accountant claims for the first; where there is none, its own law.
        true_at_least: What the second one has, from below.
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
    """The epsilon that a declared scheme gives, and that of the scheme that was used.

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
