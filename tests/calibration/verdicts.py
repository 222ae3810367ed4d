"""Whole verdicts on correct runs, and on leaks: what ``audit`` says, by cause, and its power.

A *cell* describes a correct run: how its data is drawn, what it claims, and the truth of what its
canaries show. `tally` calls ``audit`` on it many times and counts

- false alarms, VIOLATION and INVALID, by what caused them, at two gate errors;
- bounds above the truth.

`noticed` counts the leaks that alarm. A cell needs `draw`, `claim` and `truth`; `powers` compares
the power of those that also have `leaking`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy import stats
from scipy.special import expit

import askgauss as ag
from askgauss import accounting
from askgauss.auditing import audit
from askgauss.auditors.auditor import Auditor
from askgauss.exceptions import AskGaussError
from askgauss.results import AuditResult, Consequence, Status, Verdict
from askgauss.scores import CanaryScores
from askgauss.stats import gaussian
from tests.calibration.grid import PAGE_ERROR, beyond, suspicious
from tests.laplace import Laplace

FAMILY_ERROR = 1e-4
ALTERNATIVE = 1.25
GATE, STRICT = 0.01, 0.001
# Rates of alarms are stated with an upper limit of this confidence.
LIMIT = 0.99
ALARMS = Verdict.VIOLATION, Verdict.INVALID


class Case(Protocol):
    """A correct run that can be drawn again and again."""

    @property
    def claim(self) -> ag.PrivacyClaim:
        """What the run claims, which is true."""

    @property
    def truth(self) -> float:
        """The epsilon, at the claim's delta, that no bound on this data should exceed."""

    @property
    def leaking(self) -> Case | None:
        """The same with a true epsilon of 1.25 times the claim; None where it is not defined."""

    def draw(self, generator: np.random.Generator) -> Any:
        """The data of one run."""


@dataclass(frozen=True)
class SampledScores:
    """Scores of DP-SGD: binomial inclusions and Gaussian noise, as Model 1 has them.

    Attributes:
        present: Present canaries.
        absent: Absent canaries.
        steps: Steps.
        sampling_rate: Sampling rate.
        epsilon: What the run claims, and, by the accountant, has.
        delta: At this delta.
        told: Whether the scores know the steps and the rate.
        leak: The true epsilon over the claim.
        decimals: Scores are rounded to so many, in units of the noise.
    """

    present: int
    absent: int
    steps: int
    sampling_rate: float
    epsilon: float
    delta: float = 1e-5
    told: bool = True
    leak: float = 1.0
    decimals: int | None = None

    @property
    def claim(self) -> ag.PrivacyClaim:
        return ag.PrivacyClaim(epsilon=self.epsilon, delta=self.delta)

    @property
    def _signal(self) -> float:
        return accounting.dpsgd_signal_to_noise(
            epsilon=self.leak * self.epsilon,
            delta=self.delta,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
        )

    @property
    def truth(self) -> float:
        return ag.ScoreLaw(
            steps=self.steps,
            sampling_rate=self.sampling_rate,
            noise_multiplier=1.0 / self._signal,
        ).epsilon_at(self.delta)

    @property
    def leaking(self) -> SampledScores:
        return replace(self, leak=ALTERNATIVE)

    def __str__(self) -> str:
        more = "" if self.told else ", rate and steps not told"
        if self.decimals is not None:
            more += f", {self.decimals} decimals"
        return (
            f"{self.present} / {self.absent}, T={self.steps}, q={self.sampling_rate:g}, "
            f"epsilon {self.epsilon:g}, delta {self.delta:g}{more}"
        )

    def draw(self, generator: np.random.Generator) -> CanaryScores:
        counts = generator.binomial(self.steps, self.sampling_rate, self.present)
        jump = self._signal / math.sqrt(self.steps)
        present = jump * counts + generator.standard_normal(self.present)
        absent = generator.standard_normal(self.absent)
        if self.decimals is not None:
            present, absent = present.round(self.decimals), absent.round(self.decimals)
        facts: dict[str, Any] = {"noise": "gaussian"}
        if self.told:
            facts = {"steps": self.steps, "sampling_rate": self.sampling_rate}
        return CanaryScores.from_groups(present=present, absent=absent, **facts)


