"""Run the benchmarks: ``python -m benchmarks [name ...]``. Prints what was measured."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time

NAMES = (
    "core",
    "files",
    "gaussian",
    "auditors",
    "tree",
    "opacus_overhead",
    "jax_audit",
    "monitor",
    "replay",
    "trainers",
    "scatter",
)


def main(names: list[str]) -> None:
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}")
    for name in names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n{name}: {(module.__doc__ or '').splitlines()[0]}")
        started = time.perf_counter()
        for what, measured in module.rows():
            print(f"  {what:<76} {measured}", flush=True)
        print(f"  ({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main(sys.argv[1:])
