"""How often a correct run ends in VIOLATION or INVALID: at most at the gate error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from askgauss import accounting
from askgauss.auditing import audit
from askgauss.claims import PrivacyClaim
from askgauss.results import Status, Verdict
from askgauss.simulation import Fault, simulate_dpsgd, simulate_scores
from askgauss.simulation.mechanism import gaussian

DELTA = 1e-5
ALARMS = Verdict.VIOLATION, Verdict.INVALID

# A part replaced by itself: several tensors, and a clip norm other than one.
UNBROKEN = Fault(
    name="unbroken",
    description="Nothing is wrong.",
    part="noise",
    broken=gaussian,
    finding="",
    verdict=Verdict.CONSISTENT,
    several_tensors=True,
    clip_norm=3.0,
)


@dataclass(frozen=True)
class Setting:
    """A correct run, that claims exactly what it does."""

    present: int
    absent: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    canaries: str = "own coin"
    several_tensors: bool = False

    @property
    def claim(self) -> PrivacyClaim:
        run = {
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
        }
        return PrivacyClaim(
            epsilon=accounting.dpsgd_epsilon(**run, delta=DELTA), delta=DELTA, **run
        )

    @property
    def truth(self) -> float:
        return self.claim.epsilon

    @property
    def leaking(self) -> None:
        """Power is compared elsewhere."""

    def draw(self, generator: np.random.Generator) -> object:
        return self.data(int(generator.integers(1 << 60)))

    def data(self, seed: int) -> object:
        options = {
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "noise_multiplier": self.noise_multiplier,
            "present": self.present,
            "absent": self.absent,
            "seed": seed,
        }
        if self.canaries == "scores":
            return simulate_scores(**options)
        fault = UNBROKEN if self.several_tensors else None
        return simulate_dpsgd(**options, canaries=self.canaries, fault=fault)

    def __str__(self) -> str:
        kind = f"{self.canaries}{', several tensors' if self.several_tensors else ''}"
        return (
            f"{self.present} / {self.absent} canaries, {self.steps} steps, "
            f"q={self.sampling_rate:g}, sigma={self.noise_multiplier:g}, {kind}"
        )


SETTINGS = (
    Setting(100, 100, 60, 0.1, 1.0),
    Setting(60, 140, 40, 0.2, 2.0, several_tensors=True),
    Setting(60, 60, 60, 0.2, 1.0, canaries="data path"),
    Setting(40, 40, 30, 0.3, 1.5, canaries="spread"),
    Setting(25, 25, 12, 0.5, 3.0, canaries="data path"),
    Setting(100, 100, 2500, 0.08, 2.5, canaries="scores"),
    Setting(100, 1000, 20, 0.05, 1.0, canaries="scores"),
)


@dataclass
class Alarms:
    """What happened in so many correct runs."""

    audits: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    @property
    def false(self) -> int:
        return sum(self.verdicts[verdict.value] for verdict in ALARMS)

    def allowed(self, gate_error: float, family_error: float = 1e-4) -> int:
        """The most that chance allows, were the gate exactly at its error."""
        return int(stats.binom.isf(family_error, self.audits, gate_error))


def audits(setting: Setting, count: int, gate_error: float, seed: int) -> Iterator[object]:
    claim = setting.claim
    for index in range(count):
        yield audit(setting.data(seed + index), claim=claim, gate_error=gate_error)


def count_alarms(setting: Setting, count: int, gate_error: float, seed: int = 0) -> Alarms:
    """Audit correct runs, and count alarms and the checks that failed or warned."""
    alarms = Alarms(audits=count)
    for result in audits(setting, count, gate_error, seed):
        alarms.verdicts[result.verdict.value] += 1
        alarms.checks.update(
            item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)
        )
    return alarms
