"""A Flower server that saves its model and its audit, may be killed, and goes on where it was.

Run by the Python of an environment that has Flower: ``flower_restarts.py FOLDER KIND ORDER KILL``.
``ORDER`` is what is saved first, ``model`` or ``audit``; in round ``KILL`` the process dies after
that, or before either if it is no round in which they are saved. Everything random comes from the
number of the round. It prints what came out, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as results
from flwr.serverapp import strategy as messages

from askgauss.exceptions import RecordingError
from askgauss.integrations.flower import audited

CLIENTS, ROUNDS, CLIP = 30, 12, 0.1
SHAPES = ((20, 15), (300,))


def made(kind: str):
    place = results if kind == "results" else messages
    inner = place.DifferentialPrivacyServerSideFixedClipping(
        place.FedAvg(), noise_multiplier=2.0, clipping_norm=CLIP, num_sampled_clients=CLIENTS
    )
    return audited(inner, present=20, absent=100, seed=3, monitor=True)


def aggregated(strategy, kind: str, number: int, current):
    """One round, as Flower's loop hands it to a strategy."""
    rng = np.random.default_rng([3, number])
    np.random.seed(100 + number)  # noqa: NPY002  (Flower draws its noise from it)
    answers = [
        [(old + rng.normal(0, 0.01, old.shape)).astype(np.float32) for old in current]
        for _ in range(CLIENTS)
    ]
    if kind == "results":
        strategy.strategy.current_round_params = current
        fits = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(answer), 100, {}))
            for answer in answers
        ]
        return parameters_to_ndarrays(strategy.aggregate_fit(number, fits, [])[0])
    strategy.strategy.current_arrays = ArrayRecord(current)
    replies = [
        Message(
            metadata=Metadata(1, str(client), client, 0, "", "", 0.0, 1e6, "train"),
            content=RecordDict(
                {
                    "arrays": ArrayRecord(answer),
                    "metrics": MetricRecord({"num-examples": 100}),
                }
            ),
        )
        for client, answer in enumerate(answers)
    ]
    return strategy.aggregate_train(number, replies)[0].to_numpy_ndarrays()


def main(folder: Path, kind: str, order: str, kill: int) -> dict[str, object]:
    strategy, current, done = made(kind), [np.zeros(shape, np.float32) for shape in SHAPES], 0
    model, audit = folder / "model.npz", folder / "audit.npz"
    if model.exists():
        with np.load(model) as saved:
            current, done = [saved["0"], saved["1"]], int(saved["done"])
    if audit.exists():
        strategy.load(audit)
    for number in range(done + 1, ROUNDS + 1):
        current = aggregated(strategy, kind, number, current)
        if number % 3:
            if number == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            continue
        saves = {
            "model": lambda number=number, current=current: np.savez(
                model, done=number, **{str(index): item for index, item in enumerate(current)}
            ),
            "audit": lambda: strategy.save(audit),
        }
        for name in sorted(saves, key=lambda name: name != order):
            saves[name]()
            if number == kill:
                os.kill(os.getpid(), signal.SIGKILL)
    transcript = strategy.transcript()
    scores = np.round(transcript.scores().score, 6)
    return {
        "rounds": strategy.rounds,
        "watched": strategy.monitor.steps,
        "scores": hashlib.sha256(scores.tobytes()).hexdigest(),
        "probes": transcript.facts.rounds.probes.unchecked,
        "resumed": transcript.facts.resumed,
    }


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    place, kind, order, kill = sys.argv[1:]
    try:
        found: dict[str, object] = main(Path(place), kind, order, int(kill))
    except RecordingError as error:
        found = {"refused": str(error)}
    json.dump(found, sys.stdout)
