"""What an Opacus accountant counted while an audit was attached, without training anything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("opacus")

from opacus.accountants import RDPAccountant

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.ledger import Ledger
from askgauss.integrations.opacus.run_description import find_accountant


def ledger_of(accountant):
    return Ledger(SimpleNamespace(accountant=accountant))


def stepped(accountant, count):
    for _ in range(count):
        accountant.step(noise_multiplier=1.5, sample_rate=0.1)


def test_steps_from_before_and_after_are_left_out():
    accountant = RDPAccountant()
    ledger = ledger_of(accountant)
    stepped(accountant, 5)
    with Attachment() as attachment:
        ledger.attach(attachment)
        ledger.sum_ready()
        stepped(accountant, 3)
    stepped(accountant, 2)
    assert ledger.state().entries == ((1.5, 0.1, 3),)
    assert ledger.state().total == 10


@pytest.mark.parametrize("replaced", [False, True], ids=["of the class", "of the object"])
def test_reads_of_epsilon_are_noted_until_the_method_is_put_back(replaced):
    accountant = RDPAccountant()
    stepped(accountant, 4)
    if replaced:
        accountant.get_epsilon = lambda delta: 7.0
    before = dict(vars(accountant))
    ledger = ledger_of(accountant)
    with Attachment() as attachment:
        ledger.attach(attachment)
        epsilon = accountant.get_epsilon(delta=1e-5)
    accountant.get_epsilon(delta=1e-6)
    assert ledger.state().reads == ((1e-5, epsilon, 4),)
    assert vars(accountant) == before


def test_an_accountant_is_found_behind_hooks_that_call_its_own():
    accountant = RDPAccountant()
    hook = accountant.get_optimizer_hook_fn(sample_rate=0.1)

    def chained(optimizer):
        hook(optimizer)

    def chained_again(optimizer):
        chained(optimizer)

    for outermost in (hook, chained, chained_again):
        assert find_accountant(SimpleNamespace(step_hook=outermost), None) == (accountant, 0.1)
    assert find_accountant(SimpleNamespace(step_hook=None), None) == (None, None)
