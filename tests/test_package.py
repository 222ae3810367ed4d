"""The package as a whole: what it imports, what it exports, which way its arrows point."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import askgauss
from tests import arrows

SOURCE = Path(askgauss.__file__).parent
ROOT = Path(__file__).parents[1]


def test_every_part_and_every_arrow_is_on_the_map():
    """A new part or import is drawn on purpose: python -m tests.arrows, and look at the change."""
    assert arrows.lines() == arrows.MAP.read_text().splitlines()


def test_imports_point_one_way():
    """Parts can be put in a row so that each imports only earlier ones when it is imported."""
    left = {name: set(at_once) for name, (at_once, _) in arrows.drawn().items()}
    while left:
        free = {name for name, needs in left.items() if not needs & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_the_core_knows_nothing_of_what_stands_on_it():
    found = arrows.drawn()
    for name in ("stats", "accounting", "sampling"):
        at_once, later = found[name]
        assert not (at_once | later) & {"auditors", "checks", "results", "integrations", "cli"}
    assert "mechanisms" not in found["auditors"][0] | found["auditors"][1]
    assert "auditors" not in found["mechanisms"][0] | found["mechanisms"][1]


def test_torch_and_jax_stay_in_their_rooms():
    for path in SOURCE.rglob("*.py"):
        if arrows.part(path) == "integrations":
            continue
        heavy = {name.split(".")[0] for name, later in arrows.imports(path) if not later}
        assert not heavy & {"torch", "jax", "opacus", "matplotlib", "pandas", "sklearn"}, path


def _loaded(code):
    report = (
        "import sys, json; before = set(sys.modules);"
        f"{code};"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-I", "-c", report]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(json.loads(output))


def test_importing_askgauss_loads_only_numpy_and_scipy():
    """Whatever numpy and scipy.special load by themselves is theirs."""
    loaded = _loaded("from askgauss import *")
    ours = loaded - _loaded("import numpy, scipy.special")
    packages = {name.split(".")[0] for name in ours} - set(sys.stdlib_module_names)
    assert packages <= {"askgauss", "scipy", "numpy"}
    assert not {"scipy.stats", "scipy.optimize"} & loaded


def test_every_public_name_is_there_and_loaded_on_demand():
    lazy = {*askgauss._HOME_OF, "gaussian", "__version__"}
    assert set(askgauss.__all__) == lazy
    assert askgauss.__all__ == sorted(askgauss.__all__)
    for name in askgauss.__all__:
        value = getattr(askgauss, name)
        assert getattr(value, "__name__", name).endswith(name) or name == "__version__"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = askgauss.nothing
    assert "numpy" not in {name.split(".")[0] for name in _loaded("import askgauss")}


def test_version_matches_the_project():
    text = (SOURCE.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{askgauss.__version__}"' in text


# The advisory that sets a lower bound, and the first release without it; looked up on 2026-11-18.
ADVISORIES = {
    "jinja2": ("CVE-2025-27516", "3.1.6"),
    # Fixed in July 2026, after 2.12; CVE-2026-24747 before 2.10, CVE-2026-4538 in 2.10.
    "torch": ("CVE-2025-3000", "2.13"),
    # CVE-2026-44484 is 2.6.2 and 2.6.3.
    "lightning": ("GHSA-qqmf-gpg7-g8gw", "2.6.6"),
    # CVE-2026-4372 before 5.3, CVE-2026-5241 before 5.5.
    "transformers": ("CVE-2026-9856", "5.10"),
    "accelerate": ("CVE-2026-69112", "1.15"),
    # Names 3.14.0; GHSA-hqp4-2352-xf5r before that.
    "keras": ("CVE-2026-12481", "3.15"),
    "scikit-learn": ("CVE-2024-5206", "1.5"),
    # Distributions mark 12.3.0 as affected; CVE-2026-59197 to 59200 before that.
    "pillow": ("CGA-6r43-cc9v-c6c4", "13"),
    "pyarrow": ("CVE-2026-25087", "23.0.1"),
    # CVE-2026-27482 before 2.54.
    "ray": ("GHSA-mw35-8rx3-xf9r", "2.55"),
    "pytest": ("CVE-2025-71176", "9.0.3"),
    "mkdocs-material": ("CVE-2026-73295", "9.7.7"),
}


def _bounds():
    """Every lower bound in pyproject.toml, as numbers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [project["dependencies"], *project["optional-dependencies"].values()]
    for line in (line for lines in listed for line in lines):
        name, _, bound = line.partition(">=")
        yield name.partition("[")[0], _numbers(bound)


def _numbers(version):
    return tuple(map(int, version.split(".")))


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the sources")
def test_lower_bounds_have_no_known_advisory():
    bounds = list(_bounds())
    for name, (advisory, first) in ADVISORIES.items():
        found = [bound for other, bound in bounds if other == name]
        assert found, name
        assert min(found) >= _numbers(first), f"{name}: {advisory}"
    # What the checks are run with has to be allowed.
    assert min(bound for name, bound in bounds if name == "torch") <= (2, 13)
