"""The registry: every check is declared once, and what refers to a check by name finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from askgauss.auditors import subsampled_gaussian
from askgauss.checks.gate import NOISE_CHECKS
from askgauss.checks.registry import PARTS, Severity, check, registered, severity
from askgauss.checks.signal import SIGNAL_CHECKS
from askgauss.federated import FEDERATED_FAULTS
from askgauss.results import Consequence, Finding, Status
from askgauss.simulation import FAULTS, TREE_FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
HEAD = """# Checks

Every check that an audit makes, by the part of the training that it tests. The table is written
from the declarations in `src/askgauss/checks` by `python -m tests.checks.test_registry`.

- **Decides**: the part counts as tested if this check ran with enough power (it detects a fault of
  a third of what is claimed with probability 0.8) and no check of the part failed.
- **Exact**: it reads the run's own records, so that the part is tested whether or not canaries went
  through it.
- **Severity**: what a failure does to the guarantee, in the classes of JAX Privacy's
  [pitfalls](https://github.com/google-deepmind/jax_privacy/blob/main/docs/sharp_edges_dp_training_pitfalls.md):
  *critical* (the stated epsilon does not hold), *theoretical* (the guarantee fails only against an
  active adversary in largely theoretical conditions), *negligible* (the guarantee holds, up to a
  negligible amount). A finding that makes the bound too low, or informs, is negligible. Checks
  without a part test what the audit assumes, not the guarantee.
- **Published**: a p-value that may be that of one canary, step or pair is published as a power of
  ten.
"""


def page():
    """The page of all checks: parts in their order, checks in the order they are declared."""
    yield from HEAD.splitlines()
    for part in (*PARTS, None):
        yield ""
        yield f"## {part.name.capitalize()}" if part else "## What the audit assumes"
        yield ""
        yield "| Check | Tests | Role | Severity |"
        yield "|---|---|---|---|"
        for item in registered().values():
            if item.part is not part:
                continue
            roles = {
                "decides": item.decides,
                "exact": item.exact,
                "coarse p-value": item.reveals_individual,
                "asks about resumes": item.after_resume,
            }
            role = ", ".join(name for name, holds in roles.items() if holds)
            asked = (item.test.__doc__ or "").splitlines()[0].removesuffix(".").replace("|", "/")
            rank = item.severity.value if part else ""
            yield f"| {item.name} | {asked} | {role} | {rank} |"


def test_the_page_of_checks_is_what_is_declared():
    """Order, role and severity are there: python -m tests.checks.test_registry writes it."""
    assert list(page()) == PAGE.read_text(encoding="utf-8").splitlines()


def test_every_check_says_what_it_tests():
    for item in registered().values():
        assert (item.test.__doc__ or "").strip().endswith("."), item.name


def test_what_a_check_explains_is_a_check():
    for item in registered().values():
        assert set(item.explains) <= registered().keys(), item.name
        assert item.name not in item.explains


def test_what_faults_and_methods_name_is_a_check():
    named = {item.finding for item in (*FAULTS.values(), *TREE_FAULTS.values())}
    named |= {item.finding for item in FEDERATED_FAULTS.values()}
    named |= set(subsampled_gaussian._OF_THE_SCORES)
    assert named <= registered().keys()


def test_no_check_runs_twice():
    names = [item.name for item in (*NOISE_CHECKS, *SIGNAL_CHECKS)]
    assert len(names) == len(set(names))


def test_a_name_is_declared_once():
    with pytest.raises(AssertionError, match="noise scale"):
        check("noise scale")(lambda _: None)


@pytest.mark.parametrize(
    ("name", "consequence", "expected"),
    [
        ("noise scale", Consequence.BREACH, Severity.CRITICAL),
        ("noise scale", Consequence.LOOSENS, Severity.NEGLIGIBLE),
        ("noise precision", Consequence.BREACH, Severity.THEORETICAL),
        ("equal variance", Consequence.INVALIDATES, None),
        ("replay: loss", Consequence.BREACH, Severity.CRITICAL),
        ("noise drift", Consequence.INVALIDATES, Severity.CRITICAL),
    ],
)
def test_severity_is_what_happens_to_the_guarantee(name, consequence, expected):
    found = Finding(check=name, status=Status.FAIL, summary="", consequence=consequence)
    assert severity(found) is expected


if __name__ == "__main__":
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
