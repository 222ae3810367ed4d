"""The run that shows a fault: one size for all, so that power means the same in every row."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from askgauss import accounting
from askgauss.auditing import audit
from askgauss.checks.gate import leading, ordered
from askgauss.claims import PrivacyClaim
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import AuditResult, Status
from askgauss.simulation import (
    Fault,
    TreeFault,
    simulate_dpftrl,
    simulate_dpsgd,
)

DELTA = 1e-5
PRESENT = ABSENT = 500
STEPS = 400
SAMPLING_RATE = 0.05
NOISE_MULTIPLIER = 1.0

TREE_EPSILON = 4.0
TREE_CANARIES = 300
TREE_STEPS = 64
TREE_RESTART = 16


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    present: int = PRESENT
    absent: int = ABSENT
    steps: int = STEPS


DEFAULT = Size()


def simulated(fault: Fault | None, seed: int, size: Size = DEFAULT, canaries=None) -> Transcript:
    return simulate_dpsgd(
        steps=size.steps,
        sampling_rate=rate_of(fault, size),
        noise_multiplier=NOISE_MULTIPLIER,
        present=size.present,
        absent=size.absent,
        seed=seed,
        fault=fault,
        canaries=canaries,
    )


def rate_of(fault: Fault | None, size: Size = DEFAULT) -> float:
    if fault is None or fault.expected_batch is None:
        return SAMPLING_RATE
    return fault.expected_batch / size.present


def claim_of(fault: Fault | None, size: Size = DEFAULT) -> PrivacyClaim:
    """What the run would have if nothing were wrong with it."""
    return _claim(rate_of(fault, size), size.steps)


@functools.cache
def _claim(rate: float, steps: int) -> PrivacyClaim:
    run = {"noise_multiplier": NOISE_MULTIPLIER, "sampling_rate": rate, "steps": steps}
    return PrivacyClaim(epsilon=accounting.dpsgd_epsilon(**run, delta=DELTA), delta=DELTA, **run)


def audited(fault: Fault | None, seed: int, size: Size = DEFAULT) -> AuditResult:
    return audit(simulated(fault, seed, size), claim=claim_of(fault, size))


def headline(result: AuditResult) -> str:
    """The finding that a result names first: its lead, or the first warning where none failed."""
    lead = leading(result.findings)
    if lead is not None:
        return lead.check if result.reason.startswith(f"{lead.check}: ") else ""
    shown = [item for item in ordered(result.findings) if item.status is Status.WARN]
    return shown[0].check if shown else ""


def names(result: AuditResult, fault: Fault | TreeFault) -> bool:
    """Whether the headline of a result names the fault."""
    return headline(result) in (fault.finding, *getattr(fault, "also", ()))


def simulated_tree(fault: TreeFault | None, seed: int) -> LinearTranscript:
    restart = TREE_RESTART if fault is not None and fault.restarts else None
    noise = TreePlan(steps=TREE_STEPS, restart_every=restart).noise_multiplier(
        epsilon=TREE_EPSILON, delta=DELTA
    )
    return simulate_dpftrl(
        steps=TREE_STEPS,
        noise_multiplier=noise,
        present=TREE_CANARIES,
        absent=TREE_CANARIES,
        seed=seed,
        restart_every=restart,
        fault=fault,
    )


def audited_tree(fault: TreeFault | None, seed: int) -> AuditResult:
    claim = PrivacyClaim(epsilon=TREE_EPSILON, delta=DELTA)
    return audit(simulated_tree(fault, seed), claim=claim)


def found(result: AuditResult) -> set[str]:
    """The checks that failed or warned."""
    return {item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)}
