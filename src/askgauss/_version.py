"""The version of askgauss, and of what is installed next to it; imports nothing of the package."""

from __future__ import annotations

__all__ = ["__version__", "installed_versions"]

__version__ = "0.2.0"

_DISTRIBUTIONS = ("numpy", "scipy", "dp-accounting", "torch", "opacus", "scikit-learn")


def installed_versions() -> dict[str, str]:
    """Versions by name, read without importing anything; what is not installed is left out.

    Examples:
        >>> list(installed_versions())[:3]
        ['askgauss', 'python', 'numpy']
    """
    import platform
    from importlib import metadata

    found = {"askgauss": __version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
