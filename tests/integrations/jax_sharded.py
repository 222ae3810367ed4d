"""Two CPU devices: parameters spread over them, and the same readings as on one."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import askgauss as ag
from tests.integrations import jax_runs as runs

STEPS = 30


def main() -> None:
    devices = jax.devices()
    assert len(devices) == 2, devices
    mesh = Mesh(np.array(devices), ("rows",))
    spread = NamedSharding(mesh, PartitionSpec("rows"))
    totals = []
    for placed in (False, True):
        audit = runs.make()
        transformation = audit.wrap(runs.gaussian())
        weights, updates = runs.params(), runs.gradient()
        if placed:
            weights, updates = jax.device_put((weights, updates), spread)
        state = jax.jit(transformation.init)(weights)
        step = jax.jit(transformation.update)
        for _ in range(STEPS):
            released, state = step(updates, state)
        if placed:
            assert len(released["weight"].sharding.device_set) == 2, released["weight"].sharding
        totals.append(audit.transcript(state).canaries.total)
        result = audit.result(state, claim=runs.claim(steps=STEPS))
        assert result.verdict in (ag.Verdict.CONSISTENT, ag.Verdict.INCONCLUSIVE), result.reason
    assert np.allclose(*totals, atol=1e-3)
    print(f"same on {len(devices)} devices")


if __name__ == "__main__":
    main()
