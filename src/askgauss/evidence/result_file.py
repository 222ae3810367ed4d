"""Results as JSON, and back: what a file states is decided again from the evidence in it.

The digest in the file detects damage. A result whose author is not trusted is a matter for
`askgauss.evidence.verification`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from askgauss import __version__, _validate, policy
from askgauss.auditors import GaussianShift, OneRun, auditor_from_options
from askgauss.auditors.auditor import Auditor
from askgauss.checks.scope import OUTSIDE, scope_of
from askgauss.claims import PrivacyClaim
from askgauss.evidence.provenance import Provenance
from askgauss.exceptions import AskGaussError, FileFormatError, InvalidArgumentError
from askgauss.figures.summary import Summary
from askgauss.files import codec
from askgauss.monitor.feed import Feed
from askgauss.results import AuditResult, Finding, OtherBound, Part, Verdict
from askgauss.stats.rounding import is_handful

__all__ = ["check_agreement", "dumps", "loads", "to_dict"]

_KIND = "askgauss-result"
_SCHEMA = 2
# What is computed again on another processor may differ in the last digits.
_ROUNDING = 1e-6
# Beyond what canaries and steps can be multiplied to, searches over counts would not end.
_MOST_COUNTED = 10**18
# Where the metadata of a file keep what the monitor saw.
_WATCHED = "watched"
# Fields that are written as they are, and what they are read as.
_PLAIN: dict[str, Any] = {
    "present": int,
    "absent": int,
    "delta": float,
    "confidence": float,
    "epsilon_lower": float,
    "epsilon_point": float | None,
    "ceiling": float,
    "claim": PrivacyClaim | None,
    "gate_error": float,
    "verdict": Verdict | None,
    "reason": str,
    "power": float | None,
    "smallest_leak": float | None,
    "findings": tuple[Finding, ...],
    "scope": tuple[Part, ...],
    "version": str,
    "membership": Literal["randomised", "declared", "fixed"] | None,
    "run": str | None,
    "provenance": Provenance | None,
    "commitment": str | None,
    "private": bool,
}
# Bounds of other methods: where their number and their evidence are written, and the method.
_OTHERS: dict[str, tuple[str, Auditor[Any]]] = {
    "distribution_free": ("distribution_free_evidence", OneRun()),
    "if_gaussian": ("gaussian_evidence", GaussianShift()),
}


def to_dict(result: AuditResult) -> dict[str, Any]:
    """Plain JSON values of a result; infinity is the string ``"inf"``."""
    plain = {name: codec.to_plain(getattr(result, name)) for name in _PLAIN}
    plain["auditor"] = {"name": result.auditor.name, "options": codec.to_plain(result.auditor)}
    plain["evidence"] = codec.to_plain(result.evidence)
    for name, (evidence, _) in _OTHERS.items():
        other: OtherBound | None = getattr(result, name)
        plain[name] = None if other is None else codec.to_plain(other.epsilon_lower)
        plain[evidence] = None if other is None else codec.to_plain(other.evidence)
    plain["metadata"] = {} if result.summary is None else result.summary.to_metadata()
    if result.watched is not None:
        plain["metadata"][_WATCHED] = codec.to_plain(result.watched)
    # What follows from the rest, for readers other than this package.
    plain["law_declared"] = result.noise_declared
    plain["assumption"] = result.assumption.value
    plain["carries_bound"] = result.carries_bound
    plain["next_step"] = result.next_step
    plain["outside"] = list(OUTSIDE)
    return plain


def dumps(result: AuditResult) -> str:
    """JSON text of a result."""
    return codec.dumps(_KIND, _SCHEMA, to_dict(result))


def loads(text: str | bytes) -> AuditResult:
    """The result that JSON text describes.

    Raises:
        FileFormatError: The text is corrupt, foreign, of another schema, or contradicts itself.
    """
    if text.strip()[:1] not in ("{", b"{", "", b""):
        raise FileFormatError(
            f"Expected the text of a result, got {text[:80]!r}. To read a file, use "
            "AuditResult.load(path)."
        )
    content = codec.loads(text, _KIND, _SCHEMA)
    result = _read(content)
    unknown = sorted(content.keys() - to_dict(result).keys() - {"kind", "schema"})
    if unknown and result.version == __version__:
        raise FileFormatError(
            f"Expected the fields of an audit result, got {unknown[0][:80]!r} as well: it was "
            "edited. Audit the run again."
        )
    _check_ranges(result)
    _check_decision(result)
    return result


def _read(content: dict[str, Any]) -> AuditResult:
    description, metadata = content.get("auditor"), content.get("metadata")
    names = {*_PLAIN, *_OTHERS, *(evidence for evidence, _ in _OTHERS.values())}
    missing = sorted((names | {"auditor", "evidence", "metadata"}) - content.keys())
    if missing:
        raise FileFormatError(f"Expected the fields {missing} in an audit result.")
    if not isinstance(description, dict) or not isinstance(metadata, dict):
        raise FileFormatError("Expected auditor and metadata of an audit result to be objects.")
    auditor = auditor_from_options(description.get("name"), description.get("options", {}))
    watched = metadata.get(_WATCHED)
    result = AuditResult(
        auditor=auditor,
        evidence=codec.from_plain(auditor.evidence_type, content["evidence"], "evidence"),
        summary=Summary.from_metadata(metadata) if "run" in metadata else None,
        watched=None if watched is None else codec.from_plain(Feed, watched, _WATCHED),
        **{name: codec.from_plain(hint, content[name], name) for name, hint in _PLAIN.items()},
        distribution_free=_read_other(content, "distribution_free"),
        if_gaussian=_read_other(content, "if_gaussian"),
    )
    if result.watched is not None:
        result.watched.check()
    return result


def _read_other(content: dict[str, Any], name: str) -> OtherBound | None:
    field, auditor = _OTHERS[name]
    bound = codec.from_plain(float | None, content[name], name)
    evidence = codec.from_plain(auditor.evidence_type | None, content[field], field)
    if (bound is None) != (evidence is None):
        raise FileFormatError(f"Expected {name} and {field} of an audit result together.")
    if bound is None:
        return None
    return OtherBound(auditor=auditor, evidence=evidence, epsilon_lower=bound)


def _check_ranges(result: AuditResult) -> None:
    """Refuse numbers that no audit has."""
    try:
        _validate.within(0.5, 1, confidence=result.confidence)
        _validate.within(0, 0.5, gate_error=result.gate_error)
        result.auditor.check_delta(result.delta)
        _validate.count(
            0, maximum=_validate.MOST_CANARIES, present=result.present, absent=result.absent
        )
        if result.claim is not None and result.claim.delta != result.delta:
            raise _validate.fail("delta", result.delta, f"to be the claim's {result.claim.delta}")
        for kept in (result.evidence, getattr(result.distribution_free, "evidence", None)):
            _check_counts(codec.to_plain(kept))
            _check_trials(kept, result.present + result.absent)
        for item in result.findings:
            if item.p_value is not None and not 0.0 <= item.p_value <= 1.0:
                raise _validate.fail(f"p_value of {item.check}", item.p_value, "in [0, 1]")
    except InvalidArgumentError as error:
        raise FileFormatError(f"It is no result of an audit: {error}") from error


def _check_counts(plain: Any) -> None:
    """Refuse counts beyond what canaries and steps can be multiplied to: searches would not end."""
    if isinstance(plain, (dict, list)):
        for item in plain.values() if isinstance(plain, dict) else plain:
            _check_counts(item)
    elif isinstance(plain, int) and abs(plain) > _MOST_COUNTED:
        raise _validate.fail("a count", plain, f"up to {_MOST_COUNTED:g}")


def _check_trials(evidence: Any, canaries: int) -> None:
    """Refuse counts of guesses that the canaries cannot have: bounds take memory by their size."""
    for trial in getattr(evidence, "trials", ()):
        for name, count in codec.to_plain(trial).items():
            if isinstance(count, int) and not 0 <= count <= canaries:
                raise _validate.fail(f"{name} of a trial", count, f"in [0, {canaries}]")


def _check_decision(result: AuditResult) -> None:
    """Refuse a result that its own evidence, claim and findings contradict.

    Another version of askgauss may have other words, powers and parts; the bound is the same, and
    so is the side on which the verdict stands.
    """
    same_version = result.version == __version__
    known = result.summary is not None and result.summary.run.background == "known"
    if known and not result.private and any(map(is_handful, (result.present, result.absent))):
        raise _contradiction("private", False, True)
    if bool(result.scope) != (result.summary is not None):
        raise FileFormatError(
            "Expected what was tested and the facts of the run together, got one without the "
            "other: it was damaged or edited. Audit the run again."
        )
    if same_version and result.summary is not None:
        found = scope_of(result.findings, result.summary.run.passed)
        if result.scope != found:
            raise _contradiction("scope", _statuses(result.scope), _statuses(found))
    try:
        again = policy.decide_again(result)
    except (
        AskGaussError,
        ArithmeticError,
        ValueError,
        TypeError,
        LookupError,
        MemoryError,
    ) as error:
        raise FileFormatError(
            f"Its evidence is none that an audit gathers: {error}. Audit the run again."
        ) from error
    if same_version:
        check_agreement(result, again, [item.name for item in fields(again)])
    else:
        check_agreement(result, again, ["epsilon_lower", "epsilon_point", "ceiling"])
        if _side(result.verdict) != _side(again.verdict):
            raise _contradiction("verdict", result.verdict, again.verdict)


def _statuses(scope: Sequence[Part]) -> str:
    return ", ".join(f"{part.name} {part.status}" for part in scope) or "nothing"


def _side(verdict: Verdict | None) -> Verdict | None:
    """Where a verdict stands; that of too weak an audit is with the claim."""
    return Verdict.CONSISTENT if verdict is Verdict.INCONCLUSIVE else verdict


def check_agreement(stated: Any, found: Any, names: Sequence[str]) -> None:
    """Refuse what a file states where what it was derived from gives something else.

    Raises:
        FileFormatError: An attribute differs by more than another processor's rounding.
    """
    for name in names:
        if not _agree(getattr(stated, name), getattr(found, name)):
            raise _contradiction(name, getattr(stated, name), getattr(found, name))


def _agree(stated: Any, found: Any) -> bool:
    if isinstance(stated, float) and isinstance(found, float):
        return math.isclose(stated, found, rel_tol=_ROUNDING, abs_tol=1e-9)
    if isinstance(stated, str) and isinstance(found, str):
        return _words(stated) == _words(found)
    if isinstance(stated, OtherBound) and isinstance(found, OtherBound):
        return _agree(stated.epsilon_lower, found.epsilon_lower)
    return bool(stated == found)


def _words(reason: str) -> str:
    """A sentence without its numbers, whose last shown digit may be rounded the other way."""
    return re.sub(r"[0-9][0-9.e+-]*", "#", reason)


def _contradiction(name: str, stated: Any, found: Any) -> FileFormatError:
    return FileFormatError(
        f"Its {name} is {str(stated)[:80]!r} where its evidence, claim and findings give "
        f"{str(found)[:80]!r}: it was damaged or edited. Audit the run again."
    )
