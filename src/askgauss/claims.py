"""What a training run claims about its privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from askgauss import _validate
from askgauss.sampling import Poisson, Scheme, scheme_of

__all__ = ["HOW_TO_CLAIM", "PrivacyClaim"]

HOW_TO_CLAIM = "Make one with PrivacyClaim(epsilon=8.0, delta=1e-5)."


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyClaim:
    """The (epsilon, delta) a run claims, and the mechanism it says it ran.

    Only ``epsilon`` and ``delta`` are needed for a verdict. The rest lets the findings say *which*
    part of the mechanism is not as claimed.

    Args:
        epsilon: Claimed epsilon, above 0 and at most 1e9.
        delta: Claimed delta, in [0, 1); 0 where a method allows it, as `audit_mechanism` does.
        noise_multiplier: Standard deviation of the noise on the sum, in units of ``clip_norm``.
        sampling_rate: Probability that one record is in a step's batch (Poisson sampling).
        steps: Number of noisy steps released.
        clip_norm: Largest norm one record contributes to a step's sum.
        sampling: How records are drawn, by what was accounted for; ``sampling_rate`` alone means
            Poisson sampling.
        adjacency: Neighbouring relation of the claim: a record more or less (``add-remove``), one
            that adds nothing while its place and all draws stay (``zero-out``), or another one in
            its place (``replace``), which moves a sum by up to two clip norms.
        unit: What one record is: an example or a user.

    Examples:
        >>> PrivacyClaim(epsilon=8.0, delta=1e-5).epsilon
        8.0
    """

    epsilon: float
    delta: float
    noise_multiplier: float | None = None
    sampling_rate: float | None = None
    steps: int | None = None
    clip_norm: float | None = None
    sampling: Scheme | None = None
    adjacency: Literal["add-remove", "zero-out", "replace"] = "add-remove"
    unit: Literal["example", "user"] = "example"

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.within(0, _validate.LARGEST_EPSILON, closed="right", epsilon=self.epsilon)
        _validate.within(0.0, 1.0, closed="left", delta=self.delta)
        if self.noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=self.noise_multiplier, zero=True)
        if self.steps is not None:
            _validate.count(steps=self.steps)
        if self.clip_norm is not None:
            _validate.magnitude(clip_norm=self.clip_norm)
        scheme_of(self.sampling, self.sampling_rate)
        _validate.one_of(("add-remove", "zero-out", "replace"), adjacency=self.adjacency)
        _validate.one_of(("example", "user"), unit=self.unit)

    @property
    def scheme(self) -> Scheme | None:
        """The scheme that was accounted for, however it was said."""
        return scheme_of(self.sampling, self.sampling_rate)

    def in_rounds(self, turns: int) -> PrivacyClaim:
        """The same claim in the rounds of a run whose records take turns in so many steps.

        To one record, cyclic Poisson sampling is Poisson sampling of rounds. A claim that does not
        say that records take turns is left as it is.

        Examples:
            >>> from askgauss.sampling import CyclicPoisson
            >>> scheme = CyclicPoisson(rate=0.2, cycle=4)
            >>> claim = PrivacyClaim(epsilon=8.0, delta=1e-5, steps=400, sampling=scheme)
            >>> claim.in_rounds(4).steps, claim.in_rounds(4).sampling
            (100, Poisson(rate=0.2))
        """
        scheme = None if self.sampling is None else self.sampling.cyclic
        if turns == 1 or scheme is None or scheme.cycle != turns:
            return self
        steps = None if self.steps is None else -(-self.steps // turns)
        return replace(self, sampling=Poisson(rate=scheme.rate), steps=steps)

    def __str__(self) -> str:
        neighbours = {"add-remove": "", "zero-out": ", zero-out", "replace": ", replace-one"}
        unit = ", of a user" if self.unit == "user" else ""
        said = f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        return f"{said}{neighbours[self.adjacency]}{unit}"
