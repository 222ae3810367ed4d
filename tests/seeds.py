"""Seeds of test runs that come out the same every time."""

from __future__ import annotations

__all__ = ["unlikely"]


def unlikely(number: int) -> int:
    """A seed that nobody would try, a different one for every number.

    A run whose noise starts from a small seed is at fault: an audit tries those, and says so.
    """
    return 0x1E3779B97F4A7C15 + number