@dataclass(frozen=True)
class PlainScores:
    """One release of a known law, handed over as two groups of fixed size.

    Attributes:
        law: "gaussian", "laplace", "randomised response" or "discrete gaussian".
        present: Present canaries.
        absent: Absent canaries.
        epsilon: What the release claims, and has.
        delta: At this delta.
        noise: What the scores declare.
        leak: The true epsilon over the claim.
    """

    law: str
    present: int
    absent: int
    epsilon: float
    delta: float = 1e-5
    noise: str | None = None
    leak: float = 1.0

    @property
    def claim(self) -> ag.PrivacyClaim:
        return ag.PrivacyClaim(epsilon=self.epsilon, delta=self.delta)

    @property
    def truth(self) -> float:
        """The claim; what rounding to whole numbers adds to a Gaussian leak is below 1 %."""
        return self.epsilon * (1.01 if self.law == "discrete gaussian" else 1.0)

    @property
    def leaking(self) -> PlainScores:
        return replace(self, leak=ALTERNATIVE)

    def __str__(self) -> str:
        more = "" if self.delta == 1e-5 else f", delta {self.delta:g}"
        more += ", declared Gaussian" if self.noise else ""
        return f"{self.present} / {self.absent}, {self.law}, epsilon {self.epsilon:g}{more}"

    def draw(self, generator: np.random.Generator) -> CanaryScores:
        member = np.arange(self.present + self.absent) < self.present
        epsilon, size = self.leak * self.epsilon, member.size
        if self.law == "laplace":
            score = generator.laplace(size=size) + _laplace_shift(epsilon, self.delta) * member
        elif self.law == "randomised response":
            score = (member == (generator.random(size) < expit(epsilon))).astype(np.float64)
        else:
            shift = gaussian.gdp_mu(epsilon, self.delta)
            score = generator.standard_normal(size) + shift * member
            if self.law == "discrete gaussian":
                score = np.rint(10.0 * score)
        return CanaryScores.from_groups(
            present=score[member],
            absent=score[~member],
            noise=self.noise,
            membership=None if self.noise else "randomised",
        )


def _laplace_shift(epsilon: float, delta: float) -> float:
    """The shift at which Laplace noise has this epsilon: a little above it, for delta."""
    low, high = epsilon, epsilon + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = Laplace(shift=middle).epsilon_at(delta) > epsilon
        low, high = (low, middle) if above else (middle, high)
    return low


