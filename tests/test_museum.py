"""The museum counts an exhibit as found only if it ran, was named, and its twin is clean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from museum import rooms, tour
from museum.exhibits import Release, every

CLEAN = {"verdict": "CONSISTENT", "findings": []}


@pytest.mark.parametrize("exhibit", every(), ids=lambda item: item.name)
def test_every_exhibit_says_what_it_needs(exhibit):
    assert (exhibit.folder / "show.py").exists()
    assert exhibit.title
    assert exhibit.known
    assert exhibit.finding or exhibit.why_unseen
    assert not exhibit.live or exhibit.maintainer
    for release in (*exhibit.broken, *exhibit.mended):
        assert len(release.sha256) == 64


def test_what_cannot_be_installed_is_skipped_by_name(monkeypatch, tmp_path):
    gone = Release(name="askgauss-no-such-package", version="0.0.1", sha256="0" * 64)
    monkeypatch.setattr(rooms, "ROOMS", tmp_path / "rooms")
    monkeypatch.setattr(tour, "_OUTCOMES", tmp_path / "outcomes")
    shown = tour.show(replace(every()[0], broken=(gone,)))
    assert "askgauss-no-such-package 0.0.1" in shown.skipped
    assert not shown.found
    assert not shown.as_expected
    assert "skipped" in shown.line
    # Nothing half-installed is left.
    assert list((tmp_path / "rooms").iterdir()) == []


def test_found_means_named_with_a_clean_twin():
    exhibit = every()[0]
    named = {"verdict": exhibit.verdict, "findings": [exhibit.finding]}
    seen = tour.Shown(exhibit=exhibit, outcomes={"broken": named, "mended": CLEAN})
    assert seen.found
    assert seen.as_expected
    unnamed = {"verdict": exhibit.verdict, "findings": ["something else"]}
    assert not tour.Shown(exhibit=exhibit, outcomes={"broken": unnamed, "mended": CLEAN}).found
    alarm = {"verdict": "VIOLATION", "findings": [exhibit.finding]}
    assert not tour.Shown(exhibit=exhibit, outcomes={"broken": named, "mended": alarm}).found
