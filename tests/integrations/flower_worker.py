"""Rounds of Flower's own strategies with canary clients; prints what was found as JSON.

Run by the Python of an environment that has Flower: ``make flower``.
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
from flwr.app import ArrayRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as results
from flwr.serverapp import Grid
from flwr.serverapp import strategy as messages
from flwr.supercore.task_identity import TaskIdentity

import askgauss as ag
from askgauss.exceptions import UnsupportedError
from askgauss.integrations.flower import audited
from askgauss.sampling import EveryStep

CLIENTS, ROUNDS, NOISE, CLIP = 30, 40, 2.0, 0.1
SHAPES = ((50, 15), (750,))


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    np.random.seed(1)  # noqa: NPY002  (Flower draws its noise from it)
    rng = np.random.default_rng(0)
    equal, unequal = (lambda: 100), (lambda: int(rng.integers(1, 500)))
    fixed = {"noise_multiplier": NOISE, "clipping_norm": CLIP, "num_sampled_clients": CLIENTS}
    moving = {
        "noise_multiplier": 1.0,
        "num_sampled_clients": CLIENTS,
        "initial_clipping_norm": CLIP,
    }
    name = "DifferentialPrivacyServerSide{}Clipping"
    found = {}
    for place, run in ((results, run_results), (messages, run_messages)):
        for kind, options, examples in (
            ("Fixed", fixed, equal),
            ("Fixed", fixed, unequal),
            ("Adaptive", moving, equal),
        ):
            made = getattr(place, name.format(kind))(place.FedAvg(), **options)
            key = f"{place.__name__} {kind} {'equal' if examples is equal else 'unequal'}"
            monitor = ag.Monitor(on_alarm=lambda alarm: None)
            strategy = audited(made, present=50, absent=950, monitor=monitor)
            found[key] = told(run(strategy, examples, rng), made)
    client_side = results.DifferentialPrivacyClientSideFixedClipping(results.FedAvg(), **fixed)
    try:
        audited(client_side)
    except UnsupportedError as error:
        found["client side"] = str(error)
    for kind, options in (("Fixed", fixed), ("Adaptive", moving)):
        for side in ("Client", "Server"):
            made = getattr(messages, f"DifferentialPrivacy{side}Side{kind}Clipping")(
                messages.FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS), **options
            )
            monitor = ag.Monitor(on_alarm=lambda alarm: None)
            strategy = audited(made, present=50, absent=950, monitor=monitor)
            found[f"loop {side} {kind}"] = told(run_loop(strategy, side, kind, rng), made)
    json.dump(found, sys.stdout)


class InProcess(Grid):
    """A grid whose nodes are called in this process: what a simulation sends them, without Ray."""

    def __init__(self, app):
        self.app = app
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in range(1, CLIENTS + 1)
        }

    def send_and_receive(self, messages, *, timeout=None):
        return [self.app(item, self.contexts[item.metadata.dst_node_id]) for item in messages]

    def get_node_ids(self):
        return list(self.contexts)

    def set_run(self, run):
        raise NotImplementedError

    run = property()

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError


def run_loop(strategy, side, kind, rng):
    """Flower's own loop and client app: configure, train, clip where clients do, aggregate."""
    mods = {"Fixed": fixedclipping_mod, "Adaptive": adaptiveclipping_mod}
    app = ClientApp(mods=[mods[kind]] if side == "Client" else [])

    @app.train()
    def train(message, context):
        old = message.content["arrays"].to_numpy_ndarrays()
        content = RecordDict(
            {
                "arrays": ArrayRecord(next(answers(old, rng))),
                "metrics": MetricRecord({"num-examples": 100, "loss": 0.5}),
            }
        )
        return Message(content=content, reply_to=message)

    # What a simulation says of the process that it starts.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    start = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
    strategy.start(InProcess(app), start, num_rounds=ROUNDS)
    return strategy


def answers(current, rng):
    size = sum(array.size for array in current)
    scale = CLIP / np.sqrt(size)
    for _ in range(CLIENTS):
        factor = rng.uniform(0.3, 2.0) * scale
        yield [(old + rng.normal(0, factor, old.shape)).astype(np.float32) for old in current]


def run_results(strategy, examples, rng):
    current = [np.zeros(shape, np.float32) for shape in SHAPES]
    for number in range(1, ROUNDS + 1):
        # What configure_fit does first; it would ask a client manager for clients next.
        strategy.strategy.current_round_params = current
        fits = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(answer), examples(), {}))
            for answer in answers(current, rng)
        ]
        parameters, _ = strategy.aggregate_fit(number, fits, [])
        current = parameters_to_ndarrays(parameters)
    return strategy


def run_messages(strategy, examples, rng):
    current = [np.zeros(shape, np.float32) for shape in SHAPES]
    for number in range(1, ROUNDS + 1):
        strategy.strategy.current_arrays = ArrayRecord(current)
        replies = [
            Message(
                metadata=Metadata(1, str(client), client, 0, "", "", 0.0, 1e6, "train"),
                content=RecordDict(
                    {
                        "arrays": ArrayRecord(answer),
                        "metrics": MetricRecord({"num-examples": examples(), "loss": 0.5}),
                    }
                ),
            )
            for client, answer in enumerate(answers(current, rng))
        ]
        arrays, _ = strategy.aggregate_train(number, replies)
        current = arrays.to_numpy_ndarrays()
    return strategy


def told(strategy, made):
    noise = float(made.noise_multiplier)
    law = EveryStep()
    claim = ag.PrivacyClaim(
        epsilon=law.epsilon(noise_multiplier=noise, steps=ROUNDS, delta=1e-5),
        delta=1e-5,
        noise_multiplier=noise,
        steps=ROUNDS,
        sampling=law,
        unit="user",
    )
    result = strategy.result(claim=claim)
    return {
        "verdict": result.verdict.value,
        "claimed": claim.epsilon,
        "epsilon": result.epsilon_lower,
        "sampled": made.num_sampled_clients,
        "flagged": sorted(
            item.check for item in result.findings if item.status.value in ("fail", "warn")
        ),
        "measured": {item.check: item.measured for item in result.findings},
        "watched": strategy.monitor.steps,
        "alarm": None if strategy.monitor.alarm is None else strategy.monitor.alarm.cause,
    }


if __name__ == "__main__":
    main()