@dataclass
class Tally:
    """What so many audits of one cell said.

    Attributes:
        name: The cell.
        auditor: The method; None for the default.
        audits: Number of audits.
        confidence: Confidence of their bounds.
        verdicts: Verdicts at the gate error `GATE`.
        strict: Verdicts at `STRICT` of those that alarmed there; nobody else does.
        causes: What caused each alarm: a check, or the test of the claim.
        strict_causes: The same at `STRICT`.
        above: Bounds above the truth that were not called INVALID.
        mean_bound: Their mean.
    """

    name: str
    auditor: Auditor[Any] | None
    audits: int
    confidence: float
    verdicts: Counter[str] = field(default_factory=Counter)
    strict: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    strict_causes: Counter[str] = field(default_factory=Counter)
    above: int = 0
    mean_bound: float = 0.0

    @property
    def alarms(self) -> int:
        return _alarms(self.verdicts)

    @property
    def strict_alarms(self) -> int:
        return _alarms(self.strict)

    def too_loud(self, among: int = 1) -> bool:
        """More alarms than chance allows in some cell, were every gate exactly at its error."""
        return any(
            found > stats.binom.isf(FAMILY_ERROR / among, self.audits, error)
            for found, error in ((self.alarms, GATE), (self.strict_alarms, STRICT))
        )

    def too_high(self, among: int = 1) -> bool:
        """The same of bounds above the truth."""
        allowed = stats.binom.isf(FAMILY_ERROR / among, self.audits, 1.0 - self.confidence)
        return self.above > allowed

    def _counts(self) -> tuple[tuple[int, float], ...]:
        return (
            (self.alarms, GATE),
            (self.strict_alarms, STRICT),
            (self.above, 1.0 - self.confidence),
        )

    @property
    def suspicious(self) -> bool:
        """Whether this cell by itself is unlikely, were all rates exactly nominal."""
        return any(suspicious(found, self.audits, error) for found, error in self._counts())

    def beyond(self, among: int) -> bool:
        """Whether it is unlikely as one of so many cells."""
        return any(beyond(found, self.audits, error, among) for found, error in self._counts())

    @property
    def z(self) -> float:
        """Alarms at `GATE` beyond those of a gate exactly at its error, in deviations."""
        expected = self.audits * GATE
        return (self.alarms - expected) / math.sqrt(expected * (1.0 - GATE))

    @property
    def z_above(self) -> float:
        """The same of bounds above the truth."""
        error = 1.0 - self.confidence
        expected = self.audits * error
        return (self.above - expected) / math.sqrt(expected * (1.0 - error))


def _alarms(verdicts: Counter[str]) -> int:
    return verdicts["VIOLATION"] + verdicts["INVALID"]


def causes(result: AuditResult) -> Iterator[str]:
    """What made this result an alarm."""
    failed = [
        item.check
        for item in result.findings
        if item.status is Status.FAIL
        and item.consequence in (Consequence.BREACH, Consequence.INVALIDATES)
    ]
    yield from failed or ["test of the claim"]


