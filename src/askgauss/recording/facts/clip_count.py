"""Facts of adaptive clipping: the count of unclipped records, released beside the gradients."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.exceptions import FileFormatError

__all__ = ["ClipCountFacts", "noise_of_both"]


def noise_of_both(noise_multiplier: float, deviation: float) -> float:
    """The noise multiplier of gradients and count in one; a record moves the latter by a half."""
    if noise_multiplier <= 0.0 or deviation <= 0.0:
        return 0.0
    return float((noise_multiplier**-2 + (2.0 * deviation) ** -2) ** -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCountFacts:
    """What was seen of the noisy count that moves the clip norm.

    Attributes:
        releases: How often a noisy count was used.
        shown: How often it moved the clip norm within its limits, so that the norm tells it.
        read: How often its noise could be read.
        square: Sum of squares of that noise, in units of its stated deviation.
        deviation: The largest deviation stated for it, in records.
        noise_multiplier: The largest noise multiplier that gradients and count have together, as
            stated.
    """

    releases: int = 0
    shown: int = 0
    read: int = 0
    square: float = 0.0
    deviation: float = 0.0
    noise_multiplier: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("releases", "shown", "read", "square", "deviation", "noise_multiplier"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.clip_count.{name} >= 0, got it below.")
        if max(self.shown, self.read) > self.releases:
            raise FileFormatError(
                f"Expected facts.clip_count.releases >= {max(self.shown, self.read)}, got "
                f"{self.releases}."
            )
