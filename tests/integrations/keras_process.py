"""A process with Keras' JAX backend, which Keras takes once, from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def printed(*arguments: str) -> dict[str, Any]:
    """What ``keras_worker.py`` prints."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("keras_worker.py")), *arguments],
        env={**os.environ, "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
