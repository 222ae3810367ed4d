"""A run is a folder: what was asked, on what machine, checkpoints, results. One process at a time.

::

    config.json        what was asked for; a folder made for something else is refused
    environment.json   versions and machine
    checkpoints/       the last whole one
    results/           what came out
    runs/              the audit of each run trained here, for ``askgauss report``
    lock               held while a process uses the folder; let go of however that ends
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from askgauss._version import __version__
from askgauss.exceptions import FileFormatError
from askgauss.files import atomic, codec
from askgauss.files.lock import RunFolderBusyError, locked

__all__ = ["RunFolder", "RunFolderBusyError", "environment", "locked", "process_rank"]

_KIND = "askgauss-run"
_SCHEMA = 2
_CONTENT_KIND = "askgauss-run-content"


def environment() -> dict[str, Any]:
    """Versions and machine, as far as they can change a number."""
    import importlib.metadata

    versions = {}
    for name in ("numpy", "scipy", "torch", "kymatio", "opacus", "dp-accounting", "ray"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "askgauss": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


# Calibrated noise is known to seven digits; beyond them it depends on the number of threads.
_SAME = 1e-6


def _same(found: Any, asked: Any) -> bool:
    """Whether two plain values ask for the same, up to digits that no calibration settles."""
    if isinstance(found, float) and isinstance(asked, float):
        return math.isclose(found, asked, rel_tol=_SAME, abs_tol=0.0)
    if isinstance(found, list) and isinstance(asked, list):
        return len(found) == len(asked) and all(map(_same, found, asked))
    if isinstance(found, dict) and isinstance(asked, dict):
        return found.keys() == asked.keys() and all(
            _same(found[name], asked[name]) for name in asked
        )
    return type(found) is type(asked) and bool(found == asked)


def process_rank() -> int:
    """Which process of a ``torchrun`` this is; 0 without one."""
    return int(os.environ.get("RANK", "0"))


class RunFolder:
    """One run's folder; enter it to use it.

    Args:
        path: The folder; made if it is not there.
        config: What the run is asked to do. A folder that was made for something else is refused;
            entering one that was made for this takes over its numbers to the last digit.

    Raises:
        FileFormatError: The folder belongs to another run.
        RunFolderBusyError: On entering, if another process uses it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with RunFolder(Path(place, "run"), {"seed": 1}) as folder:
        ...         folder.write_json("results/answer.json", {"epsilon": 2.0})
        ...     RunFolder(Path(place, "run"), {"seed": 1}).read_json("results/answer.json")
        {'epsilon': 2.0}
    """

    def __init__(self, path: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.config = codec.to_plain(dict(config))
        self._held: Any = None

    def __enter__(self) -> RunFolder:
        for part in ("checkpoints", "results"):
            (self.path / part).mkdir(parents=True, exist_ok=True)
        self._held = locked(self.path / "lock")
        self._held.__enter__()
        try:
            self._settle()
        except BaseException:
            self._held.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *reason: Any) -> None:
        self._held.__exit__(None, None, None)

    def _settle(self) -> None:
        path = self.path / "config.json"
        if path.exists():
            found = codec.loads(atomic.read_bytes(path, regular=True), _KIND, _SCHEMA).get("config")
            if not isinstance(found, dict):
                raise FileFormatError(f"{str(path)!r} is damaged. Use another folder.")
            other = [
                name
                for name in sorted({*self.config, *found})
                if not _same(found.get(name), self.config.get(name))
            ]
            if other:
                raise FileFormatError(
                    f"{str(self.path)!r} belongs to a run with another {', '.join(other)}. Use "
                    "another folder, or delete this one."
                )
            # To the last digit what the run was started with, so that it goes on as it began.
            self.config = found
            return
        atomic.write_text(self.path / "environment.json", json.dumps(environment(), indent=2))
        atomic.write_text(path, codec.dumps(_KIND, _SCHEMA, {"config": self.config}))

    def write_json(self, name: str, content: Any) -> None:
        """Plain values under a name in the folder, whole or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = codec.dumps(_CONTENT_KIND, _SCHEMA, {"content": codec.to_plain(content)})
        atomic.write_text(target, text)

    def read_json(self, name: str, hint: Any = Any) -> Any:
        """What `write_json` wrote; None if it did not.

        Args:
            name: The name it was written under.
            hint: The type that it is.

        Raises:
            FileFormatError: The file is damaged.
        """
        target = self.path / name
        if not target.exists():
            return None
        try:
            text = atomic.read_bytes(target, regular=True)
            found = codec.loads(text, _CONTENT_KIND, _SCHEMA)["content"]
            return codec.from_plain(hint, found, name)
        except (FileFormatError, KeyError) as error:
            raise FileFormatError(f"{str(target)!r} is damaged: {error} Delete it.") from error

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Write a checkpoint of several files; it counts once all are there, and the older goes."""
        place = self.path / "checkpoints"
        part = place / f"part-{step}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part)
        target = place / f"step-{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        for old in place.iterdir():
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def last_checkpoint(self) -> tuple[int, Path] | None:
        """The step and folder of the last whole checkpoint."""
        # As `checkpoint` names them, and nothing that only begins so.
        found = sorted((self.path / "checkpoints").glob("step-" + 8 * "[0-9]"))
        return (int(found[-1].name.removeprefix("step-")), found[-1]) if found else None
