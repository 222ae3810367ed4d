"""A result checked against the transcript it came from, by the verifier's own standard.

The audit is run again on the transcript, with all of its checks, and everything the result states
has to be what that audit gives. What a result lacks, or says of itself, decides nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from askgauss import __version__
from askgauss._text import confidence_in_words, number
from askgauss.auditing import audit, audited, with_findings
from askgauss.checks.accountant import REPORTED
from askgauss.evidence.consistency import check_consistency
from askgauss.evidence.standard import Standard
from askgauss.exceptions import AskGaussError, FileFormatError
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.replay.replay_report import ReplayReport, joined_findings
from askgauss.results import AuditResult, Finding, Status
from askgauss.scores import CanaryScores

__all__ = ["Verification", "VerifiedPart", "verify"]

Data = CanaryScores | Transcript | LinearTranscript

# Numbers that two processors compute may differ in their last digits.
_ROUNDING = 1e-6
# Where every field of a result is compared with the audit that is run again.
_COMPARED = {
    "run": ("run",),
    "bound": (
        "evidence",
        "present",
        "absent",
        "delta",
        "epsilon_lower",
        "epsilon_point",
        "ceiling",
        "distribution_free",
        "distribution_free_evidence",
        "if_gaussian",
        "gaussian_evidence",
        "membership",
    ),
    "verdict": ("claim", "verdict", "reason", "power", "smallest_leak"),
    "checks": ("findings",),
    "scope": ("scope",),
    "facts": ("metadata",),
    "private": ("private",),
}
# Fields that are compared with the standard, and those that have a part with rules of its own.
_OPTIONS = ("auditor", "confidence", "gate_error", "law_declared")
_APART = ("version", "provenance", "commitment")
# What a monitor saw while the run trained is not in the transcript: it can only add a warning.
_MONITOR = "monitor"
# Facts that are of the machine, and of the monitor.
_MACHINE, _WATCHED = "environment", "watched"
# Rests on the accountant's own epsilon too, which is asked for when the result is made.
_ACCOUNTED = "accounted epsilon"
_OWN_EPSILON = re.compile(f"{REPORTED}([^ ;]+)")
_LABELS = {"holds": "OK", "fails": "FAILED", "not checked": "not checked"}


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

    def __str__(self) -> str:
        return f"{_LABELS[self.status]:<11}  {self.name}: {self.summary}"


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
        return "\n".join([*map(str, self.parts), "", self.conclusion])


def verify(
    result: AuditResult,
    data: CanaryScores | Transcript | LinearTranscript,
    replay: ReplayReport | None = None,
    *,
    standard: Standard | None = None,
    commitment: str | None = None,
    sha256: str | None = None,
) -> Verification:
    """Check a result against what it was computed from.

    Args:
        result: The result.
        data: The transcript, or the scores.
        replay: The report of the replay that was joined to the result, if one was.
        standard: The audit that is asked for; the default audit if not given.
        commitment: The digest that was published before the run, as the verifier knows it.
        sha256: Digest of the file that the data were read from.
    """
    parts = (
        _version(result),
        _file(result, sha256),
        *_computed_again(result, data, standard or Standard()),
        *_taken_on_trust(result, data),
        *_replayed(result, replay),
        _commitment(result, data, commitment),
    )
    return Verification(parts=parts, conclusion=_conclusion(result, parts))


def _part(name: str, holds: bool | None, good: str, bad: str = "") -> VerifiedPart:
    status: Literal["holds", "fails", "not checked"] = "not checked"
    if holds is not None:
        status = "holds" if holds else "fails"
    return VerifiedPart(name=name, status=status, summary=bad if holds is False else good)


def _taken_on_trust(result: AuditResult, data: Data) -> Iterator[VerifiedPart]:
    """What a result says that the data do not hold."""
    if result.watched is not None or any(x.check == _MONITOR for x in result.findings):
        said = "what it saw while the run trained is the word of whoever made the result."
        yield _part("monitor", None, said)
    if _own_epsilon(result) is not None:
        said = "its own epsilon, as the result states it, is the word of whoever made the result."
        yield _part("accountant", None, said)
    recorded = data.metadata.membership if isinstance(data, CanaryScores) else result.membership
    if result.membership != recorded:
        said = f"that it was {result.membership} is the word of whoever audited the scores."
        yield _part("membership", None, said)


def _own_epsilon(result: AuditResult) -> float | None:
    """What the accountant itself says, as a result states it."""
    stated = next((item.summary for item in result.findings if item.check == _ACCOUNTED), "")
    found = _OWN_EPSILON.search(stated)
    try:
        return None if found is None else float(found[1])
    except ValueError:
        return None


def _version(result: AuditResult) -> VerifiedPart:
    same = result.version == __version__
    return _part(
        "version",
        True if same else None,
        f"made with askgauss {__version__}, as here."
        if same
        else f"made with askgauss {result.version or 'of no version'}, checked with {__version__}. "
        "If the checks differ, verify with that version.",
    )


def _file(result: AuditResult, sha256: str | None) -> VerifiedPart:
    source = result.provenance
    if source is None or not source.sha256 or not sha256:
        return _part("file", None, "the result does not name the audited file by its digest.")
    return _part(
        "file",
        source.sha256 == sha256,
        f"the audited file is this one (sha256 {sha256[:12]}...).",
        f"the result was made from the file with sha256 {source.sha256[:12]}..., and this one has "
        f"{sha256[:12]}...",
    )


def _computed_again(
    result: AuditResult, data: Data, standard: Standard
) -> tuple[VerifiedPart, ...]:
    """Every field of the result, compared with the audit of the same data."""
    try:
        if not isinstance(data, CanaryScores):
            check_consistency(data)
    except FileFormatError as error:
        return (_part("data", False, "", f"no run recorded them. {error}"),)
    try:
        # Where the scores do not record it, it is the word of whoever audited them.
        if isinstance(data, CanaryScores) and result.membership is not None:
            data = data.with_membership(result.membership)
        own_epsilon = _own_epsilon(result)
        if isinstance(data, Transcript) and own_epsilon is not None:
            data = data.with_facts(replace(data.facts, accounted_epsilon=own_epsilon))
        wanted = _audited(result, data, standard, audit)
        own = wanted
        if _plain_of(result, _OPTIONS) != _plain_of(wanted, _OPTIONS):
            options = Standard(
                auditor=result.auditor if result.noise_declared else None,
                confidence=result.confidence,
                gate_error=result.gate_error,
            )
            own = _audited(result, data, options, audited)
    except AskGaussError as error:
        said = f"the data cannot be audited as the result says: {error}"
        return (_part("bound", False, "", said),)
    parts = [_standard(result, wanted, standard)]
    for name, fields in _COMPARED.items():
        stated, found = (_comparable(item, fields) for item in (result, own))
        if name == "run" and stated == found == {"run": None}:
            parts.append(_part(name, None, "neither file says which run it is of."))
            continue
        differ = list(_differences(stated, found))
        if name == "checks":
            differ += _live_differences(result)
            if not differ and [*stated["findings"]] != [*found["findings"]]:
                differ.append("the order of findings")
        good, bad = _words(name, result, own)
        shown = ", ".join(differ[:3]) + (", ..." if len(differ) > 3 else "")
        parts.append(_part(name, not differ, good, f"{bad} Differs in {shown}."))
    return tuple(parts)


def _audited(
    result: AuditResult, data: Data, standard: Standard, audit: Callable[..., AuditResult]
) -> AuditResult:
    """The audit of these data that a result of this claim should be, all checks included."""
    again = audit(
        data,
        claim=result.claim,
        delta=result.delta if result.claim is None else None,
        auditor=standard.auditor,
        confidence=standard.confidence,
        gate_error=standard.gate_error,
    )
    # Findings of a replay are checked by themselves: here, what follows from them.
    joined = tuple(item for item in result.findings if _of_a_replay(item))
    return with_findings(again, joined) if joined else again


def _standard(result: AuditResult, wanted: AuditResult, standard: Standard) -> VerifiedPart:
    shortfalls = list(standard.shortfalls(result))
    if not shortfalls and _plain_of(result, _OPTIONS) != _plain_of(wanted, _OPTIONS):
        shortfalls.append("its method or the options of that are other ones")
    return _part(
        "standard",
        not shortfalls,
        f"the audit that is asked for: {wanted.auditor.name}, confidence "
        f"{confidence_in_words(wanted.confidence)}, false-alarm rate "
        f"{wanted.gate_error:g}, all checks.",
        f"not the audit that is asked for: {'; '.join(shortfalls)}. That audit gives "
        f"{_verdict(wanted)}, epsilon >= {number(wanted.epsilon_lower)}.",
    )


def _verdict(result: AuditResult) -> str:
    return "no verdict" if result.verdict is None else result.verdict.value


def _words(name: str, result: AuditResult, own: AuditResult) -> tuple[str, str]:
    """What to say of a part that holds, and of one that does not."""
    count = len(result.findings)
    said = {
        "run": (
            f"both are of run {(own.run or '')[:12]}.",
            f"the result is of run {(result.run or 'unknown')[:12]}, the data of run "
            f"{(own.run or 'unknown')[:12]}.",
        ),
        "bound": (
            f"epsilon >= {number(own.epsilon_lower)}, computed again from the data.",
            f"the result says epsilon >= {number(result.epsilon_lower)} of {result.present:,} "
            f"inserted and {result.absent:,} held-out canaries; the data give "
            f"{number(own.epsilon_lower)} of {own.present:,} and {own.absent:,}.",
        ),
        "verdict": (
            f"{_verdict(own)}, computed again from the data.",
            f"the result says {_verdict(result)}, the data give {_verdict(own)}.",
        ),
        "checks": (
            f"all {count} checks end as stated.",
            f"the result states {count} checks, the data give {len(own.findings)}.",
        ),
        "scope": (
            "what was tested is as stated.",
            "what the result says was tested is not what the data give.",
        ),
        "facts": (
            "facts of the run and figures are those of the data.",
            "facts of the run or figures are not those of the data.",
        ),
        "private": (
            "must not be published." if own.private else "may be published.",
            "the result must not be published."
            if own.private
            else "the result is marked private, and need not be.",
        ),
    }
    return said[name]


def _plain_of(result: AuditResult, fields: tuple[str, ...]) -> dict[str, Any]:
    plain = result.to_dict()
    # As a file has it: keys are text, tuples are lists.
    content: dict[str, Any] = json.loads(json.dumps({name: plain[name] for name in fields}))
    return content


def _comparable(result: AuditResult, fields: tuple[str, ...]) -> dict[str, Any]:
    """Fields as plain values, without what follows from more than the data; findings by name."""
    plain = _plain_of(result, fields)
    if "findings" in plain:
        plain["findings"] = {
            item["check"]: item for item in plain["findings"] if item["check"] != _MONITOR
        }
    if "metadata" in plain:
        plain["metadata"].pop(_WATCHED, None)
        # The machine may be another one, and nothing is said of it but by the same names.
        machine = plain["metadata"].get(_MACHINE)
        if isinstance(machine, dict):
            plain["metadata"][_MACHINE] = sorted(machine)
    return plain


def _differences(stated: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where two plain values differ by more than another processor's rounding."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in {**found, **stated}:
            place = f"{where}.{name}" if where else name
            if name in stated and name in found:
                yield from _differences(stated[name], found[name], place)
            else:
                yield f"{place} ({'added' if name in stated else 'missing'})"
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for index, pair in enumerate(zip(stated, found, strict=True)):
            yield from _differences(*pair, f"{where}[{index}]")
    elif not _alike(stated, found, where):
        yield where


def _alike(stated: Any, found: Any, where: str) -> bool:
    numbers = [
        isinstance(item, (int, float)) and not isinstance(item, bool) for item in (stated, found)
    ]
    if all(numbers):
        close = math.isclose(stated, found, rel_tol=_ROUNDING, abs_tol=1e-9)
        # Small p-values differ where no other number does; they are told to two digits.
        return close and (
            not where.endswith("p_value") or math.isclose(stated, found, rel_tol=0.11)
        )
    return bool(stated == found)


def _live_differences(result: AuditResult) -> Iterator[str]:
    """Findings that are stated twice, and what a monitor saw: it may only add a warning."""
    names = [item.check for item in result.findings]
    yield from (f"findings.{name} (twice)" for name in sorted(set(names)) if names.count(name) > 1)
    stated = {item.check: item.status for item in result.findings}
    if stated.get(_MONITOR, Status.WARN) is not Status.WARN:
        yield f"findings.{_MONITOR}"


def _of_a_replay(finding: Finding) -> bool:
    return finding.check == "replay" or finding.check.startswith("replay: ")


def _replayed(result: AuditResult, replay: ReplayReport | None) -> tuple[VerifiedPart, ...]:
    """Whether findings of a replay are those of the report that was given."""
    joined = tuple(item for item in result.findings if _of_a_replay(item))
    if replay is None:
        said = f"{len(joined)} findings come from a replay: give its report to check them."
        return (_part("replay", False, "", said),) if joined else ()
    wanted = joined_findings(replay, result)
    return (
        _part(
            "replay",
            joined == wanted and replay.derived,
            f"{len(joined)} findings are those of the report.",
            f"the result has {len(joined)} findings of a replay, and the report gives others.",
        ),
    )


def _commitment(result: AuditResult, data: Data, published: str | None) -> VerifiedPart:
    name = "commitment"
    kept = data.facts.commitment if isinstance(data, Transcript) else None
    if published is not None and result.commitment != published:
        return _part(name, False, "", "the result does not carry the digest that was published.")
    if kept is None:
        bad = "the result names one, and the data hold nothing that opens it."
        missing = result.commitment is not None
        return _part(name, False if missing else None, "none was made before the run.", bad)
    assert isinstance(data, Transcript)
    if result.commitment is None:
        return _part(name, False, "", "the data hold one, and the result does not carry it.")
    if result.commitment != kept.digest:
        return _part(name, False, "", "the result names another digest than the data.")
    try:
        # Canaries of frozen layers are left out of the data: their coins cannot be opened.
        fault = kept.fault(data.facts.seed, None if data.facts.frozen else data.member)
        claim = kept.claim
    except AskGaussError as error:
        return _part(name, False, "", str(error))
    if fault:
        return _part(name, False, "", f"{fault}.")
    if claim is not None and claim != result.claim:
        return _part(name, False, "", "the claim is not the one that was committed to.")
    if data.facts.frozen:
        return _part(
            name,
            None,
            "membership cannot be opened: layers were frozen, and their canaries left out.",
        )
    what = "seed and membership; no claim was committed to" if claim is None else ""
    what = what or "seed, membership and claim"
    return _part(name, True, f"{kept.digest[:16]}... opens to {what}.")


def _conclusion(result: AuditResult, parts: tuple[VerifiedPart, ...]) -> str:
    failed = [part.name for part in parts if part.status == "fails"]
    if failed:
        return (
            f"Do not rely on this result: {', '.join(failed)} failed. Audit the transcript "
            "yourself (askgauss audit), or ask for the files as the audit wrote them."
        )
    said = "its bound" if result.verdict is None else f"its verdict, {result.verdict.value},"
    lines = [f"The result follows from the data: {said} is what the audit gives here."]
    status = {part.name: part.status for part in parts}
    if status["commitment"] == "holds":
        lines.append(
            "If you saw the digest before the first step, canaries and what it covers were fixed "
            "before the run."
        )
    else:
        lines.append(
            "Nothing shows that canaries and claim were fixed before the run: you have the "
            "auditor's word."
        )
    lines.append(
        "Nothing here shows that the data were recorded from the run that made the released "
        "weights: you have the word of whoever recorded them."
    )
    return " ".join(lines)
