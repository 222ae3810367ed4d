"""What the front page shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import askgauss as ag
from askgauss.auditors import auditor_types

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


def rows(page):
    """The cells of every table row on a page that begins with a name in code."""
    lines = (ROOT / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| `")
    ]


def test_what_methods_assume_is_said_in_one_way():
    """The level on either page is what results print."""
    kinds = {kind.__name__: kind for kind in auditor_types().values()}
    told = {re.match(r"`(\w+)`", row[0])[1]: row[2] for row in rows("docs/methods.md")}
    for name, level in told.items():
        assert level == kinds[name]().assumption.value, name
    tight = [row for row in rows("README.md") if len(row) == 5]
    front = {re.match(r"`(\w+)`", row[0])[1]: row[-1] for row in tight}
    compared = {name: level for name, level in front.items() if name in kinds}
    assert len(compared) >= 10
    assert compared == {name: told[name] for name in compared}


# Words of an English of our own, and what is written instead in the glossary.
RETIRED = (
    r"\bcoins?\b",
    r"\blaws?\b",
    r"\bsound runs?\b",
    r"\bheld against\b",
    r"\bwould (?:see|show|notice)\b",
    r"\bplant(?:s|ed|ing|ings)?\b",
    r"\bbreach(?:es)?\b",
    r"\bmend(?:s|ed)?\b",
    r"\bwitness(?:es)?\b",
    r"\bso many\b",
    r"\bgone on with\b",
    r"\bwhole transcript\b",
    r"\bgate error\b",
    r"\btold\b",
    r"\bworlds?\b",
    r"\b(?:present|absent) (?:canar\w+|ones?|scores?)\b",
    r"\bspeaks?\b",
)
START = (
    "README.md",
    "CONTRIBUTING.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("index", "first-audit", "opacus", "trainers", "own-loop", "blackbox", "jax"),
            *("adversaries", "verdicts", "is-the-noise-there", "pitfalls", "audit-pitfalls"),
            *("canaries-and-power", "training-to-gate", "ci-gate", "glossary", "compliance"),
        )
    ),
)


@pytest.mark.parametrize("page", START)
def test_pages_people_start_with_use_the_words_of_the_field(page):
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "", text)
    found = [word[0] for item in RETIRED for word in re.finditer(item, text, re.IGNORECASE)]
    assert not found
