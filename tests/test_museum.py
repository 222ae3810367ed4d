"""The museum counts an exhibit as found only if it ran, was named, and its twin is clean."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from dataclasses import replace

import pytest
from museum import __main__ as museum_main
from museum import environments, page
from museum import run as museum_run
from museum.__main__ import main
from museum.catalogue import Release, every

CLEAN = {"verdict": "CONSISTENT", "findings": [], "warnings": []}
SHOWABLE = [item for item in every() if not item.unavailable]


@pytest.fixture
def apart(monkeypatch, tmp_path):
    """Nothing is taken from what was kept, nor from a network."""
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(museum_run, "_OUTCOMES", tmp_path / "outcomes")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path


def exhibit(name):
    return next(item for item in every() if item.name == name)


@pytest.mark.parametrize("item", every(), ids=lambda item: item.name)
def test_every_exhibit_says_what_it_needs(item):
    assert (item.folder / "show.py").exists() != bool(item.unavailable)
    for text in (item.title, item.library, item.known, item.wrong, item.twin, item.verdict):
        assert text.strip()
    assert bool(item.finding) != bool(item.why_unseen)
    assert bool(item.maintainer) == item.live
    for release in (*item.broken, *item.mended):
        assert len(release.sha256) == 64


def test_there_are_as_many_as_the_page_says():
    assert len(SHOWABLE) >= 25
    assert sum(bool(item.finding) for item in SHOWABLE) >= 20
    assert sum(bool(item.why_unseen) for item in SHOWABLE) >= 2


@pytest.mark.parametrize("item", [item for item in SHOWABLE if item.fast], ids=lambda i: i.name)
def test_fast_exhibits_are_found_and_their_twins_are_clean(item, monkeypatch, tmp_path):
    monkeypatch.setattr(museum_run, "_OUTCOMES", tmp_path)
    try:
        for variant in ("broken", "mended"):
            environments.install(item.releases(variant))
    except environments.UnavailableError as error:
        pytest.skip(str(error))
    shown = museum_run.run_exhibit(item)
    assert shown.found, shown.line
    assert shown.as_expected, shown.line
    # What was kept is shown again, and not run.
    monkeypatch.setattr(museum_run.subprocess, "run", None)
    assert museum_run.run_exhibit(item) == shown


# --- what cannot be shown -------------------------------------------------------------------------


def unshown(item):
    shown = museum_run.run_exhibit(item)
    assert shown.skipped
    assert not shown.found
    assert not shown.as_expected
    assert not shown.twin_clean
    assert f"{item.name:34} skipped" in shown.line
    text = page.render([shown])
    assert "1 exhibits, 0 of them shown (0 of released packages, 0 published): 0 named" in text
    assert f"**{item.name}**" in text.split("Not shown, and not counted as found")[1]
    return shown.skipped


def test_a_package_that_is_gone_is_skipped_by_name(apart):
    gone = Release(name="askgauss-no-such-package", version="0.0.1", sha256="0" * 64)
    said = unshown(replace(exhibit("opacus-closure"), broken=(gone,)))
    assert "askgauss-no-such-package 0.0.1" in said
    # Nothing half-installed is left.
    assert list(environments.ENVIRONMENTS.iterdir()) == []


def test_without_a_network_it_is_skipped_by_name(apart, monkeypatch):
    # Nobody listens at this port.
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    said = unshown(exhibit("opacus-closure"))
    assert exhibit("opacus-closure").broken[0].label in said
    assert list(environments.ENVIRONMENTS.iterdir()) == []


def test_an_installer_that_never_answers_is_skipped_by_name(apart, monkeypatch):
    monkeypatch.setattr(environments, "_SECONDS", 0.001)
    said = unshown(exhibit("opacus-closure"))
    assert "no answer in" in said
    assert list(environments.ENVIRONMENTS.iterdir()) == []


def test_a_package_whose_hash_differs_is_skipped_by_name(apart):
    digest = make_wheel(apart, "exhibit-of-a-test")
    right = Release(name="exhibit-of-a-test", version="1.0", sha256=digest)
    (folder,) = environments.install((right,))
    assert (folder / "exhibit_of_a_test.py").exists()
    wrong = replace(right, sha256="0" * 64)
    said = unshown(replace(exhibit("opacus-closure"), broken=(wrong,)))
    assert "exhibit-of-a-test 1.0" in said
    assert "HASHES" in said.upper()


def test_a_python_that_is_too_new_is_skipped_by_name(apart):
    said = unshown(replace(exhibit("svt-stoddard"), newest_python="3.2"))
    assert said == "its releases are made for Python 3.2 at the newest"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert museum_run._skipped(replace(exhibit("svt-stoddard"), newest_python=here)) == ""


def test_what_no_registry_has_is_skipped_by_name(apart):
    assert "no package registry" in unshown(exhibit("fastdp-tied-embeddings"))


def test_a_script_that_fails_is_skipped_and_not_kept(apart, monkeypatch):
    item = exhibit("svt-stoddard")
    monkeypatch.setattr(museum_run.sys, "executable", "/bin/false")
    assert unshown(item) == "broken: no word"
    assert list((apart / "outcomes").iterdir()) == []


def make_wheel(folder, name):
    """A package of one empty module; its digest."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{checksum(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(inside, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksum(text):
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


