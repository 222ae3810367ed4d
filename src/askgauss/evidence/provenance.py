"""Where a result comes from: the file, its digest, when, with what, and from which sources.

Nothing in it names a host, a user or a folder: it goes wherever the result goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path, PureWindowsPath
from typing import IO

from askgauss import __version__
from askgauss.results import AuditResult

__all__ = ["DigestingStream", "Provenance", "file_digest", "provenance", "with_provenance"]

_DISTRIBUTIONS = ("numpy", "scipy", "dp-accounting", "torch", "opacus", "jax", "jax-privacy")
# Where CI systems say which commit a job is of.
_COMMIT_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT")
_HEXADECIMAL = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a result comes from.

    Attributes:
        file: Name of the file that was audited, without its folder; empty where there was none.
        sha256: Its digest.
        audited: When, in UTC.
        command: The command line, as it was typed but for the folders of files.
        commit: The commit of the sources it was run in, where those tell.
        environment: Versions, the operating system and the kind of processor.
    """

    file: str = ""
    sha256: str = ""
    audited: str = ""
    command: str = ""
    commit: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        digest = f"sha256 {self.sha256}" if self.sha256 else ""
        commit = f"commit {self.commit[:12]}" if self.commit else ""
        parts = (self.file, digest, f"audited {self.audited}" if self.audited else "", commit)
        return ", ".join(part for part in parts if part)


def provenance(
    *,
    file: str | os.PathLike[str] | None = None,
    sha256: str | None = None,
    command: Sequence[str] = (),
    commit: str | None = None,
) -> Provenance:
    """What can be said now of where a result comes from.

    Args:
        file: The file that was audited; only its name is kept.
        sha256: Its digest, where it is known; read from the file if not given.
        command: The command line; of paths only the last part is kept.
        commit: The commit of the sources; looked for in the environment of a CI job and in the
            working folder if not given.

    Examples:
        >>> provenance(sha256="ab" * 32, file="runs/transcript.npz").file
        'transcript.npz'
    """
    path = None if file is None else Path(file)
    if path is not None and sha256 is None:
        sha256 = file_digest(path)
    return Provenance(
        file="" if path is None else path.name,
        sha256=sha256 or "",
        audited=_now(),
        command=shlex.join(map(_without_folder, command)),
        commit=_commit() if commit is None else commit,
        environment=_environment(),
    )


def _without_folder(argument: str) -> str:
    """An argument that names a file, or an option that does, without where it lies."""
    option, equals, value = "", "", argument
    if argument.startswith("-"):
        option, equals, value = argument.partition("=")
    # Of either kind of system: folders tell names of people and of projects.
    name = PureWindowsPath(value).name if {*value} & {"/", "\\"} else ""
    return f"{option}{equals}{name}" if name else argument


def with_provenance(result: AuditResult, source: Provenance) -> AuditResult:
    """The result, saying where it comes from."""
    return replace(result, provenance=source)


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class DigestingStream:
    """A binary stream that is read once, and remembers the digest of what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._digest = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        """SHA-256 of what was read so far."""
        return self._digest.hexdigest()


def _now() -> str:
    """The time in UTC; that of SOURCE_DATE_EPOCH for builds that are to repeat."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(given) if given.isdecimal() and len(given) < 12 else time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _environment() -> dict[str, str]:
    found = {
        "askgauss": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
    }
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _commit() -> str:
    """The commit of a CI job, or of the working folder; empty where neither is known."""
    for name in _COMMIT_VARIABLES:
        if _is_commit(os.environ.get(name, "")):
            return os.environ[name]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / ".git").exists():
                return _head(folder / ".git")
    return ""


def _head(git: Path) -> str:
    """The commit that is checked out, read from git's own files."""
    if git.is_file():  # a worktree: the file says where its folder is
        git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head if _is_commit(head) else ""
    name = head.removeprefix("ref:").strip()
    common = git
    if (git / "commondir").is_file():
        common = git / (git / "commondir").read_text(encoding="utf-8").strip()
    for place in (git / name, common / name):
        if place.is_file():
            found = place.read_text(encoding="utf-8").strip()
            return found if _is_commit(found) else ""
    packed = common / "packed-refs"
    for line in packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else ():
        found, _, of = line.partition(" ")
        if of == name and _is_commit(found):
            return found
    return ""


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and _HEXADECIMAL.issuperset(text)