def tally(
    cell: Case,
    audits: int,
    *,
    name: str | None = None,
    auditor: Auditor[Any] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Tally:
    """Audit a cell many times; an audit that is refused counts as its own verdict, by its error."""
    name = str(cell) if name is None else name
    generator = np.random.default_rng([seed, *repr((name, auditor)).encode()])
    options: dict[str, Any] = {"auditor": auditor, "confidence": confidence}
    found = Tally(name, auditor, audits, confidence)
    claim, truth = cell.claim, cell.truth * (1.0 + 1e-9)
    for _ in range(audits):
        data = cell.draw(generator)
        try:
            result = audit(data, claim=claim, gate_error=GATE, **options)
        except AskGaussError as error:
            found.verdicts[type(error).__name__] += 1
            continue
        assert result.verdict is not None
        found.verdicts[result.verdict.value] += 1
        if result.verdict in ALARMS:
            found.causes.update(causes(result))
            again = audit(data, claim=claim, gate_error=STRICT, **options)
            assert again.verdict is not None
            found.strict[again.verdict.value] += 1
            if again.verdict in ALARMS:
                found.strict_causes.update(causes(again))
        # Of noise that nobody declared, the bound that needs no law is the one to rely on.
        bound = result.epsilon_lower
        found.above += bound > truth and result.verdict is not Verdict.INVALID
        found.mean_bound += bound / audits
    return found


@dataclass(frozen=True)
class Noticed:
    """How often a leak was noticed, and by what."""

    name: str
    audits: int
    verdicts: Counter[str]
    causes: Counter[str]

    @property
    def alarms(self) -> int:
        return _alarms(self.verdicts)

    @property
    def enough(self) -> bool:
        """Fewer than would happen once in 10,000 were 95 of 100 noticed."""
        return self.alarms >= stats.binom.ppf(FAMILY_ERROR, self.audits, 0.95)


def noticed(name: str, run: Any, audits: int, more: int = 0, seed: int = 0) -> Noticed:
    """Audit a leak many times, at the default gate error; ``more`` times where one was missed."""
    generator = np.random.default_rng([seed, *name.encode()])
    verdicts: Counter[str] = Counter()
    seen_by: Counter[str] = Counter()
    wanted = audits
    while verdicts.total() < wanted:
        result = audit(run.draw(generator), claim=run.claim)
        assert result.verdict is not None
        verdicts[result.verdict.value] += 1
        if result.verdict in ALARMS:
            seen_by.update(causes(result))
        if verdicts.total() == audits and _alarms(verdicts) < audits:
            wanted += more
    return Noticed(name, wanted, verdicts, seen_by)


# Cells of the grid. Distinct ones only: each is there for something the others do not have.

SAMPLED: tuple[SampledScores, ...] = (
    SampledScores(2500, 2500, 2500, 0.08192, 1.0),
    SampledScores(2500, 2500, 2500, 0.08192, 8.0),
    SampledScores(100, 100, 2500, 0.08192, 4.0),
    SampledScores(60, 1000, 400, 0.05, 6.7),
    # More present than absent.
    SampledScores(1000, 50, 400, 0.05, 4.0),
    # Few inclusions.
    SampledScores(2500, 2500, 1, 0.01, 1.5),
    SampledScores(2500, 2500, 1, 0.02, 4.0),
    SampledScores(2500, 2500, 10, 0.1, 1.0),
    SampledScores(500, 500, 100, 0.1, 4.0),
    SampledScores(500, 500, 5, 0.001, 4.0, delta=1e-3),
    # Nearly always included.
    SampledScores(1112, 1112, 1, 0.9, 15.0),
    SampledScores(200, 200, 10, 0.9, 8.0),
    SampledScores(200, 200, 3, 1.0, 4.0),
    # Very few canaries.
    SampledScores(2, 2, 100, 0.1, 4.0),
    SampledScores(2, 500, 100, 0.1, 4.0),
    SampledScores(5, 5, 1, 1.0, 2.0),
    # Other deltas.
    SampledScores(300, 300, 200, 0.1, 4.0, delta=1e-10),
    SampledScores(300, 300, 200, 0.1, 4.0, delta=1e-2),
    # Rate and steps unknown, and numbers that were rounded.
    SampledScores(500, 500, 2500, 0.08192, 4.0, told=False),
    SampledScores(500, 500, 2500, 0.08192, 4.0, decimals=1),
    SampledScores(500, 500, 2500, 0.08192, 4.0, decimals=2),
    SampledScores(500, 500, 2500, 0.08192, 4.0, decimals=4),
)

PLAIN: tuple[PlainScores, ...] = (
    *(
        PlainScores(law, present, absent, epsilon)
        for law, epsilon in (
            ("laplace", 1.0),
            ("randomised response", 1.0),
            ("discrete gaussian", 2.0),
        )
        for present, absent in ((2, 2), (30, 30), (100, 100), (2500, 2500), (400, 60))
    ),
    PlainScores("gaussian", 500, 500, 1.0),
    PlainScores("gaussian", 2500, 2500, 0.5),
    PlainScores("randomised response", 2500, 2500, 3.0),
    PlainScores("discrete gaussian", 500, 500, 2.0, noise="gaussian"),
    PlainScores("gaussian", 2, 2, 2.0, noise="gaussian"),
)


def section(
    title: str, note: str, tallies: list[Tally], again: Mapping[int, Tally] | None = None
) -> Iterable[str]:
    """The counts as Markdown.

    Args:
        title: What was counted.
        note: Of what.
        tallies: The cells.
        again: Second counts of suspicious cells, by their place.
    """
    again = {} if again is None else again
    among = len(tallies)
    audits = sum(item.audits for item in tallies)
    judged = [again.get(place, item) for place, item in enumerate(tallies)]
    over = [item for item in judged if item.beyond(among)]
    least = min(item.audits for item in tallies)
    yield f"## {title}"
    yield ""
    yield note
    yield ""
    yield f"- {among} cells, {audits:,} audits of correct runs, at least {least:,} a cell."
    yield f"- Cells unlikely by themselves (below {PAGE_ERROR:g}), counted again from fresh"
    yield f"  seeds: {len(again)}. Both counts are shown, and the second is judged."
    yield "- Cells beyond what chance allows at a family-wise error of "
    yield f"  {PAGE_ERROR:g}, alarms or bounds above the truth: **{len(over)}**."
    yield ""
    yield from cause_table(tallies)
    yield (
        f"| cell | audits | confidence | VIOLATION | INVALID | by | z | at {STRICT:g} | "
        "above the truth | z | mean bound |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    rows = [
        (f"{item.name}{', again' if second else ''}", item)
        for place, first in enumerate(tallies)
        for second, item in enumerate((first, again.get(place)))
        if item is not None
    ]
    for name, item in rows:
        by = ", ".join(f"{check} {count}" for check, count in item.causes.most_common())
        cells = (
            name,
            f"{item.audits:,}",
            f"{item.confidence:g}",
            str(item.verdicts["VIOLATION"]),
            str(item.verdicts["INVALID"]),
            by,
            f"{item.z:+.1f}",
            str(item.strict_alarms),
            f"{item.above / item.audits:.1%}",
            f"{item.z_above:+.1f}",
            f"{item.mean_bound:.3f}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def cause_table(tallies: list[Tally]) -> Iterable[str]:
    """Alarms over all cells together, by cause, and the most that their rate can be."""
    audits = sum(item.audits for item in tallies)
    by_cause: Counter[str] = Counter()
    strict: Counter[str] = Counter()
    for item in tallies:
        by_cause.update(item.causes)
        strict.update(item.strict_causes)
    yield f"Over all cells, with the upper {LIMIT:.0%} limit of the rate over the gate error:"
    yield ""
    yield f"| alarms | at {GATE:g} | limit | at {STRICT:g} | limit |"
    yield "|---|---|---|---|---|"
    rows = [("all", sum(i.alarms for i in tallies), sum(i.strict_alarms for i in tallies))]
    rows += [(name, count, strict[name]) for name, count in by_cause.most_common()]
    for name, found, rarely in rows:
        limits = (
            f"{upper_limit(count, audits) / error:.2f}"
            for count, error in ((found, GATE), (rarely, STRICT))
        )
        first, second = limits
        yield f"| {name} | {found:,} | {first} | {rarely:,} | {second} |"
    yield ""


def upper_limit(found: int, audits: int) -> float:
    """Clopper-Pearson: the rate is at most this, with confidence `LIMIT`."""
    return float(stats.beta.ppf(LIMIT, found + 1, audits - found)) if found < audits else 1.0


def leak_section(found: list[Noticed]) -> Iterable[str]:
    """What was noticed of leaks, as Markdown."""
    missed = [item for item in found if not item.enough]
    yield "## Leaks"
    yield ""
    yield "Runs with a fault that the checks were not written for, at the default gate error. A"
    yield "leak that was missed once is audited more often."
    yield ""
    yield f"- {len(found)} leaks, {sum(item.audits for item in found):,} audits, "
    yield f"  {sum(item.alarms for item in found):,} noticed. Leaks of which fewer than 95 of 100"
    yield f"  are, beyond what chance allows: **{len(missed)}**."
    yield ""
    yield "| leak | audits | VIOLATION | INVALID | else | by |"
    yield "|---|---|---|---|---|---|"
    for item in found:
        by = ", ".join(f"{name} {count}" for name, count in item.causes.most_common(3))
        other = item.audits - item.alarms
        yield (
            f"| {item.name} | {item.audits} | {item.verdicts['VIOLATION']} | "
            f"{item.verdicts['INVALID']} | {other} | {by} |"
        )
    yield ""
