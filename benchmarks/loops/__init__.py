"""Correct training loops and leaking ones, by trainer: what `benchmarks.clean_runs` counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import askgauss as ag
from askgauss.checks.gate import leading
from askgauss.results import AuditResult, Status

__all__ = [
    "CANARY_SEED",
    "DELTA",
    "Leak",
    "Outcome",
    "Run",
    "declared",
    "outcome",
    "poisson_claim",
    "repeated_claim",
    "unlikely",
]

DELTA = 1e-5
# Canaries are part of what JAX compiles: with the same ones, all runs of a kind share it.
CANARY_SEED = 0


@dataclass(frozen=True)
class Outcome:
    """What an audit said of a run.

    Attributes:
        verdict: Its verdict.
        failed: Checks that failed.
        warned: Checks that warned.
        lead: The check that the result leads with.
        untested: Parts of the training that the result lists as not tested.
    """

    verdict: str
    failed: tuple[str, ...]
    warned: tuple[str, ...]
    lead: str
    untested: tuple[str, ...] = ()


Run = Callable[[int], AuditResult]


@dataclass(frozen=True)
class Leak:
    """A loop that leaks.

    Attributes:
        run: Trains once, from a seed; gives what the audit, or the monitor, said.
        checks: Each of them names the leak rightly.
        part: The part of the training that it is in: where it is not found, the result has to
            list this part as not tested.
    """

    run: Callable[[int], AuditResult | Outcome]
    checks: Sequence[str]
    part: str = ""


def outcome(result: AuditResult | Outcome) -> Outcome:
    """What a result says, in few words."""
    if isinstance(result, Outcome):
        return result
    first = leading(result.findings)

    def of(status: Status) -> tuple[str, ...]:
        return tuple(item.check for item in result.findings if item.status is status)

    return Outcome(
        "none" if result.verdict is None else result.verdict.value,
        of(Status.FAIL),
        of(Status.WARN),
        "" if first is None else first.check,
        tuple(part.name for part in result.scope if part.status == "not tested"),
    )


def unlikely(seed: int) -> int:
    """A seed for the noise that nobody would try: one that is guessed is itself a leak."""
    return 0x7F4A7C15 + 1000 * seed


def declared(callback: Any) -> contextlib.AbstractContextManager[None]:
    """What is written in here is declared to the audit of a callback; of None, to nobody."""
    if callback is None or callback.audit is None:
        return contextlib.nullcontext()
    made: contextlib.AbstractContextManager[None] = callback.audit.postprocessing()
    return made


def poisson_claim(noise: float, rate: float, steps: int) -> ag.PrivacyClaim:
    """What the accountant says of Poisson sampling, a thousandth above it."""
    from askgauss.accounting import dpsgd_epsilon

    epsilon = dpsgd_epsilon(noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=DELTA)
    return ag.PrivacyClaim(epsilon=1.001 * epsilon, delta=DELTA)


def repeated_claim(noise: float, times: int) -> ag.PrivacyClaim:
    """What a record spends that is in so many steps, and it is known in which."""
    return poisson_claim(noise, 1.0, times)