# --- what counts ----------------------------------------------------------------------------------


def run_with(broken, mended=CLEAN):
    item = exhibit("opacus-closure")
    given = {"verdict": item.verdict, "findings": [item.finding], "warnings": []} | broken
    return museum_run.ExhibitRun(exhibit=item, outcomes={"broken": given, "mended": CLEAN | mended})


def test_found_means_named_with_a_clean_twin():
    name = exhibit("opacus-closure").finding
    assert run_with({}).found
    assert run_with({}).as_expected
    assert run_with({"findings": [], "warnings": [name]}).found
    assert not run_with({"findings": ["something else"]}).found
    for twin in (
        {"verdict": "VIOLATION", "findings": [name]},
        {"verdict": "INVALID"},
        {"findings": ["something else"]},
        {"warnings": [name]},
    ):
        assert not run_with({}, twin).found
        assert not run_with({}, twin).twin_clean


def test_another_verdict_than_the_expected_is_not_as_expected():
    assert not run_with({"verdict": "INVALID"}).as_expected
    assert "UNEXPECTED" in run_with({"verdict": "INVALID"}).line
    assert " found: " in run_with({}).line


def test_an_outcome_is_run_again_when_anything_it_rests_on_changes(monkeypatch, tmp_path):
    item = exhibit("flower-nan-update")
    kept = museum_run._fingerprint(item, "broken")
    assert kept != museum_run._fingerprint(item, "mended")
    assert kept == museum_run._fingerprint(exhibit("flower-zero-update"), "broken")
    other = Release(name="flwr", version="1.41.0", sha256="0" * 64)
    assert kept != museum_run._fingerprint(replace(item, broken=(other,)), "broken")
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats" / "new.py").write_text("")
    (tmp_path / "cli").mkdir()
    monkeypatch.setattr(museum_run, "_SOURCES", tmp_path)
    changed = museum_run._fingerprint(item, "broken")
    assert kept != changed
    (tmp_path / "cli" / "new.py").write_text("x = 1")
    assert museum_run._fingerprint(item, "broken") == changed
    (tmp_path / "stats" / "new.py").write_text("x = 1")
    assert museum_run._fingerprint(item, "broken") != changed


# --- the command ----------------------------------------------------------------------------------


def test_the_command_lists_every_exhibit(capsys):
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [item.name for item in every()]


def test_the_command_refuses_what_it_does_not_know(capsys):
    assert main(["run", "no-such-exhibit"]) == 2
    assert "No exhibit is called 'no-such-exhibit'" in capsys.readouterr().err
    for wrong in (["run"], ["list", "opacus-closure"], ["tour"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


@pytest.mark.parametrize(
    ("outcome", "code"), [({}, 0), ({"verdict": "INVALID"}, 10), ({"findings": []}, 10)]
)
def test_an_unexpected_outcome_is_told_from_a_crash(monkeypatch, capsys, outcome, code):
    monkeypatch.setattr(museum_main, "run_exhibit", lambda item, **_: run_with(outcome))
    assert main(["run", "opacus-closure"]) == code
