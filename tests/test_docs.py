"""What the front page shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import askgauss as ag

ROOT = Path(__file__).parents[1]


def blocks(page, language):
    """The fenced pieces of one language on a page."""
    fenced = re.finditer(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.M)
    return [found[2] for found in fenced if found[1] == language]


def test_the_front_page_prints_what_it_says():
    (block,) = (text for text in blocks("README.md", "python") if "from_groups" in text)
    (expected,) = (text for text in blocks("README.md", "") if text.startswith("CONSISTENT"))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(block, {"ag": ag})
    assert shown.getvalue() == expected


@pytest.mark.parametrize("page", ["docs/first-audit.md"])
def test_the_pieces_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(page, "python"):
        exec(block, names)
    assert names["result"].verdict is ag.Verdict.CONSISTENT
