"""The evidence pack: a result in the forms that release tooling reads, bound to files by digest.

Four documents beside the result itself: an in-toto statement with a test-result predicate, a
CycloneDX bill of materials with the audit as metrics of the model, SARIF with one result a check,
and a block for a model card. All are plain JSON or Markdown, written without further packages.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from askgauss import __version__, policy
from askgauss._text import number, one_line
from askgauss.checks.registry import severity
from askgauss.evidence.verification import Standard
from askgauss.exceptions import InvalidArgumentError
from askgauss.report.ci_documents import escaped
from askgauss.report.words import advice, measured, scope_line
from askgauss.results import AuditResult, Finding, Status, Verdict

__all__ = ["FILES", "evidence_pack"]

FILES = {
    "result.json": "the result, which askgauss report renders and askgauss verify checks",
    "statement.json": "in-toto statement with a test-result predicate",
    "bom.json": "CycloneDX 1.6 bill of materials: the model with the audit as its metrics",
    "findings.sarif": "SARIF 2.1.0, one result a check",
    "model-card.md": "a block for the model card",
}
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_OUTCOMES = {True: "PASSED", False: "FAILED"}
_LEVELS = {
    Status.FAIL: ("fail", "error"),
    Status.WARN: ("fail", "warning"),
    Status.INFO: ("informational", "none"),
    Status.PASS: ("pass", "none"),
    Status.NOT_RUN: ("notApplicable", "none"),
}


def evidence_pack(
    result: AuditResult, *, subjects: Mapping[str, str] | None = None, lenient: bool = False
) -> dict[str, str]:
    """Every document of the pack by its name.

    Args:
        result: The audit.
        subjects: What the statement is about: names of files and their SHA-256, such as the
            weights that ship. The file that was audited, if not given.
        lenient: Whether an inconclusive audit counts as passed, with a warning.

    Raises:
        InvalidArgumentError: There is nothing to bind the statement to, a digest is none, the
            checks of the audit were not run, or the result reveals individual canaries and must
            not be published.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> draw = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=draw.normal(size=50), absent=draw.normal(size=50), noise="gaussian")
        >>> result = ag.audit(scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
        >>> sorted(evidence_pack(result, subjects={"model.safetensors": "0" * 64}))
        ['bom.json', 'findings.sarif', 'model-card.md', 'result.json', 'statement.json']
    """
    if result.private:
        raise InvalidArgumentError(
            f"Expected a result that may be published, got one of {result.present} present and "
            f"{result.absent} absent canaries in which fewer than 30 canaries or plantings of a "
            "kind stand behind a number: it tells of single ones. Audit with 30 of each and 30 "
            "plantings, or publish the claim and the verdict alone."
        )
    if not result.scope:
        raise InvalidArgumentError(
            "Expected a result with its checks, got one of an audit that ran none "
            "(diagnostics=False). Audit the transcript with askgauss audit --json."
        )
    bound = _subjects(result, subjects)
    stored = result.to_json() + "\n"
    digest = hashlib.sha256(stored.encode("utf-8")).hexdigest()
    return {
        "result.json": stored,
        "statement.json": _json(_statement(result, bound, digest, lenient)),
        "bom.json": _json(_bill(result, bound, digest)),
        "findings.sarif": _json(_sarif(result)),
        "model-card.md": _card(result, bound, digest),
    }


def _subjects(result: AuditResult, given: Mapping[str, str] | None) -> dict[str, str]:
    bound = dict(given or {})
    source = result.provenance
    if not bound and source is not None and source.sha256:
        bound = {source.file: source.sha256}
    if not bound:
        raise InvalidArgumentError(
            "Expected at least one of subjects, a file and its SHA-256 that the statement is "
            "about, and the result does not say which file was audited. Name the weights that "
            "ship, or audit with askgauss audit --json, which notes the file."
        )
    for name, digest in bound.items():
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise InvalidArgumentError(
                f"Expected the SHA-256 of {name!r} in hexadecimal, got {digest[:80]!r}."
            )
    return bound


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _named(result: AuditResult, *statuses: Status) -> list[str]:
    return [one_line(item.check) for item in result.findings if item.status in statuses]


def _statement(
    result: AuditResult, subjects: dict[str, str], digest: str, lenient: bool
) -> dict[str, Any]:
    """An in-toto statement; WARNED where an inconclusive or non-default audit was let through."""
    opened = policy.gate(result, lenient=lenient).passes
    outcome = _OUTCOMES[opened]
    if opened and (result.verdict is not Verdict.CONSISTENT or _not_tested(result)):
        outcome = "WARNED"
    verdict = "privacy claim"
    passed = [verdict] if outcome == "PASSED" else []
    warned = [verdict] if outcome == "WARNED" else []
    failed = [verdict] if outcome == "FAILED" else []
    configuration: list[dict[str, Any]] = [
        {
            "name": "result.json",
            "digest": {"sha256": digest},
            "mediaType": "application/json",
            "annotations": _annotations(result),
        }
    ]
    source = result.provenance
    if source is not None and source.sha256:
        configuration.append({"name": one_line(source.file), "digest": {"sha256": source.sha256}})
    return {
        "_type": _STATEMENT,
        "subject": [
            {"name": one_line(name), "digest": {"sha256": item}} for name, item in subjects.items()
        ],
        "predicateType": _PREDICATE,
        "predicate": {
            "result": outcome,
            "configuration": configuration,
            "passedTests": passed + _named(result, Status.PASS),
            "warnedTests": warned + _named(result, Status.WARN),
            "failedTests": failed + _named(result, Status.FAIL),
        },
    }


def _not_tested(result: AuditResult) -> str:
    """In what the audit is not the default one; empty where it is."""
    shortfalls = list(Standard().shortfalls(result))
    if result.version != __version__:
        shortfalls.append(
            f"it was made with askgauss {_version(result)}, and what was tested cannot be compared "
            f"with its checks by {__version__}"
        )
    return f"not tested by the default audit: {'; '.join(shortfalls)}" if shortfalls else ""


def _annotations(result: AuditResult) -> dict[str, str]:
    """What was claimed, measured and tested, in words, for whoever reads only the statement."""
    claim, source = result.claim, result.provenance
    told = {
        "verdict": "none" if result.verdict is None else result.verdict.value,
        "claimed": "none" if claim is None else str(claim),
        "measured": measured(result),
        "standard": _not_tested(result),
        "scope": scope_line(result),
        "next step": result.next_step,
        "tool": f"askgauss {result.version}",
    }
    if source is not None:
        told |= {"audited": source.audited, "commit": source.commit, "command": source.command}
    return {name: one_line(words) for name, words in told.items() if words}


def _bill(result: AuditResult, subjects: dict[str, str], digest: str) -> dict[str, Any]:
    """A CycloneDX document: the model as a component, the audit on its model card."""
    (name, model), *others = subjects.items()
    metrics = _metrics(result)
    untested = [part for part in result.scope if part.status == "not tested"]
    card: dict[str, Any] = {
        "quantitativeAnalysis": {"performanceMetrics": metrics},
        "considerations": {
            "technicalLimitations": [
                one_line(f"privacy audit did not test {part.name}: {part.how_to_test}")
                for part in untested
            ]
            + [words for words in [_not_tested(result)] if words]
            + [
                one_line(f"outside {dict(result.scope_rows())['outside']}"),
                "no audit proves privacy: it says what it could have seen",
            ]
        },
    }
    component = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": one_line(name),
        "hashes": [{"alg": "SHA-256", "content": model}],
        "modelCard": card,
        "properties": [
            {"name": f"askgauss:{key}", "value": words}
            for key, words in _annotations(result).items()
        ],
    }
    tool = {"type": "application", "name": "askgauss", "version": _version(result)}
    source = result.provenance
    head: dict[str, Any] = {"tools": {"components": [tool]}, "component": component}
    if source is not None and source.audited:
        head["timestamp"] = one_line(source.audited)
    files = [*others, ("result.json", digest)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Of the same result the same number, so that the document can be made again.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest + model)}",
        "version": 1,
        "metadata": head,
        "components": [
            {
                "type": "data" if other == "result.json" else "file",
                "name": one_line(other),
                "hashes": [{"alg": "SHA-256", "content": content}],
            }
            for other, content in files
        ],
    }


def _version(result: AuditResult) -> str:
    """The askgauss that made the result, by its own word."""
    return one_line(result.version) or "unknown"


def _metrics(result: AuditResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "type": f"epsilon lower bound at delta {result.delta:g}",
            "value": number(result.epsilon_lower) if result.carries_bound else "none",
            "slice": f"{result.present} inserted and {result.absent} held-out canaries",
            "confidenceInterval": {
                "lowerBound": number(result.epsilon_lower),
                "upperBound": "infinity",
            },
        }
    ]
    if not result.carries_bound:
        rows[0]["type"] += f" ({measured(result)})"
    elif result.verdict is Verdict.INVALID:
        rows[0]["type"] += " (not usable: an assumption failed)"
    if result.claim is not None:
        rows.append({"type": "claimed epsilon", "value": f"{result.claim.epsilon:g}"})
    if result.power is not None:
        rows.append(
            {
                "type": f"power at {policy.ALTERNATIVE:g} times the claim",
                "value": f"{result.power:.4f}",
            }
        )
    if result.smallest_leak is not None:
        rows.append(
            {"type": "smallest epsilon noticed in 80%", "value": number(result.smallest_leak)}
        )
    return rows


def _sarif(result: AuditResult) -> dict[str, Any]:
    """One result a check; the verdict is one of them."""
    head = Finding(
        check="privacy claim",
        status=_verdict_status(result),
        summary=result.reason or "no claim was given to hold the run to.",
        remedy=result.next_step,
    )
    findings = (head, *result.findings)
    rules = list(dict.fromkeys(one_line(item.check) for item in findings))
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "askgauss",
                        "version": _version(result),
                        "rules": [
                            {"id": rule.replace(" ", "-"), "shortDescription": {"text": rule}}
                            for rule in rules
                        ],
                    }
                },
                "properties": {
                    "scope": one_line(scope_line(result)),
                    "standard": _not_tested(result) or "the default audit",
                    "notes": [one_line(item) for item in result.notes],
                },
                "results": [_sarif_result(item, rules, result) for item in findings],
            }
        ],
    }


def _verdict_status(result: AuditResult) -> Status:
    if result.verdict is Verdict.CONSISTENT:
        return Status.PASS
    if result.verdict is Verdict.VIOLATION:
        return Status.FAIL
    return Status.WARN


def _sarif_result(finding: Finding, rules: list[str], result: AuditResult) -> dict[str, Any]:
    kind, level = _LEVELS[finding.status]
    said = one_line(f"{finding.summary} {finding.remedy}".strip())
    found: dict[str, Any] = {
        "ruleId": one_line(finding.check).replace(" ", "-"),
        "ruleIndex": rules.index(one_line(finding.check)),
        "kind": kind,
        "level": level,
        "message": {"text": said},
    }
    details: dict[str, float | str] = {
        name: value
        for name, value in (
            ("measured", finding.measured),
            ("claimed", finding.claimed),
            ("pValue", finding.p_value),
        )
        if value is not None and math.isfinite(value)
    }
    rank = severity(finding)
    if rank is not None and kind == "fail":
        details["severity"] = rank.value
    if details:
        found["properties"] = details
    source = result.provenance
    if source is not None and source.file:
        # Code scanning shows only what has a place; the file that was audited is one.
        place = {"artifactLocation": {"uri": one_line(source.file).replace(" ", "%20")}}
        found["locations"] = [{"physicalLocation": place}]
    return found


def _card(result: AuditResult, subjects: dict[str, str], digest: str) -> str:
    """A block that can stand in a model card."""
    told, claim = advice(result), result.claim
    verdict = "no verdict" if result.verdict is None else result.verdict.value
    rows = [
        ("claimed", "none" if claim is None else str(claim)),
        ("measured", measured(result)),
        ("standard", _not_tested(result)),
        ("power", result.sight),
        *result.scope_rows(),
        *(("note", note) for note in result.notes),
        ("files", "; ".join(f"{name} sha256:{item}" for name, item in subjects.items())),
        ("evidence", f"result.json sha256:{digest}"),
        ("tool", f"askgauss {result.version}"),
    ]
    lines = ["## Privacy audit", "", f"**{verdict}.** {escaped(told.meaning)}", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(words)} |" for name, words in rows if words]
    return "\n".join(lines) + "\n"
