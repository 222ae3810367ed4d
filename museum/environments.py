"""Environments: a folder of packages for every release, put before those of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from museum.catalogue import Release

_ROOT = Path(__file__).parent.parent
ENVIRONMENTS = Path(os.environ.get("MUSEUM_ENVIRONMENTS") or _ROOT / ".venvs" / "museum")
_SECONDS = 300.0


class UnavailableError(Exception):
    """A release cannot be installed: it is gone, its hash differs, or there is no network."""


def install(releases: tuple[Release, ...]) -> list[Path]:
    """Install what is missing; the folder of each release.

    A release is installed without its dependencies, by name and hash, into a folder that exists
    only once the installation is complete.

    Raises:
        UnavailableError: One cannot be installed.
    """
    return [_install_one(release) for release in releases]


def _install_one(release: Release) -> Path:
    target = ENVIRONMENTS / f"{release.name}-{release.version}-{release.sha256[:12]}"
    if target.is_dir():
        return target
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ENVIRONMENTS, prefix=".part-") as part:
        wanted, built = Path(part) / "wanted.txt", Path(part) / "packages"
        wanted.write_text(f"{release.name}=={release.version} --hash=sha256:{release.sha256}\n")
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--target", str(built)),
            *("--requirement", str(wanted)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"{release.label}: no answer in {_SECONDS:.0f} seconds"
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
            raise UnavailableError(f"{release.label}: {lines[-1] if lines else 'not installed'}")
        shutil.move(built, target)
    return target


def environment(installed: list[Path]) -> dict[str, str]:
    """The variables of a process that imports from these folders first, then from the project."""
    path = os.pathsep.join(str(item) for item in (*installed, _ROOT / "src", _ROOT))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
