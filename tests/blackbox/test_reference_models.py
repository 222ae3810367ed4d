"""Reference models: trained by the user's function, resumable, never on the audited membership."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from askgauss.blackbox import train_references
from askgauss.blackbox.membership import Membership
from askgauss.exceptions import InvalidArgumentError, RecordingError

MEMBERSHIP = Membership.randomised(audited=range(40, 140), seed=1)


def trained(indices, seed):
    """A model that remembers: 1 for what it was trained on, and two values of a population."""
    values = np.isin(MEMBERSHIP.ids, indices).astype(float)
    return np.concatenate([values, [0.25, float(len(indices))]])


def test_training_sets_are_balanced_and_hold_the_background():
    found = train_references(trained, MEMBERSHIP, records=300, count=6)
    assert (found.audited == found.inside).all()
    assert (found.inside.sum(axis=0) == 3).all()
    assert found.population.shape == (6, 2)
    assert (found.population[:, 1] == 200 + found.inside.sum(axis=1)).all()


def test_the_audited_membership_is_not_looked_at():
    other = Membership.randomised(audited=range(40, 140), seed=2)
    first, second = (
        train_references(trained, membership, records=300, count=4, seed=9)
        for membership in (MEMBERSHIP, other)
    )
    assert (first.inside == second.inside).all()


def test_a_stopped_run_is_resumed(tmp_path):
    calls = []

    def fails_at_third(indices, seed):
        calls.append(seed)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return trained(indices, seed)

    with pytest.raises(KeyboardInterrupt):
        train_references(fails_at_third, MEMBERSHIP, records=300, count=5, folder=tmp_path)
    found = train_references(fails_at_third, MEMBERSHIP, records=300, count=5, folder=tmp_path)
    assert len(calls) == 6
    assert len(set(calls)) == 5
    assert (found.audited == found.inside).all()
    again = train_references(pytest.fail, MEMBERSHIP, records=300, count=5, folder=tmp_path)
    assert (again.inside == found.inside).all()


def test_processes_give_the_same(tmp_path):
    with ProcessPoolExecutor(2) as pool:
        found = train_references(trained, MEMBERSHIP, records=300, count=4, seed=3, pool=pool.map)
    plain = train_references(trained, MEMBERSHIP, records=300, count=4, seed=3)
    assert (found.values == plain.values).all()


def test_folders_of_another_audit_are_refused(tmp_path):
    train_references(trained, MEMBERSHIP, records=300, count=4, folder=tmp_path)
    with pytest.raises(RecordingError):
        train_references(trained, MEMBERSHIP, records=300, count=6, folder=tmp_path)
    with pytest.raises(RecordingError):
        train_references(trained, MEMBERSHIP, records=301, count=4, folder=tmp_path)


def test_functions_that_return_something_else_are_refused():
    with pytest.raises(InvalidArgumentError, match="audited"):
        train_references(lambda indices, seed: [0.0], MEMBERSHIP, records=300)
    with pytest.raises(InvalidArgumentError):
        train_references(trained, MEMBERSHIP, records=300, count=1)
