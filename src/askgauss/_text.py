"""Text from outside, made safe to show: names in files may be written to forge or to command."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["one_line", "printable"]

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
