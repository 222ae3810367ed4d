"""A promise made before the first step: what the audit would plant, and what was claimed.

An audit that chose its canaries, or its claim, after the run was seen would prove nothing. So their
digest is published before: a hash of a nonce, the seed, who is present, and the claim. It gives
nothing away, and whoever is later shown the nonce can tell that nothing was exchanged.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _plain
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError

__all__ = ["Commitment", "commit"]

_FORM = "askgauss commitment 1"


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
    def claim(self) -> dict[str, Any] | None:
        """The claim that was committed to, as plain values; None if there was none.

        Raises:
            FileFormatError: The statement is none.
        """
        claim = self._content().get("claim")
        return claim if isinstance(claim, dict) else None

    def claims(self, claim: PrivacyClaim | None) -> bool:
        """Whether this is the claim that was committed to."""
        mine = self.claim
        if mine is None or claim is None:
            return mine is None and claim is None
        plain = _plain.to_plain(claim)
        return all(plain.get(name) == value for name, value in mine.items())

    def fault(self, seed: int | None, member: NDArray[np.bool_]) -> str:
        """Why seed and coins are not what was committed to; empty where they are."""
        if _digest(self.nonce, self.statement) != self.digest:
            return "the digest is not that of its nonce and statement"
        content = self._content()
        if content.get("seed") != seed:
            return "the seed is another one"
        if content.get("coins") != _coins(member):
            return "other canaries are present"
        return ""

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self.statement)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"Expected the statement of a commitment: {error}.") from error
        if not isinstance(content, dict) or content.get("form") != _FORM:
            raise FileFormatError(f"Expected the statement of a commitment of form {_FORM!r}.")
        return content


def commit(
    *, seed: int, member: NDArray[np.bool_], claim: PrivacyClaim | None, nonce: str | None = None
) -> Commitment:
    """Commit to seed, coins and claim.

    Args:
        seed: Root of the canaries' random choices.
        member: Who is present.
        claim: What the run claims; None leaves it open.
        nonce: Where all processes of a run must share one; drawn if not given.
    """
    nonce = secrets.token_hex(16) if nonce is None else nonce
    content = {
        "form": _FORM,
        "seed": int(seed),
        "coins": _coins(member),
        "claim": None if claim is None else _plain.to_plain(claim),
    }
    statement = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Commitment(digest=_digest(nonce, statement), nonce=nonce, statement=statement)


def _digest(nonce: str, statement: str) -> str:
    return hashlib.sha256(f"{nonce}\n{statement}".encode()).hexdigest()


def _coins(member: NDArray[np.bool_]) -> str:
    bits = np.packbits(np.asarray(member, dtype=np.bool_)).tobytes()
    return hashlib.sha256(f"{member.size}:".encode() + bits).hexdigest()
