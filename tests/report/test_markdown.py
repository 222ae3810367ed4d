from __future__ import annotations

import html
import re

import pytest

from askgauss import report
from askgauss.results import Status

from . import samples


@pytest.mark.parametrize("name", samples.ALL)
def test_tables_are_whole(name):
    lines = report.markdown(samples.ALL[name]()).splitlines()
    assert lines[0].startswith("### askgauss: ")
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.count("|") in (3, 5) for line in tables)
    assert all(line.endswith("|") for line in tables)


def test_it_says_the_verdict_the_numbers_and_what_to_do():
    result = samples.violation()
    text = html.unescape(report.markdown(result))
    assert "Violation" in text
    assert f"epsilon >= {result.epsilon_lower:.4g} at delta 1e-05, confidence 0.95" in text
    shown = [item for item in result.findings if item.status in (Status.FAIL, Status.WARN)]
    assert shown
    for finding in shown:
        assert finding.check in text
        assert finding.remedy in text
    assert f"{len(result.findings) - len(shown)} other checks" in text


def test_hostile_texts_mean_nothing():
    text = report.markdown(samples.hostile())
    foreign = [line for line in text.splitlines() if "script" in line]
    assert foreign
    for line in foreign:
        rest = re.sub(r"&#\d+;", "", line).replace("**", "")
        assert not re.search(r"[<>@\[\]`$#\\]|://|\x1b|\u202e", rest), rest
    assert samples.HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e") in html.unescape(
        text
    )
