"""What every auditor is: options in, evidence out, and questions the evidence answers."""

from __future__ import annotations

import abc
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from askgauss import _validate
from askgauss.exceptions import NotDefinedError
from askgauss.results import Assumption, Finding
from askgauss.stats import gaussian
from askgauss.stats.tradeoff import TradeOff

__all__ = ["Auditor", "Evidence"]

Evidence = TypeVar("Evidence")

# A curve of a larger epsilon has no float between it and the axes.
_STEEPEST = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Auditor(abc.ABC, Generic[Evidence]):
    """A method: a frozen set of options.

    `gather` reads the data once and keeps sufficient statistics, the evidence: a frozen dataclass
    of plain numbers. Every other method is a pure function of the evidence, so that a result read
    back from JSON answers the same questions as the one that was written.
    """

    assumption: ClassVar[Assumption]
    evidence_type: ClassVar[type]
    reads: ClassVar[str] = "scores"
    # Whether it has something to say at delta 0, where Gaussian noise keeps no claim at all.
    pure: ClassVar[bool] = False
    # Whether moments are all its evidence, so that they tell those of other numbers of canaries.
    scales: ClassVar[bool] = False
    # Whether the bound has its error exactly, so that at one minus it there is an upper bound.
    exact: ClassVar[bool] = False

    @classmethod
    def kebab_name(cls) -> str:
        """Name on the command line: the class name in kebab-case."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @property
    def name(self) -> str:
        """Name on the command line: the class name in kebab-case."""
        return self.kebab_name()

    @property
    def adversary(self) -> str:
        """What the adversary sees whose success the bound is about."""
        return "every noisy gradient" if self.reads == "transcript" else "one score a canary"

    @property
    def any_size(self) -> bool:
        """Whether its options fit other canaries too, and so other numbers of them."""
        return True

    @abc.abstractmethod
    def gather(self, data: Any, *, delta: float, confidence: float) -> Evidence:
        """Sufficient statistics of the scores (or of the transcript)."""

    @abc.abstractmethod
    def epsilon_lower(self, evidence: Evidence, *, delta: float, confidence: float) -> float:
        """The lower bound on epsilon."""

    def check_delta(self, delta: float) -> None:
        """Refuse a delta that the method has nothing to say about.

        Raises:
            InvalidArgumentError: It is such a delta.
        """
        if self.pure:
            _validate.within(0.0, 1.0, closed="left", delta=delta)
            return
        from askgauss.auditors import pure_auditors  # the list of all stands above each

        *names, last = pure_auditors()
        hint = f"At delta 0 use {', '.join(names)} or {last}."
        _validate.probability(hint=hint, delta=delta)

    def epsilon_point(self, evidence: Evidence, *, delta: float) -> float | None:
        """An estimate of epsilon, where the method has one."""
        return None

    def p_value(self, evidence: Evidence, *, epsilon: float, delta: float) -> float:
        """Probability of evidence this strong were the run (epsilon, delta)-private."""
        raise NotDefinedError(f"{type(self).__name__} does not define p-values.")

    def rejects(self, evidence: Evidence, *, epsilon: float, delta: float, error: float) -> bool:
        """Whether the evidence contradicts ``epsilon`` at this error."""
        return self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon

    def tradeoff(self, evidence: Evidence, *, delta: float, confidence: float) -> TradeOff:
        """The trade-off curve that the bound stands for.

        Where noise is taken for Gaussian, the Gaussian one of that epsilon; else the lowest one
        that (epsilon, delta) allows.
        """
        epsilon = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
        if not self.assumption.gaussian_curve:
            return TradeOff.epsilon_delta(min(epsilon, _STEEPEST), delta)
        if math.isinf(epsilon):
            return TradeOff.epsilon_delta(0.0, 1.0)
        return TradeOff.gaussian(gaussian.gdp_mu(epsilon, delta))

    def ceiling(self, evidence: Evidence, *, delta: float, confidence: float) -> float:
        """The most the method could report from this many canaries."""
        return float("inf")

    def power(
        self, evidence: Evidence, *, epsilon: float, true_epsilon: float, delta: float, error: float
    ) -> float | None:
        """Probability that the p-value at ``epsilon`` is below ``error`` at a true epsilon."""
        return None

    def smallest_leak(
        self, evidence: Evidence, *, epsilon: float, delta: float, error: float, power: float
    ) -> float | None:
        """The smallest true epsilon that is noticed with this power, where that is quick to say.

        Infinite where none is.
        """
        return None

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> Evidence | None:
        """Evidence as `power` needs it before a run; None where only simulated audits tell it."""
        return None

    def findings(
        self, evidence: Evidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the evidence itself says about whether the method applies."""
        return ()

    def concerns(self, evidence: Evidence, finding: Finding) -> bool:
        """Whether a failure of this check could make the bound too high."""
        return self.assumption.rests_on(finding.undermines)
