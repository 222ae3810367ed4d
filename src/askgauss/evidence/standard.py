"""The standard that a result has to meet as evidence: the default audit, with all of its checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from askgauss import _validate
from askgauss.auditors.auditor import Auditor
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.auditors.thresholding import ClopperPearson
from askgauss.checks.gate import stated_share
from askgauss.results import AuditResult

__all__ = ["Standard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """What whoever relies on a result asks of the audit behind it; by default the default audit.

    Attributes:
        auditor: The method; None for the one that `askgauss.audit` chooses for the data.
        confidence: Confidence of the bound.
        gate_error: False-alarm rate of the gate.
    """

    auditor: Auditor[Any] | None = None
    confidence: float = 0.95
    gate_error: float = 0.001

    def __post_init__(self) -> None:
        _validate.within(0.5, 1, confidence=self.confidence)
        _validate.within(0, 0.5, gate_error=self.gate_error)

    def shortfalls(self, result: AuditResult) -> tuple[str, ...]:
        """In what a result is not of this standard, as far as it says itself; none where it is.

        Another standard is not always a lower one, but nobody can choose it after seeing the run
        and still have the error rates that are stated.
        """
        found = []
        if not result.scope:
            found.append(
                "its checks were not run (diagnostics=False), so only the bound was tested"
            )
        expected = [self.auditor] if self.auditor else _defaults(result)
        names = dict.fromkeys(item.name for item in expected)
        if result.auditor.name not in names:
            found.append(f"its method is {result.auditor.name} instead of {' or '.join(names)}")
        elif result.auditor not in expected:
            found.append(f"its method {result.auditor.name} has other options")
        # A watched run that was ended early is stated with less error.
        share = stated_share(result.findings)
        standard = {
            "confidence": 1.0 - (1.0 - self.confidence) * share,
            "gate_error": self.gate_error * share,
        }
        for name, wanted in standard.items():
            stated = getattr(result, name)
            if stated != wanted:
                found.append(f"its {name.replace('_', ' ')} is {stated:g} instead of {wanted:g}")
        return tuple(found)


def _defaults(result: AuditResult) -> list[Auditor[Any]]:
    """The methods that the default audit may choose, of data of this kind."""
    if not result.noise_declared:
        return [GaussianShift(), ClopperPearson()]
    replaced = (False, True)
    steps: list[Auditor[Any]] = [SubsampledGaussian(replaced=item) for item in replaced]
    shift: list[Auditor[Any]] = [GaussianShift(replaced=item) for item in replaced]
    if result.summary is None:
        return [*steps, *shift]
    return steps if result.summary.run.source == "transcript" else shift
