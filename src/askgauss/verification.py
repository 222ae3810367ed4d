"""A result checked against the transcript it came from: computed again, and nothing exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from askgauss._version import __version__
from askgauss.auditing import audit, derived
from askgauss.exceptions import AskGaussError
from askgauss.linear_transcript import LinearTranscript
from askgauss.replay.joining import joined_findings
from askgauss.replay.report import ReplayReport
from askgauss.results import AuditResult, Finding, Verdict, number
from askgauss.scores import CanaryScores
from askgauss.transcript import Transcript

__all__ = ["Verification", "VerifiedPart", "verify"]

# Numbers that two processors compute may differ in their last digits.
_ROUNDING = 1e-6
# Checks that rest on what a live accountant said when the result was made.
_LIVE = frozenset({"accounted epsilon"})


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPart:
    """One thing that was checked.

    Attributes:
        name: What.
        status: Whether it holds, does not, or could not be checked.
        summary: One sentence.
    """

    name: str
    status: Literal["holds", "fails", "not checked"]
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What is true of a result, given its transcript.

    Attributes:
        parts: What was checked.
        conclusion: What somebody who trusts neither side may conclude.
    """

    parts: tuple[VerifiedPart, ...]
    conclusion: str

    @property
    def holds(self) -> bool:
        """Whether nothing that was checked fails."""
        return all(part.status != "fails" for part in self.parts)

    def __str__(self) -> str:
        lines = [f"{part.status:>11}  {part.name}: {part.summary}" for part in self.parts]
        return "\n".join([*lines, "", self.conclusion])


def verify(
    result: AuditResult,
    data: CanaryScores | Transcript | LinearTranscript,
    replay: ReplayReport | None = None,
) -> Verification:
    """Check a result against what it was computed from.

    Args:
        result: The result.
        data: The transcript, or the scores.
        replay: The report of the replay that was joined to the result, if one was.
    """
    parts = (
        _same_run(result, data),
        _same_version(result),
        *_computed_again(result, data),
        *_replayed(result, replay),
        _commitment(result, data),
    )
    return Verification(parts=parts, conclusion=_conclusion(result, parts))


def _part(name: str, holds: bool | None, good: str, bad: str = "") -> VerifiedPart:
    status: Literal["holds", "fails", "not checked"] = "not checked"
    if holds is not None:
        status = "holds" if holds else "fails"
    return VerifiedPart(name=name, status=status, summary=bad if holds is False else good)


def _same_run(
    result: AuditResult, data: CanaryScores | Transcript | LinearTranscript
) -> VerifiedPart:
    run = data.metadata.run if isinstance(data, CanaryScores) else data.facts.run
    if result.run is None or run is None:
        return _part("run", None, "one of the two does not say which run it is of.")
    return _part(
        "run",
        result.run == run,
        f"both are of run {run[:12]}.",
        f"the result is of run {result.run[:12]}, the data of run {run[:12]}.",
    )


def _same_version(result: AuditResult) -> VerifiedPart:
    if result.version == __version__:
        return _part("version", True, f"the result was made with askgauss {__version__}, as here.")
    return _part(
        "version",
        None,
        f"the result was made with askgauss {result.version}, and is checked with {__version__}: "
        "words and findings may differ.",
    )


