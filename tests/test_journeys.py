"""Three people, end to end, with the wheel and what it requires: no source tree."""

from __future__ import annotations

import email
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.report.browser import browser, emulate, open_file

ROOT = Path(__file__).parents[1]
CLAIM = ("--epsilon", "8", "--delta", "1e-5")


def needed(requirement, found):
    """The installed distributions that a requirement brings, by name, as pip would bring them."""
    distribution = metadata.distribution(requirement.name)
    name = canonicalize_name(requirement.name)
    extras = requirement.extras - found.get(name, set())
    if name in found and not extras:
        return found
    found[name] = found.get(name, set()) | requirement.extras
    for text in distribution.requires or ():
        inner = Requirement(text)
        wanted = inner.marker is None or any(
            inner.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
        )
        if wanted:
            needed(inner, found)
    return found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """An environment with the wheel as a release builds it, and nothing but what it requires.

    What it requires is linked from the environment of the tests: nothing is installed twice.
    """
    # One for all workers of a run, which share the folder above theirs.
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "journeys"
    place.mkdir(exist_ok=True)
    python = place / "environment" / "bin" / "python"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "whole").exists():
            build = ("-m", "pip", "wheel", "--no-deps", "--quiet")
            done = subprocess.run(
                [sys.executable, *build, "--wheel-dir", str(place), str(ROOT)],
                capture_output=True,
                text=True,
                check=False,
            )
            if "No matching distribution" in done.stderr:
                pytest.skip(f"the build backend cannot be had here: {done.stderr[-200:]}")
            assert done.returncode == 0, done.stderr
            (wheel,) = place.glob("*.whl")
            venv.create(place / "environment", clear=True)
            (packages,) = (place / "environment").glob("lib/python*/site-packages")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)
            (stated,) = packages.glob("askgauss-*.dist-info/METADATA")
            for text in email.message_from_string(stated.read_text()).get_all("Requires-Dist"):
                requirement = Requirement(text)
                marker = requirement.marker
                if marker is None or any(marker.evaluate({"extra": e}) for e in ("", "opacus")):
                    link(needed(requirement, {}), packages)
            (place / "whole").touch()
    return python


def link(names, packages):
    """Make distributions of this environment importable from another one."""
    for name in names:
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                root = Path(file.locate())
                for _ in file.parts[1:]:
                    root = root.parent
                (packages / top).symlink_to(root)


@pytest.fixture(scope="module")
def desk(fresh, tmp_path_factory):
    """A folder to work in, and a way to call things there."""
    place = tmp_path_factory.mktemp("desk")

    def call(*arguments, code=0):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(place), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [fresh, *map(str, arguments)], cwd=place, env=environment, capture_output=True,
            text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    call.place = place
    return call


@pytest.fixture(scope="module")
def broken(desk):
    """The report on a run with half of its noise, next to its transcript and result."""
    desk("-m", "askgauss", "simulate", "dpsgd", "--fault", "half-noise", "-o", "broken.npz")
    documents = ("--json", "result.json", "--html", "shown.html", "--quiet")
    desk("-m", "askgauss", "audit", "broken.npz", *CLAIM, *documents, code=1)
    return desk.place / "shown.html"


def test_it_is_the_wheel_that_runs(desk):
    shown = desk("-c", "import askgauss; print(askgauss.__file__)").stdout
    assert str(ROOT) not in shown
    assert desk("-m", "askgauss", "--version").stdout.startswith("askgauss 0.2")


PARTS = ("noise scale", "noise freshness", "clipping", "sampler", "accountant", "weights")
TRAIN = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, opacus
import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(800, 60), torch.randint(0, 10, (800,)))
model = torch.nn.Sequential(torch.nn.Linear(60, 80), torch.nn.ReLU(), torch.nn.Linear(80, 10))
engine = opacus.PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=torch.utils.data.DataLoader(data, batch_size=100),
    noise_multiplier=1.1, max_grad_norm=1.0)
with CanaryAudit(optimizer, data_loader=loader, model=model, seed=1) as audit:
    for epoch in range(12):
        for features, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
