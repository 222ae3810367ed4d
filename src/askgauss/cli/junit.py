"""A result as JUnit XML, which every CI system shows: one test case a check, and one the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from askgauss.cli.terminal import one_line, printable

if TYPE_CHECKING:
    from askgauss.results import AuditResult, Finding

__all__ = ["to_junit"]


def to_junit(result: AuditResult) -> str:
    """JUnit XML of a result.

    A violation and a failed check are failures; an invalid or inconclusive audit is an error, since
    it says nothing of the claim; a check that did not run is skipped.
    """
    suite = ElementTree.Element("testsuite", name="askgauss")
    cases = [_verdict_case(result), *(_finding_case(item) for item in result.findings)]
    suite.extend(cases)
    for outcome, attribute in (("failure", "failures"), ("error", "errors"), ("skipped",) * 2):
        suite.set(attribute, str(sum(case.find(outcome) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname="askgauss.audit", name=one_line(name))


def _outcome(case: ElementTree.Element, tag: str, kind: str, message: str, text: str) -> None:
    outcome = ElementTree.SubElement(case, tag, type=kind, message=one_line(message))
    outcome.text = printable(text)


def _verdict_case(result: AuditResult) -> ElementTree.Element:
    case = _case("bound" if result.claim is None else f"claim: {result.claim}")
    verdict = "" if result.verdict is None else result.verdict.value
    if verdict == "VIOLATION":
        _outcome(case, "failure", verdict, result.reason, str(result))
    elif verdict in ("INVALID", "INCONCLUSIVE"):
        _outcome(case, "error", verdict, result.reason, str(result))
    else:
        ElementTree.SubElement(case, "system-out").text = printable(str(result))
    return case


def _finding_case(finding: Finding) -> ElementTree.Element:
    case = _case(finding.check)
    text = f"{finding.summary} {finding.remedy}".rstrip()
    if finding.status.value == "fail":
        _outcome(case, "failure", finding.consequence.value, finding.summary, text)
    elif finding.status.value == "not run":
        ElementTree.SubElement(case, "skipped", message=one_line(finding.summary))
    else:
        ElementTree.SubElement(case, "system-out").text = printable(
            f"[{finding.status.value}] {text}"
        )
    return case
