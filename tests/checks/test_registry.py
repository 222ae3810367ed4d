"""The registry: every check is declared once, and what refers to a check by name finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from askgauss.auditors import subsampled_gaussian
from askgauss.checks.registry import PARTS, check, registered
from askgauss.checks.running import NOISE_CHECKS
from askgauss.checks.signal import SIGNAL_CHECKS
from askgauss.federated import FEDERATED_FAULTS
from askgauss.simulation import FAULTS, TREE_FAULTS

LIST = Path(__file__).with_name("registry.txt")


def lines():
    """One line a check, by the part that it tests: its name, its role and what it reveals."""
    for part in (*PARTS, None):
        yield f"{part.name if part else 'no part'}:"
        for item in registered().values():
            if item.part is part:
                marks = ("decides", "exact", "reveals_individual", "after_resume")
                said = ", ".join(mark.replace("_", " ") for mark in marks if getattr(item, mark))
                yield f"  {item.name} ({said})" if said else f"  {item.name}"


def test_checks_stand_in_the_order_and_role_that_were_chosen():
    """Scope and disclosure follow from these: python -m tests.checks.test_registry writes them."""
    assert list(lines()) == LIST.read_text(encoding="utf-8").splitlines()


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


if __name__ == "__main__":
    LIST.write_text("\n".join(lines()) + "\n", encoding="utf-8")
