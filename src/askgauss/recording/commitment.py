"""A promise made before the first step: what the audit would plant, and what was claimed.

An audit that chose its canaries, or its claim, after the run was seen would prove nothing. So their
digest is published before: a hash of a nonce, the seed, who is present, and the claim. It gives
nothing away, and whoever is later shown the nonce can tell that nothing was exchanged.

What has to be in it is a schema, `Statement`. Text that says less is not a commitment.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError
from askgauss.files import codec

__all__ = ["Commitment", "Statement", "commit"]

_FORM = "askgauss commitment 1"
_HEXADECIMAL = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(codec.Facts):
    """What a commitment commits to; all of it has to be there.

    Attributes:
        form: Which schema this is.
        seed: Root of the canaries' random choices.
        coins: SHA-256 of who is present.
        claim: What the run claims, with all its fields; None where it had no claim.
    """

    form: str
    # Not in the repr: whoever knows it knows the canaries.
    seed: int = field(repr=False)
    coins: str
    claim: PrivacyClaim | None

    def text(self) -> str:
        """The one spelling that is hashed."""
        return json.dumps(codec.to_plain(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A digest, and what opens it.

    Attributes:
        digest: SHA-256 of nonce and statement; what is published before the first step.
        nonce: Random text that keeps the digest from being guessed.
        statement: Seed, coins and claim, as the JSON text that was hashed.
    """

    digest: str
    # Not in the repr: they name the seed.
    nonce: str = field(repr=False)
    statement: str = field(repr=False)

    @property
    def claim(self) -> PrivacyClaim | None:
        """The claim that was committed to; None if there was none.

        Raises:
            FileFormatError: As for `opened`.
        """
        return self.opened().claim

    def opened(self) -> Statement:
        """What was committed to.

        Raises:
            FileFormatError: The statement is not one in the spelling that is hashed, or the nonce
                or the digest is not one.
        """
        for name, digits in (("digest", 64), ("nonce", 32)):
            if not _is_hexadecimal(getattr(self, name), digits):
                raise _not_one(f"its {name} is not {digits} hexadecimal digits")
        try:
            statement: Statement = codec.from_plain(
                Statement, codec.parse(self.statement), "statement"
            )
        except FileFormatError as error:
            raise _not_one(f"its statement cannot be read: {error}") from error
        if statement.form != _FORM:
            raise _not_one(f"its form is {statement.form[:40]!r}, not {_FORM!r}")
        if not _is_hexadecimal(statement.coins, 64):
            raise _not_one("its coins are not 64 hexadecimal digits")
        # With a field more or less, or another spelling, it would be another text.
        if statement.text() != self.statement:
            raise _not_one("its statement is not in the spelling that is hashed")
        return statement

    def fault(self, seed: int | None, member: NDArray[np.bool_] | None) -> str:
        """Why seed and coins are not what was committed to; empty where they are.

        Args:
            seed: Root of the canaries' random choices.
            member: Who is present; None where that is not known of all of them.

        Raises:
            FileFormatError: As for `opened`.
        """
        statement = self.opened()
        if _digest(self.nonce, self.statement) != self.digest:
            return "the digest is not that of its nonce and statement"
        if statement.seed != seed:
            return "the seed is another one"
        if member is not None and statement.coins != _coins(member):
            return "other canaries are present"
        return ""


def commit(
    *, seed: int, member: NDArray[np.bool_], claim: PrivacyClaim | None, nonce: str | None = None
) -> Commitment:
    """Commit to seed, coins and claim.

    Args:
        seed: Root of the canaries' random choices.
        member: Who is present.
        claim: What the run claims; None leaves it open.
        nonce: 32 hexadecimal digits, where all processes of a run must share them; drawn if not
            given.
    """
    nonce = secrets.token_hex(16) if nonce is None else nonce
    statement = Statement(form=_FORM, seed=int(seed), coins=_coins(member), claim=claim).text()
    return Commitment(digest=_digest(nonce, statement), nonce=nonce, statement=statement)


def _not_one(why: str) -> FileFormatError:
    return FileFormatError(f"This is not a commitment: {why}.".replace("..", "."))


def _is_hexadecimal(text: str, digits: int) -> bool:
    return len(text) == digits and _HEXADECIMAL.issuperset(text)


def _digest(nonce: str, statement: str) -> str:
    return hashlib.sha256(f"{nonce}\n{statement}".encode()).hexdigest()


def _coins(member: NDArray[np.bool_]) -> str:
    bits = np.packbits(np.asarray(member, dtype=np.bool_)).tobytes()
    return hashlib.sha256(f"{member.size}:".encode() + bits).hexdigest()
