"""Environments: a folder of packages for every release, put before those of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from museum.exhibits import Release

ROOMS = Path(os.environ.get("MUSEUM_ROOMS") or Path(__file__).parent.parent / ".venvs" / "museum")
_SECONDS = 300.0


class UnavailableError(Exception):
    """A release cannot be had here: it is gone, its hash differs, or there is no network."""


def furnish(releases: tuple[Release, ...]) -> list[Path]:
    """Install what is not there yet, and say where everything is.

    A release is installed without its dependencies, by name and hash, into a folder that exists
    only when it is whole.

    Raises:
        UnavailableError: One cannot be installed.
    """
    return [_room(release) for release in releases]


def _room(release: Release) -> Path:
    room = ROOMS / f"{release.name}-{release.version}-{release.sha256[:12]}"
    if room.is_dir():
        return room
    ROOMS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOMS, prefix=".part-") as part:
        wanted = Path(part) / "wanted.txt"
        wanted.write_text(f"{release.name}=={release.version} --hash=sha256:{release.sha256}\n")
        built = Path(part) / "room"
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *(
                "--no-deps",
                "--require-hashes",
                "--target",
                str(built),
                "--requirement",
                str(wanted),
            ),
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
        shutil.move(built, room)
    return room


def environment(rooms: list[Path]) -> dict[str, str]:
    """The variables of a process that sees these rooms first, then the project."""
    root = Path(__file__).parent.parent
    path = os.pathsep.join(str(item) for item in (*rooms, root / "src", root))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
