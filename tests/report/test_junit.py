from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from askgauss import report
from askgauss.results import Consequence, Status

from . import samples


def suite(result):
    root = ET.fromstring(report.junit(result).encode("utf-8"))
    assert root.tag == "testsuites"
    (found,) = root
    return found


@pytest.mark.parametrize("name", samples.ALL)
def test_one_case_a_finding_and_one_for_the_verdict(name):
    result = samples.ALL[name]()
    found = suite(result)
    cases = found.findall("testcase")
    assert len(cases) == 1 + len(result.findings) == int(found.get("tests"))
    assert cases[0].get("name") == "verdict"
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(found.get(attribute)) == len(found.findall(f"testcase/{tag}"))
    for case, finding in zip(cases[1:], result.findings, strict=True):
        broken = finding.status is Status.FAIL
        breach = finding.consequence is Consequence.BREACH
        assert (case.find("failure") is not None) == (broken and breach)
        assert (case.find("error") is not None) == (broken and not breach)
        assert (case.find("skipped") is not None) == (finding.status is Status.NOT_RUN)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("violation", "failure"),
        ("invalid", "error"),
        ("inconclusive", "error"),
        ("no_claim", "skipped"),
        ("consistent", None),
    ],
)
def test_only_a_run_that_keeps_its_claim_passes(name, tag):
    verdict = suite(samples.ALL[name]()).find("testcase")
    problems = {item.tag for item in verdict} - {"system-out"}
    assert problems == (set() if tag is None else {tag})
    if tag in ("failure", "error"):
        assert verdict.find(tag).get("type") == samples.ALL[name]().verdict.value
        reason = samples.ALL[name]().reason
        assert reason[1:] in verdict.find(tag).get("message")


def test_hostile_texts_leave_the_xml_valid():
    found = suite(samples.hostile())
    case = found.findall("testcase")[1]
    assert case.get("name").startswith("<script>alert")
    assert "\x1b" not in report.junit(samples.hostile())
