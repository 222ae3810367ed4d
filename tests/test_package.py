"""The package as a whole: what it imports, what it exports, which way its arrows point."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import askgauss

SOURCE = Path(askgauss.__file__).parent
ROOT = Path(__file__).parents[1]

# A layer may import layers with a smaller number, and itself.
LAYERS = {
    "exceptions": 0,
    "_version": 0,
    "_validate": 0,
    "_archives": 0,
    "_plain": 0,
    "_text": 0,
    "_files": 0,
    "_schema": 0,
    "_sums": 0,
    "_locks": 0,
    "_checkpoints": 0,
    "_ray": 0,
    "_rounded": 0,
    "selection": 1,
    "stats": 1,
    "accounting": 1,
    "sampling": 1,
    "witness": 1,
    "claims": 2,
    "commitment": 2,
    "scores": 2,
    "canaries": 2,
    "run_facts": 2,
    "transcript": 2,
    "linear_transcript": 2,
    "monitor": 2,
    "recorder": 2,
    "_recorder_rows": 2,
    "_recorder_state": 2,
    "seam": 2,
    "step_store": 2,
    "planting": 2,
    "tables": 3,
    "results": 3,
    "provenance": 4,
    "policy": 4,
    "gate": 4,
    "advice": 5,
    "_result_text": 4,
    "scope": 4,
    "auditors": 4,
    "mechanisms": 4,
    "diagnostics": 4,
    "inputs": 4,
    "auditing": 5,
    "comparison": 5,
    "standard": 5,
    "verification": 6,
    "power": 5,
    "simulation": 5,
    "linear_recorder": 5,
    "_planned_recorder": 5,
    "released_steps": 5,
    "sampled_recorder": 5,
    "mechanism_audit": 5,
    "final": 5,
    "replay": 5,
    "plots": 6,
    "report": 6,
    "attest": 6,
    "audited_run": 6,
    "federated": 6,
    "loggers": 6,
    "integrations": 7,
    "paper": 7,
    "cli": 7,
    "pytest_plugin": 7,
    "": 8,
    "__main__": 8,
}
# Pairs that stand on one floor and must not lean on each other.
APART = {("auditors", "mechanisms"), ("mechanisms", "auditors"), ("stats", "accounting")}


def _imports(path: Path) -> list[tuple[str, bool]]:
    """The askgauss modules a file imports at its top level, or inside functions (lazily)."""
    found = []
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "askgauss":
                names = [f"askgauss.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        lazy, parent = False, parents.get(node)
        while parent is not None:
            lazy = lazy or isinstance(parent, ast.FunctionDef) or _type_checking(parent)
            parent = parents.get(parent)
        found += [(name, lazy) for name in names]
    return found


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def _layer(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return "" if part == "__init__.py" else part.removesuffix(".py")


def test_imports_point_one_way():
    checked = 0
    for path in SOURCE.rglob("*.py"):
        here = _layer(path)
        assert here in LAYERS, f"{path} has no layer"
        for name, lazy in _imports(path):
            parts = name.split(".")
            if parts[0] != "askgauss" or len(parts) < 2 or parts[1] not in LAYERS:
                continue  # the last are names of the package itself
            if here in ("results", "comparison") and lazy:
                continue  # a result may rebuild its auditor, draw and render itself
            checked += 1
            assert LAYERS[parts[1]] <= LAYERS[here], f"{path} imports {name}"
            assert (here, parts[1]) not in APART, f"{path} imports {name}"
    assert checked > 50


def test_torch_and_jax_stay_in_their_rooms():
    for path in SOURCE.rglob("*.py"):
        if _layer(path) in ("integrations", "paper"):
            continue
        heavy = {name.split(".")[0] for name, lazy in _imports(path) if not lazy}
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
