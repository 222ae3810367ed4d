"""Small JAX runs: what adds the noise is the library's own, the gradients are made up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import askgauss as ag
from askgauss.integrations.jax import Audit
from museum.outcomes import Outcome, of_audit

DELTA = 1e-5
SHAPES = {"bias": (60,), "weight": (60, 40)}
# Nobody would try it.
KEY = 1_871_236_554


def params() -> dict[str, Any]:
    """Two tensors."""
    return {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def gradients(*batch: int) -> dict[str, Any]:
    """Gradients for them, by example where a batch size is given."""
    return {
        name: jax.random.normal(jax.random.key(1), (*batch, *shape))
        for name, shape in SHAPES.items()
    }


def canaries(present: int = 200, absent: int = 500) -> ag.DiracCanaries:
    """Canaries over both tensors."""
    sizes = [int(leaf.size) for leaf in jax.tree.leaves(params())]
    return ag.DiracCanaries(present=present, absent=absent, tensors=sizes, seed=3)


def outcome(
    audit: Audit, privatizer: Any, given: Any, *, steps: int, claim: ag.PrivacyClaim
) -> Outcome:
    """Run some steps under scan, and audit them."""
    audited = audit.wrap(privatizer)

    def step(state: Any, _: None) -> tuple[Any, None]:
        return audited.update(given, state)[1], None

    state = jax.jit(lambda: jax.lax.scan(step, audited.init(params()), None, length=steps)[0])()
    scores = audit.transcript(state).scores()
    return of_audit(audit.result(state, claim=claim), scores=scores)
