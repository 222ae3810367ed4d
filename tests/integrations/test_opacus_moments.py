"""An observer of an Opacus run: called at every moment in order, kept in checkpoints, undone."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("opacus")

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit, canary_audit
from askgauss.integrations.opacus.private_step import Observer
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STEP = ["resuming", "sum_ready", "before_noise", "after_noise", "stepping", "released", "inform"]


class Notes(Observer):
    """Writes down every moment it is called at."""

    key = "notes"
    state_type = tuple[str, ...]

    def __init__(self):
        self.called = []

    def state(self):
        return tuple(self.called)

    def load(self, state, arrays, steps):
        self.called = [*state, f"loaded after {steps}"]

    def facts(self, recorded):
        return {"unit": "user"}

    def notes(self, recorded):
        return ["an observer was here."]


def _noting(name):
    def moment(self, *arguments, **options):
        self.called.append(name)

    moment.__name__ = name
    return moment


for _name in ("attach", "completed", *STEP):
    setattr(Notes, _name, _noting(_name))


@pytest.fixture
def notes(monkeypatch):
    """The observers that audits get beside their own, newest last."""
    made, own = [], canary_audit.make_observers

    def make(*arguments, **options):
        made.append(Notes())
        return (*own(*arguments, **options), made[-1])

    monkeypatch.setattr(canary_audit, "make_observers", make)
    return made


def test_an_observer_follows_every_moment_and_is_kept(notes):
    run = make_run()
    audit = CanaryAudit(run.optimizer, run.loader, seed=0, monitor=ag.Monitor())
    with audit:
        run.train()
    steps = audit.steps
    assert notes[0].called == ["resuming", "attach", *STEP * steps, "completed", "inform"]
    facts = audit.transcript().facts
    assert facts.unit == "user"
    assert "an observer was here." in facts.notes
    other = CanaryAudit(run.optimizer, run.loader, seed=0, monitor=ag.Monitor())
    other.load_state_dict(audit.state_dict())
    assert notes[1].called == [*notes[0].called, f"loaded after {steps}"]


def test_observers_take_the_arguments_of_the_protocol():
    own = make_run()
    audit = CanaryAudit(own.optimizer, own.loader, model=own.model, seed=0)
    keys = [item.key for item in audit._observers if item.key]
    assert len(set(keys)) == len(keys)
    moments = {name for name, item in vars(Observer).items() if callable(item)}
    for item in audit._observers:
        for name in moments & set(vars(type(item))):
            theirs = inspect.unwrap(getattr(type(item), name))
            if callable(theirs):
                expected = list(inspect.signature(getattr(Observer, name)).parameters)
                assert list(inspect.signature(theirs).parameters) == expected, (item, name)
