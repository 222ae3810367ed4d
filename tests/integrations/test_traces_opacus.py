"""How many files of the package the result of an Opacus run goes through."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("opacus")

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PACKAGE = Path(ag.__file__).parent
# Files that may run; those of the Opacus integration among them.
MOST, MOST_OPACUS = 78, 11


def files_run(call):
    """Files of the package in which a function is called, imports left out."""
    found = set()

    def trace(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE):
                found.add(path.relative_to(PACKAGE).as_posix())

    call()  # what is imported or computed once is no part of a result
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_result_goes_through_few_files(capsys):
    run = make_run()
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    with CanaryAudit(run.optimizer, run.loader, claim, model=run.model, seed=0) as audit:
        run.train(epochs=2)
    found = files_run(audit.result)
    opacus = {name for name in found if name.startswith("integrations/")}
    with capsys.disabled():
        print(f"\nCanaryAudit.result() runs {len(found)} files, {len(opacus)} of its integration")
    assert len(found) <= MOST, sorted(found)
    assert len(opacus) <= MOST_OPACUS, sorted(opacus)
