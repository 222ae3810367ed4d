"""An interrupt at any line of entering, a step or leaving leaves the training as it was."""

from __future__ import annotations

import contextlib

import pytest

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus import CanaryAudit
from tests.integrations import interrupts, trainer_interrupts
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("kind", "phase", "stride"),
    [
        ("rows", "enter", 37),
        ("rows", "step", 149),
        ("rows", "leave", 31),
        ("ghost", "step", 151),
        ("ghost", "leave", 41),
        ("examples", "leave", 41),
        ("files", "enter", 7),
    ],
)
def test_an_interrupt_leaves_nothing_behind(kind, phase, stride):
    """A sample of the lines; ``python -m tests.integrations.interrupts`` takes them all."""
    count, failed = interrupts.sweep(kind, phase, stride)
    assert count >= 4
    assert failed == {}


def test_the_first_line_of_leaving_is_not_the_audits():
    """Between the end of a block and the undo of everything no line of the package runs."""
    run = make_run()
    struck, left = interrupts.interrupted("rows", run, None, "leave", 1)
    assert struck.startswith("canary_audit.py")
    assert left == []


def test_an_undo_runs_whole_and_whatever_others_raise():
    done = []

    def interrupted_once():
        done.append("begun")
        if done.count("begun") == 1:
            raise KeyboardInterrupt
        done.append("ended")

    def fails():
        raise ValueError("twice")

    attachment = Attachment()
    for undo in (lambda: done.append("last"), fails, interrupted_once):
        attachment.undo(undo)
    with pytest.raises(ValueError, match="twice"):
        attachment.close()
    assert done == ["begun", "begun", "ended", "last", "last"]


def test_an_audit_may_be_entered_through_a_stack():
    run = make_run()
    before = interrupts.state_of(run)
    with contextlib.ExitStack() as stack:
        audit = stack.enter_context(CanaryAudit(run.optimizer, data_loader=run.loader, seed=0))
        run.train()
    assert audit.steps == 8
    assert interrupts.state_of(run) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("trainer", "phase", "line"),
    [
        ("lightning", "enter", 200),
        ("lightning", "step", 100),
        ("lightning", "leave", 1),
        ("transformers", "enter", 200),
        ("transformers", "step", 100),
        ("transformers", "leave", 1),
    ],
)
def test_a_trainer_that_is_interrupted_lets_go(trainer, phase, line):
    """A later step neither inserts nor observes; `trainer_interrupts` takes more lines."""
    pytest.importorskip(trainer)
    struck, left = trainer_interrupts.interrupted(trainer, phase, line)
    assert struck
    assert left == []
