"""A process with a recorder that does what it is told, line by line, and says what came of it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.sampling import CyclicPoisson

CANARIES = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)


def make(kind: str) -> Any:
    """A recorder; after ``store`` comes the file to keep its steps in."""
    if kind == "linear":
        return ag.LinearRecorder(
            CANARIES, TreePlan(steps=64, estimator="honaker", release="prefixes")
        )
    if kind == "sampled":
        strategy = BandedStrategy.toeplitz([1.0, 0.5], 64)
        sampling = CyclicPoisson(rate=0.5, cycle=2)
        return ag.LinearRecorder.sampled(CANARIES, strategy, sampling=sampling)
    store = kind.removeprefix("store ") if kind.startswith("store ") else None
    return ag.Recorder(CANARIES, sampling_rate=0.5, store=store)


def fork(recorder: Any, outlive: bool) -> str:
    """A child with a copy of the recorder, as a worker of a data loader is."""
    child = os.fork()
    if child == 0:
        if outlive:
            time.sleep(60)
        del recorder
        os._exit(0)
    if not outlive:
        os.waitpid(child, 0)
    return str(child)


def obey(recorder: Any, command: str) -> tuple[Any, str]:
    name, _, rest = command.partition(" ")
    if name == "make":
        return make(rest), "done"
    if name == "step":
        recorder.sample()
        recorder.observe(np.random.default_rng().normal(size=40), background=np.zeros(40))
    elif name == "finish":
        recorder.save(rest, finished=True)
    elif name == "fork":
        return recorder, fork(recorder, rest == "to outlive")
    elif name == "drop":
        return None, "done"
    else:
        getattr(recorder, name)(*filter(None, [rest]))
    return recorder, "done"


if __name__ == "__main__":
    recorder: Any = None
    for line in sys.stdin:
        try:
            recorder, said = obey(recorder, line.strip())
        except RecordingError as error:
            said = f"refused: {error}"
        print(said, flush=True)
