"""An audit for a CI job: a short table in Markdown, and JUnit XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from askgauss._text import one_line, printable
from askgauss.report import words
from askgauss.results import AuditResult, Consequence, Finding, Status, Verdict

__all__ = ["escaped", "junit", "markdown"]


# Signs that Markdown, or a forge that renders it, gives a meaning: emphasis, tables, links, HTML,
# people and issues to notify.
_SIGNS = re.compile(r"[\\`*_{}\[\]()<>#@|~!&$]|(?<=[a-zA-Z]):(?=/)|(?<=www)\.", re.IGNORECASE)
_SHOWN = Status.FAIL, Status.WARN


def markdown(result: AuditResult) -> str:
    """The audit as a few lines of Markdown.

    Args:
        result: The audit.

    Returns:
        A heading, a table, and the findings that failed or warn.
    """
    claim = result.claim
    rows = [
        ("claimed", "none" if claim is None else str(claim)),
        ("measured", words.measured(result)),
        ("method", words.method(result)),
        ("canaries", f"{result.present:,} inserted, {result.absent:,} held-out"),
    ]
    rows += words.closing_rows(result)
    lines = [
        f"### askgauss: {words.headline(result)}",
        "",
        escaped(words.reason(result)),
        "",
    ]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(item)} |" for name, item in rows]
    shown = [item for item in words.ordered(result.findings) if item.status in _SHOWN]
    if shown:
        lines += ["", "| finding | measured | claimed | what to do |", "|---|---:|---:|---|"]
    for item in shown:
        said = f"**{escaped(item.check)}** ({words.status(item).word}): {escaped(item.summary)}"
        figures = f"{words.value(item.measured)} | {words.value(item.claimed)}"
        lines.append(f"| {said} | {figures} | {escaped(item.remedy)} |")
    quiet = len(result.findings) - len(shown)
    if quiet:
        lines += ["", f"{quiet} other checks passed, noted something, or were not run."]
    return "\n".join(lines) + "\n"


def escaped(content: str) -> str:
    """Text that means nothing but itself in Markdown, on one line."""
    return _SIGNS.sub(lambda found: f"&#{ord(found.group())};", one_line(content))


def junit(result: AuditResult) -> str:
    """The audit as JUnit XML.

    A broken claim is a failure. An audit that could not answer, because it was invalid or too weak,
    is an error; so is a finding that makes it invalid. A check that was not made is skipped.

    Args:
        result: The audit.

    Returns:
        An XML document.
    """
    suite = ET.Element("testsuite", name=f"askgauss {result.auditor.name}")
    facts = ET.SubElement(suite, "properties")
    for name, said in (
        ("verdict", words.headline(result)),
        ("scope", words.scope_line(result)),
        ("next step", result.next_step),
        *(("note", note) for note in result.notes),
        *(() if result.provenance is None else (("source", str(result.provenance)),)),
    ):
        ET.SubElement(facts, "property", name=name, value=one_line(said))
    verdict = ET.SubElement(suite, "testcase", classname="askgauss", name="verdict")
    if result.verdict is Verdict.VIOLATION:
        _problem(verdict, "failure", result.verdict.value, words.reason(result), str(result))
    elif result.verdict in (Verdict.INVALID, Verdict.INCONCLUSIVE):
        _problem(verdict, "error", result.verdict.value, words.reason(result), str(result))
    elif result.verdict is None:
        ET.SubElement(verdict, "skipped", message=one_line(words.reason(result)))
    ET.SubElement(verdict, "system-out").text = _lines(str(result))
    for finding in result.findings:
        _case(suite, finding)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, finding: Finding) -> None:
    case = ET.SubElement(
        suite, "testcase", classname="askgauss.findings", name=one_line(finding.check)
    )
    if finding.status is Status.FAIL:
        tag = "failure" if finding.consequence is Consequence.BREACH else "error"
        _problem(case, tag, finding.consequence.value, finding.summary, one_line(finding.remedy))
    elif finding.status is Status.NOT_RUN:
        ET.SubElement(case, "skipped", message=one_line(finding.summary))
    else:
        said = f"{finding.status.value}: {finding.summary} {finding.remedy}".rstrip()
        ET.SubElement(case, "system-out").text = one_line(said)


def _problem(case: ET.Element, tag: str, kind: str, message: str, detail: str) -> None:
    ET.SubElement(case, tag, type=kind, message=one_line(message)).text = _lines(detail)


def _lines(content: str) -> str:
    """Several lines, each without what XML does not allow."""
    return "\n".join(printable(line) for line in content.splitlines())
