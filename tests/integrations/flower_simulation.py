"""An audited strategy in Flower's own simulation: its engine, its nodes, its client processes.

Prints what was found as JSON. Run by test_flower.py, in Flower's environment.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

import askgauss as ag
from askgauss.integrations.flower import audited
from askgauss.sampling import EveryStep

ROUNDS, NODES, CLAIMED = 12, 4, 2.0


def main(noise: float) -> None:
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        old = message.content["arrays"].to_numpy_ndarrays()
        rng = np.random.default_rng()
        new = [(array + rng.normal(0, 0.02, array.shape)).astype("f4") for array in old]
        content = RecordDict(
            {"arrays": ArrayRecord(new), "metrics": MetricRecord({"num-examples": 10})}
        )
        return Message(content=content, reply_to=message)

    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.npz"

        @server.main()
        def serve(grid, context):
            wrapped = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=NODES)
            strategy = audited(
                DifferentialPrivacyServerSideFixedClipping(
                    wrapped, noise_multiplier=noise, clipping_norm=1.0, num_sampled_clients=NODES
                ),
                present=100,
                absent=900,
                seed=1,
            )
            strategy.start(grid, ArrayRecord([np.zeros(1400, "f4")]), num_rounds=ROUNDS)
            strategy.transcript().save(saved)

        run_simulation(
            server,
            client,
            num_supernodes=NODES,
            backend_config={
                "client_resources": {"num_cpus": 1},
                "init_args": {"num_cpus": 2, "include_dashboard": False},
            },
        )
        transcript = ag.Transcript.load(saved)
    claim = ag.PrivacyClaim(
        epsilon=EveryStep().epsilon(noise_multiplier=CLAIMED, steps=ROUNDS, delta=1e-5),
        delta=1e-5,
        noise_multiplier=CLAIMED,
        steps=ROUNDS,
        sampling=EveryStep(),
        unit="user",
    )
    result = ag.audit(transcript, claim=claim)
    failed = [item.check for item in result.findings if item.status.value == "fail"]
    print(json.dumps({"rounds": transcript.number_of_steps, "failed": failed}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
