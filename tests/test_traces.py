"""How much of the package an audit goes through."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import askgauss as ag
from askgauss.simulation import simulate_scores

SOURCE = Path(ag.__file__).parent
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
# Pure functions of numbers: to follow an audit nobody has to read them.
NUMERICAL = ("stats", "accounting")


def executed(call: Callable[[], object]) -> set[str]:
    """The files of the package whose functions a call runs."""
    found: set[str] = set()

    def watch(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(SOURCE)):
            found.add(str(Path(path).relative_to(SOURCE)))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_an_audit_of_scores_goes_through_few_files():
    scores = simulate_scores(
        steps=2500, sampling_rate=0.08, noise_multiplier=2.6, present=400, absent=400, seed=0
    )
    ag.audit(scores, claim=CLAIM)  # modules are imported by now
    files = executed(lambda: ag.audit(scores, claim=CLAIM))
    beyond = {name for name in files if not name.startswith(NUMERICAL)}
    assert len(files) <= 22, sorted(files)
    assert len(beyond) <= 16, sorted(beyond)


def test_a_result_is_data():
    """It imports nothing at once but the claim, checks of arguments and text."""
    from tests import arrows

    at_once, _ = arrows.drawn()["results"]
    assert at_once <= {"_text", "_validate", "claims", "exceptions"}
