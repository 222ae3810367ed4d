"""What an audit of a mechanism answers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from askgauss import _validate, policy
from askgauss._text import number, of_the_claim
from askgauss._version import __version__
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.files import atomic, codec
from askgauss.mechanism_audit.bets_placed import Evidence
from askgauss.results import Assumption, Verdict

__all__ = ["MechanismResult"]

_KIND = "askgauss-mechanism-result"
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismResult:
    """The answer of one audit of a mechanism on one pair of neighbouring inputs.

    Attributes:
        evidence: The bets that were placed; they answer `epsilon_at` and `p_value`.
        samples: Outputs drawn from each side, those that events were chosen on included.
        delta: The delta the bound is stated at.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        epsilon_lower: The lower bound on epsilon.
        epsilon_point: What the event bet on last showed; never to be read without the bound.
        event: The event that showed it.
        ceiling: The most that this many outputs could show at this confidence.
        claim: What was claimed, if anything.
        gate_error: Probability that a mechanism that keeps its claim ends in VIOLATION or INVALID.
        verdict: The verdict on the claim; None where there is no claim.
        reason: Why, in one sentence.
        power: Probability of a VIOLATION had the event leaked 1.25 times as much as it did, or as
            the claim where it showed all of that.
        version: The askgauss that made the result.
    """

    evidence: Evidence
    samples: int
    delta: float
    confidence: float
    epsilon_lower: float
    epsilon_point: float | None
    event: str
    ceiling: float
    claim: PrivacyClaim | None
    gate_error: float
    verdict: Verdict | None
    reason: str
    power: float | None
    version: str

    @property
    def assumption(self) -> Assumption:
        """What the bound rests on: independent outputs, and nothing about their law."""
        return Assumption.DISTRIBUTION_FREE

    @property
    def scope(self) -> str:
        """What was tested, and what was not."""
        return (
            "this pair of inputs only, which the caller says are neighbours; events found by this "
            "search; outputs taken for independent draws. Another pair may leak more."
        )

    def epsilon_at(self, *, delta: float) -> float:
        """The lower bound at another delta, from the same bets."""
        _validate.within(0.0, 1.0, closed="left", delta=delta)
        return self.evidence.epsilon_lower(delta, self.confidence)

    def p_value(self, *, epsilon: float) -> float:
        """Probability of evidence this strong, whenever one stops, were epsilon kept."""
        _validate.non_negative(epsilon=epsilon)
        return self.evidence.p_value(epsilon, self.delta)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text; also written to ``path``, whole or not at all, if one is given."""
        text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(self))
        if path is not None:
            atomic.write_text(path, text)
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> MechanismResult:
        """Read what `to_json` wrote.

        Bound, verdict, reason and power are not taken at its word: they are computed again from the
        bets and the claim, and must agree.

        Raises:
            FileFormatError: The text is corrupt, foreign, of a newer schema, or contradicts itself.
        """
        content = codec.loads(text, _KIND, _SCHEMA, protected=1)
        missing = {item.name for item in fields(cls)} - content.keys()
        if missing:
            raise FileFormatError(f"Expected the fields {sorted(missing)} in the result.")
        hints = get_type_hints(cls)
        read: dict[str, Any] = {
            item.name: codec.from_plain(hints[item.name], content[item.name], item.name)
            for item in fields(cls)
        }
        result = cls(**read)
        _check(result)
        return result

    def __str__(self) -> str:
        lines = []
        if self.claim is not None and self.verdict is not None:
            lines.append(f"{self.verdict.value}: {self.reason}")
            lines.append(f"  claimed     {self.claim}")
        share = ""
        if self.claim is not None:
            share = f" ({of_the_claim(self.epsilon_lower, self.claim.epsilon)})"
        lines.append(
            f"  measured    epsilon >= {number(self.epsilon_lower)} at delta {self.delta:g}, "
            f"confidence {self.confidence:g}{share}"
        )
        lines.append(
            f"  method      bets on events, {self.assumption.value}; {self.samples:,} outputs of "
            "each side"
        )
        if self.event:
            lines.append(f"  event       {self.event}")
        if math.isfinite(self.ceiling):
            lines.append(f"  ceiling     this many outputs could show {number(self.ceiling)}")
        if self.power is not None:
            lines.append(
                f"  would see   {policy.ALTERNATIVE:g} times the claim in {self.power:.0%} of "
                f"audits; a sound mechanism is called broken in at most {self.gate_error:g}"
            )
        lines.append(f"  tested      {self.scope}")
        return "\n".join(lines)


def _check(result: MechanismResult) -> None:
    """Refuse a result that no audit has, or that its own bets and claim contradict."""
    from askgauss.evidence.result_file import check_agreement
    from askgauss.mechanism_audit.mechanism_auditing import concluded

    try:
        _validate.within(0.0, 1.0, closed="left", delta=result.delta)
        _validate.within(0.5, 1, confidence=result.confidence)
        _validate.within(0, 0.5, gate_error=result.gate_error)
        _validate.integer(1, samples=result.samples)
        if result.claim is not None and result.claim.delta != result.delta:
            raise _validate.fail("delta", result.delta, f"to be the claim's {result.claim.delta}")
    except InvalidArgumentError as error:
        raise FileFormatError(f"It is no result of an audit: {error}") from error
    result.evidence.check(result.samples)
    # How outputs were drawn is not in the bets: that it was wrong is the one thing believed.
    drawn_wrongly = result.verdict is Verdict.INVALID or result.claim is None
    again = concluded(
        result.evidence,
        samples=result.samples,
        delta=result.delta,
        confidence=result.confidence,
        claim=result.claim,
        gate_error=result.gate_error,
        coins=result.reason if drawn_wrongly else "",
    )
    names = ["epsilon_lower", "epsilon_point", "ceiling", "event", "verdict"]
    if result.version == __version__:
        names += ["reason", "power"]
    check_agreement(result, again, names)