def _computed_again(
    result: AuditResult, data: CanaryScores | Transcript | LinearTranscript
) -> tuple[VerifiedPart, ...]:
    tested = bool(result.findings or result.scope)
    try:
        again = audit(
            data,
            claim=result.claim,
            delta=result.delta if result.claim is None else None,
            auditor=result.auditor if result.law_declared else None,
            confidence=result.confidence,
            gate_error=result.gate_error,
            diagnostics=tested,
        )
    except AskGaussError as error:
        said = f"the data cannot be audited as the result says: {error}"
        return (_part("bound", False, "", said),)
    joined = tuple(item for item in result.findings if _of_a_replay(item))
    if joined:
        # They are checked by themselves: here, what follows from them.
        free = again.distribution_free_evidence
        again = derived(replace(again, findings=(*again.findings, *joined)), lambda: free)
    bound = _part(
        "bound",
        math.isclose(result.epsilon_lower, again.epsilon_lower, rel_tol=_ROUNDING, abs_tol=1e-9)
        and (result.present, result.absent) == (again.present, again.absent),
        f"epsilon >= {number(result.epsilon_lower)}, computed again from the data.",
        f"the result says epsilon >= {number(result.epsilon_lower)} of {result.present:,} present "
        f"and {result.absent:,} absent canaries; the data give {number(again.epsilon_lower)} of "
        f"{again.present:,} and {again.absent:,}.",
    )
    names = [None if item.verdict is None else item.verdict.value for item in (result, again)]
    verdict = _part(
        "verdict",
        names[0] == names[1],
        f"{names[0] or 'none, since there is no claim'}, computed again.",
        f"the result says {names[0]}, the data give {names[1]}.",
    )
    mine, theirs = (
        {item.check: item.status for item in one.findings if item.check not in _LIVE}
        for one in (again, result)
    )
    differ = sorted(
        name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
    )
    # Another version may have more checks, and other words for them.
    same = None if result.version != __version__ and differ else not differ
    otherwise = f"{len(differ)} checks came out otherwise: {', '.join(differ[:3])}."
    good = f"all {len(theirs)} checks came out the same." if same else otherwise
    findings = _part("findings", same, good, otherwise)
    return bound, verdict, findings


def _of_a_replay(finding: Finding) -> bool:
    return finding.check == "replay" or finding.check.startswith("replay: ")


def _replayed(result: AuditResult, replay: ReplayReport | None) -> tuple[VerifiedPart, ...]:
    """Whether findings of a replay are those of the report that was given."""
    joined = tuple(item for item in result.findings if _of_a_replay(item))
    if replay is None:
        told = (
            f"{len(joined)} findings of the result are of a replay, and taken as they are: give "
            "its report to check them. A report follows from the training alone."
        )
        return (_part("replay", None, told),) if joined else ()
    wanted = joined_findings(replay, result)
    return (
        _part(
            "replay",
            joined == wanted,
            f"{len(joined)} findings are those of the report.",
            f"the result has {len(joined)} findings of a replay, and the report gives others.",
        ),
    )


def _commitment(
    result: AuditResult, data: CanaryScores | Transcript | LinearTranscript
) -> VerifiedPart:
    name = "commitment"
    kept = data.facts.commitment if isinstance(data, Transcript) else None
    if kept is None:
        bad = "the result names one, and the data hold nothing that opens it."
        missing = result.commitment is not None
        return _part(name, False if missing else None, "none was made before the run.", bad)
    assert isinstance(data, Transcript)
    if result.commitment is None:
        return _part(name, None, "the data hold one, and the result does not name it.")
    if result.commitment != kept.digest:
        return _part(name, False, "", "the result names another digest than the data.")
    try:
        fault = kept.fault(data.facts.seed, data.member)
        claimed = kept.claims(result.claim) if kept.claim is not None else None
    except AskGaussError as error:
        return _part(name, False, "", str(error))
    if fault:
        return _part(name, False, "", f"{fault}.")
    if claimed is False:
        return _part(name, False, "", "the claim is not the one that was committed to.")
    what = "seed, coins and claim" if claimed else "seed and coins; no claim was committed to"
    return _part(name, True, f"{kept.digest[:16]}... opens to {what}.")


def _conclusion(result: AuditResult, parts: tuple[VerifiedPart, ...]) -> str:
    failed = [part.name for part in parts if part.status == "fails"]
    if failed:
        return (
            f"Do not rely on this result: {' and '.join(failed)} did not hold. Ask for the files "
            "as the audit wrote them."
        )
    status = {part.name: part.status for part in parts}
    verdict = result.verdict or (Verdict.INCONCLUSIVE if result.claim else None)
    said = "its bound" if verdict is None else f"its verdict, {verdict.value},"
    lines = [f"The result follows from the data: {said} is what they give."]
    if status.get("commitment") == "holds":
        lines.append(
            "If the digest was seen before the first step, canaries and what it covers were fixed "
            "before the run."
        )
    else:
        lines.append(
            "Nothing shows that canaries and claim were fixed before the run: that is the "
            "auditor's word."
        )
    lines.append(
        "That the data were recorded from the run that made the released weights is the word of "
        "whoever recorded them."
    )
    return " ".join(lines)
