"""Versions of what is installed, read without importing any of it."""

from __future__ import annotations

import platform
from importlib import metadata

from askgauss._version import __version__

__all__ = ["versions"]

_DISTRIBUTIONS = ("numpy", "scipy", "dp-accounting", "torch", "opacus", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions by name; what is not installed is left out.

    Examples:
        >>> list(versions())[:3]
        ['askgauss', 'python', 'numpy']
    """
    found = {"askgauss": __version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
