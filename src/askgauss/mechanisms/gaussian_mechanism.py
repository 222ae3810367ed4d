"""The privacy of a Gaussian mechanism, from its sensitivity alone."""

from __future__ import annotations

import abc

from askgauss import _validate
from askgauss.stats import gaussian

__all__ = ["GaussianMechanism"]


class GaussianMechanism(abc.ABC):
    """Anything that adds independent Gaussian noise to rows of bounded sensitivity."""

    __slots__ = ()

    @abc.abstractmethod
    def sensitivity(self) -> float:
        """How far one record can move the noisy rows, in units of the clip norm."""

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """The noise of one row, in clip norms, that gives (epsilon, delta)-DP.

        Examples:
            >>> from askgauss.mechanisms.matrix import MatrixMechanism
            >>> round(MatrixMechanism.identity(1).noise_multiplier(epsilon=1.0, delta=1e-5), 4)
            3.7306
        """
        _validate.positive(epsilon=epsilon)
        _validate.probability(delta=delta)
        return self.sensitivity() / gaussian.gdp_mu(epsilon, delta)

    def epsilon(self, *, noise_multiplier: float, delta: float) -> float:
        """The epsilon at ``delta``; the inverse of :meth:`noise_multiplier`."""
        _validate.positive(
            noise_multiplier=noise_multiplier, hint="Without noise the mechanism is not private."
        )
        _validate.probability(delta=delta)
        return gaussian.gdp_epsilon(delta=delta, mu=self.sensitivity() / noise_multiplier)
