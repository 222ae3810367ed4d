"""What every audited run can be asked for at its end, whatever framework it runs in."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVarTuple

from askgauss.auditing import audit
from askgauss.auditors.base import Auditor
from askgauss.claims import PrivacyClaim
from askgauss.diagnostics.figures import with_course
from askgauss.diagnostics.stopping import error_share, stopping
from askgauss.linear_transcript import LinearTranscript
from askgauss.monitor import Monitor
from askgauss.results import AuditResult
from askgauss.transcript import Transcript

__all__ = ["AuditedRun"]

State = TypeVarTuple("State")


class AuditedRun(abc.ABC, Generic[*State]):
    """A run with a transcript, which can be audited at any time.

    Where a framework keeps what was read in a state that it hands from step to step, that state is
    the first argument of `transcript` and `result`; elsewhere there is none.

    Attributes:
        result_ends: Whether nothing else says that the run is over, so that asking for its result
            tells those who follow its monitor, unless the run is known to go on.
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

    def _planned(self, claim: PrivacyClaim | None) -> int | None:
        """Steps that were planned before the run, or else are claimed now; None if neither."""
        told = (self.monitor and self.monitor.claim, self._own_claim(), claim)
        return next((item.steps for item in told if item is not None and item.steps), None)

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

        Where the run was watched, and ended at another step than planned, ``confidence`` and
        ``gate_error`` hold whenever it was ended, whatever the monitor showed: the result is stated
        at a higher confidence, and its finding *stopping* says so.
        """
        if claim is None and delta is None:
            claim = self._own_claim()
        transcript = self._transcript_for(claim, *state)
        share, note = 1.0, None
        if self.monitor is not None:
            taken = transcript.number_of_steps * getattr(transcript.facts, "turns", 1)
            planned = self._planned(claim)
            share, note = error_share(taken, planned), stopping(taken, planned)
        found = audit(
            transcript,
            claim=claim,
            delta=delta,
            auditor=auditor,
            confidence=1.0 - (1.0 - confidence) * share,
            gate_error=gate_error * share,
            diagnostics=diagnostics,
        )
        if self.monitor is None:
            return found
        if note is not None:
            found = replace(found, findings=(*found.findings, note))
        if self._goes_on(*state):
            return with_course(found, self.monitor.feed("running"))
        if self.result_ends:
            self.monitor.close()
        return with_course(found, self.monitor.feed("finished"))
