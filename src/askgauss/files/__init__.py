"""Files: archives, the JSON codec, schemas, locks, checkpoints, and what an audit reads."""

import platform
from importlib import metadata

from askgauss import __version__

__all__ = ["installed_versions"]

_DISTRIBUTIONS = ("numpy", "scipy", "dp-accounting", "torch", "opacus", "scikit-learn")


def installed_versions() -> dict[str, str]:
    """Versions by name, read without importing anything; what is not installed is left out.

    Examples:
        >>> list(installed_versions())[:3]
        ['askgauss', 'python', 'numpy']
    """
    found = {"askgauss": __version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
