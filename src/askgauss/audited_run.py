"""What every audited run can be asked for at its end, whatever framework it runs in."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Generic, TypeVarTuple

from askgauss.auditing import audit
from askgauss.auditors.auditor import Auditor
from askgauss.claims import PrivacyClaim
from askgauss.figures.course_figures import with_course
from askgauss.monitor import Monitor
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import AuditResult

__all__ = ["AuditedRun"]

State = TypeVarTuple("State")


class AuditedRun(abc.ABC, Generic[*State]):
    """A run with a transcript, which can be audited at any time.

    Where a framework keeps what was read in a state that it hands from step to step, that state is
    the first argument of `transcript` and `result`; elsewhere there is none.

    Attributes:
        result_ends: Whether nothing else says that the run is over, so that asking for its result
            closes its monitor, unless the run is known to go on.
    """

    result_ends: ClassVar[bool] = False

    @abc.abstractmethod
    def transcript(self, *state: *State) -> Transcript | LinearTranscript:
        """What the steps so far released about the canaries."""

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return None

    def _transcript_for(
        self, claim: PrivacyClaim | None, *state: *State
    ) -> Transcript | LinearTranscript:
        """The transcript, with what is known only once the claim is."""
        return self.transcript(*state)

    def _goes_on(self, *state: *State) -> bool:
        """Whether more steps are known to follow."""
        return False

    def _own_claim(self) -> PrivacyClaim | None:
        """The claim the audit was made with, if it was."""
        return None

    def result(
        self,
        *state: *State,
        claim: PrivacyClaim | None = None,
        delta: float | None = None,
        auditor: Auditor[Any] | str | None = None,
        confidence: float = 0.95,
        gate_error: float = 0.001,
        diagnostics: bool = True,
    ) -> AuditResult:
        """Audit the steps so far; the arguments are those of `askgauss.audit`.

        Without claim and delta, the claim is the one the audit was made with.

        """
        if claim is None and delta is None:
            claim = self._own_claim()
        found = audit(
            self._transcript_for(claim, *state),
            claim=claim,
            delta=delta,
            auditor=auditor,
            confidence=confidence,
            gate_error=gate_error,
            diagnostics=diagnostics,
        )
        if self.monitor is None:
            return found
        if self._goes_on(*state):
            return with_course(found, self.monitor.feed("running"))
        if self.result_ends:
            self.monitor.close()
        return with_course(found, self.monitor.feed("finished"))
