"""A method replaced for a while: put back as it was, and quiet where another wrapped it."""

from __future__ import annotations

import pytest

from askgauss.integrations.attachment import Attachment, PatchedMethod


class Owner:
    def method(self, value):
        return value


def doubled(original, value):
    return 2 * original(value)


@pytest.mark.parametrize("replaced", [False, True], ids=["of the class", "of the object"])
def test_what_was_there_before_is_there_again(replaced):
    owner = Owner()
    if replaced:
        owner.method = lambda value: value + 100
    before = dict(vars(owner))
    expected = owner.method(3)
    with Attachment() as attachment:
        attachment.patch(PatchedMethod(owner, "method", doubled))
        assert owner.method(3) == 2 * expected
    assert vars(owner) == before
    assert owner.method(3) == expected


def test_a_wrapper_around_it_stays_and_reaches_the_original():
    owner = Owner()
    patched = PatchedMethod(owner, "method", doubled)
    patched.put()
    inner = owner.method
    owner.method = lambda value: inner(value) + 1
    assert owner.method(3) == 7
    assert not patched.remove()
    assert owner.method(3) == 4


def test_removing_twice_changes_nothing_more():
    owner = Owner()
    patched = PatchedMethod(owner, "method", doubled)
    patched.put()
    assert patched.remove()
    assert patched.remove()
    assert vars(owner) == {}
