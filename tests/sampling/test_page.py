"""The page on sampling schemes prints what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"


def test_the_page_prints_what_it_says():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 7
    assert failed == 0
