"""Numbers for people, and text from outside made safe to show in a terminal or a CI log."""

from __future__ import annotations

import math
import re
import unicodedata

__all__ = [
    "confidence_in_words",
    "number",
    "of_the_claim",
    "one_line",
    "printable",
    "whole_percent",
]

# Control characters, text that runs backwards, half characters, private and unknown ones, and what
# some readers take for the end of a line.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# What the runner of a CI job takes for a command: at the start of a line, indented or not, or
# anywhere in it. A word may come to stand at the start where text is wrapped.
_COMMANDS = re.compile(r"(?<!\S):(?=:)|#(?=#(?:\[|vso\[))")


def printable(text: str) -> str:
    r"""The text with everything that could command a terminal spelled out; lines stay lines.

    Examples:
        >>> printable("layer\x1b[31m\u202e\n")
        'layer\\x1b[31m\\u202e\n'
    """
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if character != "\n" and unicodedata.category(character) in _UNPRINTABLE
        else character
        for character in text
    )


def one_line(text: object, longest: int | None = None) -> str:
    r"""Text as one printable line that neither a terminal nor a CI job obeys.

    Args:
        text: What somebody else may have written.
        longest: Where to cut it.

    Examples:
        >>> one_line("weight\n::error::CONSISTENT")
        'weight : :error::CONSISTENT'
    """
    shown = _COMMANDS.sub(r"\g<0> ", printable(" ".join(str(text).split())))
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"


def number(value: float | None) -> str:
    """A number for a person: four significant digits, infinity in words."""
    if value is None:
        return "none"
    return "infinity" if math.isinf(value) else f"{value:.4g}"


def confidence_in_words(confidence: float) -> str:
    """A confidence for a person, which is never said to be 1.

    Examples:
        >>> confidence_in_words(0.95), confidence_in_words(1.0 - 2e-7)
        ('0.95', '1 - 2e-07')
    """
    return f"{confidence:g}" if confidence <= 0.9999 else f"1 - {1.0 - confidence:.2g}"


def whole_percent(share: float) -> str:
    """A share for a person, rounded down: what falls short of all of it is not 100%."""
    if math.isinf(share):
        return "infinity"
    return f"{math.floor(100.0 * share)}%" if share < 10.0 else f"{share:,.3g} times"


def of_the_claim(epsilon: float, claimed: float) -> str:
    """How much of the claim a bound is: a share, or how many times."""
    share = whole_percent(epsilon / claimed)
    return f"{share} the claim" if share.endswith("times") else f"{share} of the claim"