claim = ag.PrivacyClaim(epsilon=engine.get_epsilon(1e-5), delta=1e-5)
print(audit.result(claim=claim))
print("EPSILON", claim.epsilon)
audit.transcript().save("transcript.npz")
audit.save("finished.npz")
torch.save(model.state_dict(), "model.pt")
"""


def test_the_engineer(desk):
    (desk.place / "train.py").write_text(TRAIN)
    shown = desk("train.py").stdout
    # Twelve epochs of eight steps, and the numbers of canaries left to the audit.
    assert shown.startswith("CONSISTENT: "), shown
    # Without options the audit goes through every part of the run.
    assert "not tested" not in shown
    assert all(part in shown for part in PARTS)
    assert "next" in shown
    epsilon = shown.split("EPSILON ")[1].strip()
    claim = ("--epsilon", epsilon, "--delta", "1e-5")
    documents = ("--html", "audit.html", "--json", "audit.json", "--markdown", "audit.md")
    for source, wanted in (("transcript.npz", ()), ("finished.npz", documents)):
        done = desk("-m", "askgauss", "audit", source, *claim, *wanted, "--junit", "audit.xml")
        assert done.stdout.startswith("CONSISTENT: ")
    for name in ("audit.html", "audit.md", "audit.xml", "audit.json"):
        text = (desk.place / name).read_text()
        assert all(part in text for part in PARTS)
        assert "finished.npz" in text


def test_the_researcher(desk):
    guide = (ROOT / "docs" / "own-auditor.md").read_text()
    (desk.place / "sign_test.py").write_text(guide.split("```python\n")[1].split("```")[0])
    desk("-m", "askgauss", "simulate", "dpsgd", "--steps", "100", "-o", "run.npz")
    own = ("--auditor", "sign_test:SignTest")
    table = desk("-m", "askgauss", "compare", "run.npz", *CLAIM, *own, "--auditor", "one-run")
    assert "sign-test" in table.stdout
    code = textwrap.dedent("""
        import matplotlib; matplotlib.use("agg")
        import askgauss as ag
        from askgauss.auditors import register_auditor
        from sign_test import SignTest
        register_auditor(SignTest)
        scores = ag.Transcript.load("run.npz").scores()
        claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
        ag.audit(scores, claim=claim, auditor="sign-test").to_json("own.json")
        assert ag.AuditResult.load("own.json").auditor == SignTest()
        table = ag.compare(scores, claim=claim, auditors=[SignTest(), "gaussian-shift"])
        table.plot().figure.savefig("table.svg")
        print(table.to_latex())
    """)
    assert "toprule" in desk("-c", code).stdout
    assert (desk.place / "table.svg").stat().st_size > 1000


def test_the_release_manager(desk, broken):
    folder = desk.place / "release"
    folder.mkdir()
    draw = "import numpy as np; d = np.random.default_rng(0); print('score,member'); "
    draw += "[print(f'{d.normal(m, 1)},{m}') for m in (0, 1) for _ in range(3000)]"
    (folder / "canaries.csv").write_text(desk("-c", draw).stdout)
    audit = ("-m", "askgauss", "audit")
    # Without a claim nothing passes; of a folder it is said what was taken.
    alone = desk(*audit, folder, "--delta", "1e-5", code=3)
    assert "reading" in alone.stderr
    assert "canaries.csv" in alone.stderr
    assert alone.stdout.startswith("NO VERDICT")
    weak = desk(*audit, folder, *CLAIM, "--json", "r.json", code=3)
    assert weak.stdout.startswith("INCONCLUSIVE")
    assert 'noise="gaussian"' in weak.stdout
    desk(*audit, folder, *CLAIM, "--lenient")
    (folder / "second.json").write_text("{}")
    several = desk(*audit, folder, *CLAIM, code=2)
    assert "canaries.csv, second.json" in several.stderr
    pack = desk("-m", "askgauss", "attest", "result.json", "-o", "evidence")
    assert "statement.json" in pack.stdout
    statement = json.loads((desk.place / "evidence" / "statement.json").read_text())
    assert statement["predicate"]["result"] == "FAILED"
    desk("-m", "askgauss", "check-results", "result.json", "evidence/statement.json")
    desk("-m", "askgauss", "check-results", "--refuse-private", "broken.npz", code=2)
    text = (desk.place / "result.json").read_text().replace("VIOLATION", "CONSISTENT", 1)
    (desk.place / "result-edited.json").write_text(text)
    desk("-m", "askgauss", "check-results", "result-edited.json", code=2)


@pytest.fixture(scope="module")
def window():
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_on_a_screen(broken, window, width, scheme):
    emulate(window, scheme=scheme, width=width)
    open_file(window, broken)
    wide, bottom = window.execute_script(
        "return [document.documentElement.scrollWidth,"
        " document.querySelector('.advice').getBoundingClientRect().top]"
    )
    assert wide <= width
    assert bottom < 900  # what to do stands on the first screen
