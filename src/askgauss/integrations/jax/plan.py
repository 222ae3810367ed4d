"""What jax_privacy and dp-accounting say of a run: its sampling, its noise, its epsilon."""

from __future__ import annotations

from typing import Any

import dp_accounting
import numpy as np

from askgauss import _validate
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    MinSeparation,
    Poisson,
    Scheme,
    TruncatedPoisson,
)

__all__ = ["accounted", "claim_of", "planned_run", "scheme_of"]

_Relation = dp_accounting.NeighboringRelation


def planned_run(plan: Any, *, strategy: Any = None, records: int | None = None) -> dict[str, Any]:
    """What an execution plan of jax_privacy, or its configuration, says: arguments of `Audit`.

    Args:
        plan: A ``DPExecutionPlan``, or a ``BandMFExecutionPlanConfig``, which knows its strategy.
        strategy: The strategy, where records take turns and a plan does not say it.
        records: Number of records, where the scheme needs it.

    Raises:
        InvalidArgumentError: It is no plan, or its strategy is not known.
        UnsupportedError: It protects the replacement of a record.
    """
    config = plan if hasattr(plan, "plan") else None
    plan = plan if config is None else config.plan
    if not hasattr(plan, "batch_selection_strategy") or not hasattr(plan, "dp_event"):
        raise _validate.fail(
            "plan", type(plan).__name__, "to be an execution plan of jax_privacy, or its config"
        )
    selection = plan.batch_selection_strategy
    steps = int(selection.iterations)
    if config is not None and strategy is None:
        strategy = _planned_strategy(config, steps)
        records = config.num_examples if records is None else records
        if config.accountant.neighboring_relation is _Relation.REPLACE_ONE:
            raise UnsupportedError(
                "A canary is there or is not, and the plan protects the replacement of a record, "
                "which moves the sum twice as far: make Audit() yourself with twice the plan's "
                "noise multiplier."
            )
    if strategy is None and getattr(selection, "cycle_length", 1) > 1:
        raise _validate.fail(
            "strategy",
            None,
            "to be given, as records take turns and a plan does not say how noise is correlated",
            "Pass the BandMFExecutionPlanConfig instead of its plan, or strategy=[1.0] where noise "
            "is independent.",
        )
    found = accounted(plan.dp_event)
    return {
        "sampling": scheme_of(selection, records),
        "clip_norm": float(plan.clipped_grad(lambda: None).l2_norm_bound),
        "noise_multiplier": None if found is None else found["noise_multiplier"],
        "strategy": strategy,
        "steps": steps,
    }


def _planned_strategy(config: Any, steps: int) -> Any:
    coefficients = np.asarray(config.strategy, dtype=np.float64)
    if coefficients.size == 1 and not config.column_normalize:
        return None if coefficients[0] == 1.0 else coefficients
    if not config.column_normalize:
        return coefficients
    if coefficients.size == steps:
        matrix = MatrixMechanism.toeplitz(coefficients, steps).strategy
        return matrix / np.linalg.norm(matrix, axis=0)
    columns = np.tile(coefficients, (steps, 1))
    for band in range(1, coefficients.size):
        columns[steps - band :, band] = 0.0
    return columns / np.linalg.norm(columns, axis=1, keepdims=True)


def scheme_of(given: Any, records: int | None = None) -> Scheme:
    """A batch selection strategy of jax_privacy as a sampling scheme; a scheme as it is.

    Args:
        given: The strategy.
        records: Number of records, where batches of fixed or largest size are drawn from them; of
            users where a strategy selects those.

    Raises:
        InvalidArgumentError: It is no such strategy, or ``records`` is needed.
        UnsupportedError: It draws in a way that has no scheme.
    """
    if isinstance(given, Scheme):
        return given
    kind = type(given).__name__
    if kind == "CyclicPoissonSampling":
        return _cyclic(given, records)
    if kind == "UserSelectionStrategy":
        # Users are the records: each joins a step by the strategy below, with some of its examples.
        return scheme_of(given.base_strategy, records)
    if kind == "BallsInBinsSampling":
        # Bins are drawn once and kept in every round.
        return BallsInBins(bins=int(given.cycle_length), redrawn=False)
    if kind == "FixedBatchSampling":
        if given.replace:
            raise UnsupportedError("Batches drawn with replacement have no scheme here.")
        return FixedSize(batch=int(given.batch_size), records=_records(kind, records))
    if kind == "BMinSepSampling":
        if given.truncated_batch_size is not None:
            raise UnsupportedError("Truncated batches of separated records have no scheme here.")
        return MinSeparation(
            separation=int(given.min_sep),
            rate=float(given.sampling_prob),
            warm_start=bool(given.warm_start),
        )
    raise _validate.fail(
        "sampling",
        kind,
        "to be a scheme of askgauss.sampling or a batch selection strategy of jax_privacy",
        "Say how batches are drawn: sampling=Poisson(rate=...).",
    )


def _cyclic(given: Any, records: int | None) -> Scheme:
    rate, cycle = float(given.sampling_prob), int(given.cycle_length)
    if given.truncated_batch_size is not None:
        if cycle > 1:
            raise UnsupportedError("Truncated batches of groups that take turns have no scheme.")
        return TruncatedPoisson(
            rate=rate,
            cap=int(given.truncated_batch_size),
            records=_records(type(given).__name__, records),
        )
    return Poisson(rate=rate) if cycle == 1 else CyclicPoisson(rate=rate, cycle=cycle)


def _records(kind: str, records: int | None) -> int:
    if records is None:
        raise _validate.fail(
            "records", None, f"to say how many records {kind} draws from", "Give records=."
        )
    return records


def accounted(event: Any) -> dict[str, Any] | None:
    """What an event says of noise, sampling and steps, as a claim names them; None if nothing."""
    steps = 1
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, steps = event.event, int(event.count)
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        event, rate = event.event, float(event.sampling_probability)
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        return None
    return {
        "noise_multiplier": float(event.noise_multiplier),
        "sampling_rate": rate,
        "steps": steps,
    }


def claim_of(event: Any, delta: float) -> PrivacyClaim:
    """The claim that an event comes to at a delta, by dp-accounting's PLD accountant.

    Args:
        event: A ``dp_accounting.DpEvent``, such as ``plan.dp_event``.
        delta: The delta of the claim.
    """
    _validate.probability(delta=delta)
    if not isinstance(event, dp_accounting.DpEvent):
        raise _validate.fail("event", type(event).__name__, "to be a dp_accounting.DpEvent")
    # Neighbours with a record zeroed out: truncated sampling is accounted for no others.
    accountant = dp_accounting.pld.PLDAccountant(_Relation.REPLACE_SPECIAL)
    epsilon = float(accountant.compose(event).get_epsilon(delta))
    return PrivacyClaim(epsilon=epsilon, delta=delta, **(accounted(event) or {}))
