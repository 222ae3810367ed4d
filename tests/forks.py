"""Programs that train, each in a process of its own that has torch and Opacus when it begins.

Importing them takes longer than most of these programs run. One process imports them once, waits
(``python -m tests.forks``), and forks for every program.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# Of time on the clock, on a machine that may be busy.
SECONDS = 900

_spent = 0.0


def ran(
    program: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a process that is killed has the negative signal as its code."""
    (done,) = _ran([(program, arguments, environment or {})], cwd)
    return done


def ran_together(
    programs: Sequence[tuple[Path, Sequence[str], Mapping[str, str]]], cwd: Path | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run programs, with their arguments and environments, at the same time."""
    return _ran(programs, cwd)


def ran_as_ranks(
    program: Path, ranks: int, *arguments: str, cwd: Path | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run so many ranks of a program, as torchrun would on one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return _ran([(program, arguments, shared | item) for item in own], cwd)


def cpu_seconds() -> float:
    """Processor time of the waiting process and of every program that has ended."""
    return _spent


def _ran(
    programs: Sequence[tuple[Path, Sequence[str], Mapping[str, str]]], cwd: Path | None
) -> list[subprocess.CompletedProcess[str]]:
    global _spent
    if not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    with tempfile.TemporaryDirectory() as folder:
        request = [
            {
                "arguments": [str(program), *arguments],
                "environment": {**os.environ, **environment},
                "cwd": str(cwd or Path.cwd()),
                "outputs": [str(Path(folder, f"{name}-{index}")) for name in ("out", "error")],
            }
            for index, (program, arguments, environment) in enumerate(programs)
        ]
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        _spent = answer["cpu_seconds"]
        return [
            subprocess.CompletedProcess(
                item["arguments"], code, *(Path(name).read_text() for name in item["outputs"])
            )
            for item, code in zip(request, answer["codes"], strict=True)
        ]


@functools.cache
def _server() -> subprocess.Popen[str]:
    import atexit

    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forks"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # It ends with its input, and is waited for.
    atexit.register(server.communicate)
    return server


def main() -> None:
    """Fork for every list of programs that comes in; say how they ended."""
    import opacus  # noqa: F401
    import torch

    import askgauss.integrations.opacus  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        children = [_forked(item) for item in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps({"codes": codes, "cpu_seconds": sum(os.times()[:4])}), flush=True)


def _forked(item: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(SECONDS)
        os.environ.clear()
        os.environ.update(item["environment"])
        os.chdir(item["cwd"])
        for number, name in enumerate((os.devnull, *item["outputs"])):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
            os.dup2(os.open(name, flags, 0o600), number)
        sys.argv = item["arguments"]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it was, it is this program's end
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
