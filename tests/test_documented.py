"""Every feature is on some page, and the command reference is the program's own."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
from pathlib import Path

import pytest
import typer

import askgauss as ag
from askgauss import auditors
from askgauss.cli import app
from tests.figures.kinds import KINDS

ROOT = Path(__file__).parents[1]
DOCS = {
    path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md")
}
REFERENCE = "\n".join(text for name, text in DOCS.items() if name.startswith("api"))
ALL = "\n".join([*DOCS.values(), (ROOT / "README.md").read_text(encoding="utf-8")])
# Rooms that have a page of their own in words, or are parts of what is documented.
INSIDE = {
    "cli",
    "federated",
    "files",
    "integrations",
    "mechanisms",
    "publish",
    "replay",
    "stats",
}


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(group, path=()):
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def test_the_command_reference_has_every_command_and_option():
    page = script("mkdocs_hooks").commands()
    for path, command in leaves(typer.main.get_command(app)):
        assert f"## askgauss {' '.join(path)}\n" in page
        section = page.split(f"## askgauss {' '.join(path)}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                assert f"`{parameter.opts[0]}`" in section, (path, parameter.opts)


def test_every_page_says_its_version():
    assert script("mkdocs_hooks").on_config({})["copyright"] == f"askgauss {ag.__version__}"


def test_versions_stand_beside_each_other_and_the_newest_leads(tmp_path, capsys):
    docs = script("versioned_docs")
    for version in ("0.9.1", "0.10.0", "0.2.0"):
        (tmp_path / version).mkdir()
        docs.publish(tmp_path, version)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [item["version"] for item in listed] == ["0.10.0", "0.9.1", "0.2.0"]
    assert [item["aliases"] for item in listed] == [["latest"], [], []]
    assert 'url=0.10.0/"' in (tmp_path / "index.html").read_text()
    # One that somebody took away is listed no more.
    (tmp_path / "0.9.1").rmdir()
    docs.publish(tmp_path, "0.10.0")
    assert "0.9.1" not in (tmp_path / "versions.json").read_text()


@pytest.mark.parametrize("name", sorted({*ag.__all__, *KINDS}))
def test_every_public_name_is_on_some_page(name):
    if name.startswith("__"):
        return
    words = set(re.findall(r"\w+", ALL))
    assert name in words, f"{name} is on no page"


def test_every_method_of_a_result_is_in_the_reference():
    assert "AuditResult" in REFERENCE
    for kind in auditors.auditor_types().values():
        assert kind.__name__ in REFERENCE
        assert kind.__name__ in DOCS["methods.md"]


def test_every_public_module_is_in_the_reference():
    listed = set(re.findall(r"^::: (askgauss[\w.]*)", REFERENCE, re.M))
    missing = []
    for module in pkgutil.iter_modules(ag.__path__, "askgauss."):
        name = module.name.removeprefix("askgauss.")
        if name.startswith("_") or name in INSIDE:
            continue
        if not any(item == module.name or item.startswith(f"{module.name}.") for item in listed):
            missing.append(module.name)
    assert not missing


def test_the_reference_is_led_by_what_people_use():
    first = re.search(r"api/(\w+)\.md", DOCS["api.md"])[0]
    assert DOCS[first].split(":::", 1)[1].split("\n")[0].strip() == "askgauss.integrations.opacus"


def test_no_page_has_two_sections_of_one_name():
    for name, text in DOCS.items():
        headings = re.findall(
            r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M
        )
        assert len(headings) == len(set(headings)), name


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in DOCS:
        assert name in menu, f"{name} is in no menu"
