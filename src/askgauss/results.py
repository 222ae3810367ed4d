"""What an audit answers: the bound, the verdict, the findings, and the evidence behind them."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from askgauss import _validate
from askgauss._text import one_line
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import NotDefinedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from askgauss.auditors.auditor import Auditor
    from askgauss.comparison import Comparison
    from askgauss.evidence.provenance import Provenance
    from askgauss.figures.summary import Summary
    from askgauss.files.atomic import Source
    from askgauss.monitor.feed import Feed
    from askgauss.stats.attack_metrics import GaussianPrivacy
    from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "MEMBERSHIP",
    "NOISE_MODEL",
    "PRIVATE_NOTE",
    "Assumption",
    "AuditResult",
    "Consequence",
    "Finding",
    "OtherBound",
    "Part",
    "Status",
    "Verdict",
    "membership_gap",
]

MEMBERSHIP = "membership"
"""The check of how it was decided which canaries were inserted."""
NOISE_MODEL = "noise model"
"""The check of whether the distribution of the noise was declared."""
PRIVATE_NOTE = (
    "Fewer than 30 canaries or plantings of a kind: numbers here tell of single ones, and with the "
    "weights of what the noise hides. Keep this result with the training data."
)
"""What is said of numbers that must not be published."""


class Verdict(enum.Enum):
    """What the audit says about the claim."""

    VIOLATION = "VIOLATION"
    """The run leaks more than it claims, or a part of the mechanism is broken outright."""
    CONSISTENT = "CONSISTENT"
    """No evidence against the claim, from an audit that could have found some. Not a proof."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """No evidence against the claim, from an audit too weak to have found much."""
    INVALID = "INVALID"
    """An assumption the bound rests on failed in a way that could make it too high."""


class Assumption(enum.Enum):
    """What a bound rests on, from least to most."""

    DISTRIBUTION_FREE = "distribution-free"
    """Only that membership was randomised: each canary inserted with probability one half."""
    INDEPENDENT_CANARIES = "independent canaries"
    """Also that the canaries' scores are independent of each other."""
    MECHANISM_FAMILY = "mechanism family (mu-GDP)"
    """Randomised membership, and that the mechanism's trade-off curve is a Gaussian one. Scores,
    and how they depend on each other, are arbitrary."""
    SAMPLED_FAMILY = "mechanism family (DP-SGD)"
    """The same with the curve of DP-SGD at a known sampling rate and number of steps."""
    INDEPENDENT_FAMILY = "independent canaries, mechanism family (mu-GDP)"
    """Also that the canaries' scores are independent of each other; of any distribution."""
    INDEPENDENT_SAMPLED_FAMILY = "independent canaries, mechanism family (DP-SGD)"
    """The same with the curve of DP-SGD."""
    GAUSSIAN_SCORES = "Gaussian scores"
    """Also that scores are Gaussian, or distributed as a subsampled Gaussian sum."""
    SUBSAMPLED_GAUSSIAN_STEPS = "subsampled Gaussian steps"
    """Also that every step is an independent subsampled Gaussian mechanism."""
    ESTIMATE = "estimate only"
    """No guarantee at all: a number to look at, never a verdict."""

    def rests_on(self, other: Assumption) -> bool:
        """Whether a bound that assumes this fails where what the other assumes does."""
        return other in _RESTS_ON[self]

    @property
    def gaussian_curve(self) -> bool:
        """Whether one epsilon then makes a whole Gaussian trade-off curve."""
        return self in _GAUSSIAN_CURVES


_FREE, _INDEPENDENT = Assumption.DISTRIBUTION_FREE, Assumption.INDEPENDENT_CANARIES
_STEPS = Assumption.SUBSAMPLED_GAUSSIAN_STEPS
_RESTS_ON = {
    _FREE: {_FREE},
    _INDEPENDENT: {_FREE, _INDEPENDENT},
    Assumption.MECHANISM_FAMILY: {_FREE},
    Assumption.SAMPLED_FAMILY: {_FREE, _STEPS},
    Assumption.INDEPENDENT_FAMILY: {_FREE, _INDEPENDENT},
    Assumption.INDEPENDENT_SAMPLED_FAMILY: {_FREE, _INDEPENDENT, _STEPS},
    Assumption.GAUSSIAN_SCORES: {_FREE, _INDEPENDENT, Assumption.GAUSSIAN_SCORES},
    _STEPS: {_FREE, _INDEPENDENT, Assumption.GAUSSIAN_SCORES, _STEPS},
    Assumption.ESTIMATE: set(Assumption),
}
_GAUSSIAN_CURVES = set(Assumption) - {_FREE, _INDEPENDENT, Assumption.ESTIMATE}


class Status(enum.Enum):
    """How a check ended."""

    PASS = "pass"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    NOT_RUN = "not run"


class Consequence(enum.Enum):
    """What a failed check means for the audit."""

    BREACH = "breach"
    """The privacy claim itself is broken: a VIOLATION whatever the bound says."""
    INVALIDATES = "invalidates"
    """The bound could be too high: the verdict is INVALID."""
    LOOSENS = "loosens"
    """The bound can only be too low: it stands, with a warning."""
    INFORMS = "informs"
    """Nothing follows for the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: what was measured next to what was claimed, and what to do.

    Attributes:
        check: Name of the check.
        status: How it ended.
        summary: One sentence for a person.
        consequence: What a failure of this check means.
        undermines: The least a bound must assume for a failure to make it too high.
        measured: The measured value.
        interval: Confidence interval of the measured value.
        claimed: The value it is compared with.
        p_value: Probability of something at least as bad in a correct run; shares the gate error.
        remedy: What to do next.
        sees: The smallest fault this check would have detected with probability .8, in words, such
            as "noise 1.2% below the claim"; empty where the check did not run.
        visible: The size of that fault as a share of what it is compared with; None where any fault
            shows, or where the part of the training does not rest on the check alone.
    """

    check: str
    status: Status
    summary: str
    consequence: Consequence = Consequence.INFORMS
    undermines: Assumption = Assumption.DISTRIBUTION_FREE
    measured: float | None = None
    interval: tuple[float, float] | None = None
    claimed: float | None = None
    p_value: float | None = None
    remedy: str = ""
    sees: str = ""
    visible: float | None = None

    def __str__(self) -> str:
        return one_line(f"[{self.status.value}] {self.check}: {self.summary}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the training, and what the audit can say of it.

    Attributes:
        name: What it is called.
        status: Tested and fine, tested and broken, or not tested.
        smallest: The smallest fault that would have been detected with probability .8, in words.
        how_to_test: What to do to have it tested, where it was not.
        met: Whether the canaries went through it.
    """

    name: str
    status: Literal["fine", "broken", "not tested"]
    smallest: str = ""
    how_to_test: str = ""
    met: bool = True


def membership_gap(findings: Iterable[Finding]) -> Literal["fixed", "unknown"] | None:
    """Whether a difference of the two groups need not come from training.

    Such scores carry no bound.
    """
    for item in findings:
        if item.check == MEMBERSHIP and item.status is Status.FAIL:
            return "fixed"
        if item.check == MEMBERSHIP and item.status is Status.WARN:
            return "unknown"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBound:
    """The bound of another method on the same canaries, stated beside the one that decides.

    Attributes:
        auditor: The other method.
        evidence: The sufficient statistics it gathered.
        epsilon_lower: Its lower bound, at the delta and the confidence of the result.
    """

    auditor: Auditor[Any]
    evidence: Any
    epsilon_lower: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The answer of one audit; everything that is printed, drawn or gated comes from it.

    Attributes:
        auditor: The method that decides, with its options.
        evidence: Its sufficient statistics; they answer `epsilon_at` and `p_value`.
        present: Number of inserted canaries.
        absent: Number of held-out canaries.
        delta: The delta the bound is stated at.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        epsilon_lower: The lower bound on epsilon.
        epsilon_point: An estimate of epsilon; never to be read without the bound.
        ceiling: The most this method could report from this many canaries.
        claim: What was claimed, if anything.
        gate_error: Probability that a correct run ends in VIOLATION or INVALID.
        verdict: The verdict on the claim; None where there is no claim.
        reason: Why the verdict is what it is, in one sentence.
        power: Probability of a VIOLATION had the true epsilon been 1.25 times the claim.
        smallest_leak: The smallest true epsilon that would have been a VIOLATION with probability
            .8; None where that is unknown.
        distribution_free: The bound of a method that needs no distribution of the scores, where an
            assumption of the deciding method failed a check.
        if_gaussian: The bound that Gaussian noise would mean, where nobody declared the noise and
            the scores do not contradict it.
        findings: The checks.
        scope: Every part of the training: tested and fine, tested and broken, or not tested.
        summary: Facts about the run and small tables for the report; None where the audit ran
            without its checks.
        watched: What a monitor saw while the run trained; None where there was none.
        version: The askgauss that made the result.
        membership: How it was decided which canaries were inserted; None where nobody said.
        run: The identity of the run that was audited; None where its data do not say.
        provenance: The file that was audited, its digest, when and with what; None where only
            arrays were.
        commitment: The digest that was published before the run; None where there was none.
        private: Whether so few canaries stand behind its numbers that they reveal individuals.
            Then it must stay with those who may see the training data.
    """

    auditor: Auditor[Any]
    evidence: Any
    present: int
    absent: int
    delta: float
    confidence: float
    epsilon_lower: float
    epsilon_point: float | None
    ceiling: float
    claim: PrivacyClaim | None = None
    gate_error: float = 0.001
    verdict: Verdict | None = None
    reason: str = ""
    power: float | None = None
    smallest_leak: float | None = None
    distribution_free: OtherBound | None = None
    if_gaussian: OtherBound | None = None
    findings: tuple[Finding, ...] = ()
    scope: tuple[Part, ...] = ()
    summary: Summary | None = None
    # It holds nan, which equals nothing.
    watched: Feed | None = field(default=None, compare=False)
    version: str = ""
    membership: Literal["randomised", "declared", "fixed"] | None = None
    run: str | None = field(default=None, compare=False)
    provenance: Provenance | None = field(default=None, compare=False)
    commitment: str | None = field(default=None, compare=False)
    private: bool = False

    @property
    def assumption(self) -> Assumption:
        """What the bound rests on."""
        return self.auditor.assumption

    @property
    def carries_bound(self) -> bool:
        """Whether scores show anything of training: only where membership was randomised."""
        return membership_gap(self.findings) is None

    @property
    def usable(self) -> bool:
        """Whether the bound may be used: no assumption of it failed a check."""
        failed = self.distribution_free is not None or not self.carries_bound
        return self.verdict is not Verdict.INVALID and not failed

    @property
    def noise_declared(self) -> bool:
        """Whether the distribution of the noise was declared; if not, the verdict needs none."""
        return all(item.check != NOISE_MODEL for item in self.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the run, such as what was taken on trust."""
        notes = () if self.summary is None else self.summary.run.notes
        return (*notes, PRIVATE_NOTE) if self.private else notes

    def epsilon_at(self, *, delta: float) -> float:
        """The lower bound at another delta, from the same evidence.

        Raises:
            NotDefinedError: The method does not define it.
        """
        self.auditor.check_delta(delta)
        if not self.carries_bound:
            return 0.0
        return self.auditor.epsilon_lower(self.evidence, delta=delta, confidence=self.confidence)

    def p_value(self, *, epsilon: float) -> float:
        """Probability of evidence this strong were the run (epsilon, delta)-private.

        Below 1 - confidence if and only if ``epsilon_lower`` is above ``epsilon``.

        Raises:
            NotDefinedError: The method does not define it.
        """
        _validate.non_negative(epsilon=epsilon)
        if not self.carries_bound:
            return 1.0
        return self.auditor.p_value(self.evidence, epsilon=epsilon, delta=self.delta)

    def tradeoff(self) -> TradeOff:
        """The trade-off curve that the bound stands for.

        Gaussian where the method takes noise for Gaussian; else the lowest curve that the bound's
        (epsilon, delta) allows. A Gaussian curve is a bound at this result's delta only; for a
        bound elsewhere ask `epsilon_at`.
        """
        from askgauss.stats.tradeoff import TradeOff

        if not self.carries_bound:
            return TradeOff.gaussian(0.0)
        return self.auditor.tradeoff(self.evidence, delta=self.delta, confidence=self.confidence)

    def gdp(self) -> GaussianPrivacy:
        """Measured and claimed privacy as mu: two unit Gaussians of the same epsilon at delta.

        Raises:
            NotDefinedError: The method does not take the curve for Gaussian, or there is no bound.
        """
        from askgauss.stats.attack_metrics import gaussian_privacy

        if not self.assumption.gaussian_curve:
            raise NotDefinedError(
                f"{type(self.auditor).__name__} assumes {self.assumption.value}, under which one "
                "epsilon does not make a Gaussian curve. Ask a method that assumes Gaussian scores."
            )
        if not self.carries_bound:
            raise NotDefinedError(
                "There is no bound: membership was not randomised, or nobody said how it was "
                'decided. State it: membership="randomised", "declared" or "fixed".'
            )
        ends = None
        if self.auditor.exact:  # so that its other tail is a bound too
            tail = 0.5 * (1.0 - self.confidence)
            low, high = (
                self.auditor.epsilon_lower(self.evidence, delta=self.delta, confidence=level)
                for level in (1.0 - tail, tail)
            )
            ends = (low, high)
        return gaussian_privacy(
            epsilon_lower=self.epsilon_lower,
            epsilon_interval=ends,
            delta=self.delta,
            claimed=None if self.claim is None else (self.claim.epsilon, self.claim.delta),
            confidence=self.confidence,
        )

    @property
    def sight(self) -> str:
        """What this audit would have called a violation, and how often; empty where unknown."""
        from askgauss.report import words

        return words.sight(self)

    @property
    def next_step(self) -> str:
        """What to do now, with a number where one helps."""
        from askgauss.report import words

        return words.advice(self).action

    def scope_rows(self) -> list[tuple[str, str]]:
        """The scope in words: what was tested, what is broken, what was not tested and how to."""
        from askgauss.report import words

        return words.scope_rows(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; infinity is the string ``"inf"``."""
        from askgauss.evidence import result_file

        return result_file.to_dict(self)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text; also written to ``path``, whole or not at all, if one is given."""
        from askgauss.evidence import result_file

        return _written(result_file.dumps(self), path, self.private)

    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, comparison: Comparison | None = None
    ) -> str:
        """The report as one HTML page; also written to ``path``, whole or not at all, if given."""
        from askgauss import report

        return _written(report.render(self, comparison), path, self.private)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """A short table for the comment of a CI job; also written to ``path`` if one is given."""
        from askgauss import report

        return _written(report.markdown(self), path, self.private)

    def to_junit(self, path: str | os.PathLike[str] | None = None) -> str:
        """JUnit XML, one test case a finding; also written to ``path`` if one is given."""
        from askgauss import report

        return _written(report.junit(self), path, self.private)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Claimed and measured epsilon on one axis."""
        from askgauss.figures.leak_figures import EpsilonAxis

        return EpsilonAxis.from_result(self).plot(ax)

    def _repr_html_(self) -> str:
        from askgauss import report

        return report.card(self)

    def __str__(self) -> str:
        from askgauss.report import words

        return words.text(self)

    @classmethod
    def load(cls, source: Source) -> AuditResult:
        """Read the file that `to_json` wrote.

        Raises:
            FileFormatError: As for `from_json`.
            OSError: The file cannot be read.
        """
        from askgauss.files import atomic

        return cls.from_json(atomic.read_bytes(source))

    @classmethod
    def from_json(cls, text: str | bytes) -> AuditResult:
        """Read what `to_json` wrote.

        Bound, verdict, reason, power and smallest leak are decided again from the evidence, the
        claim and the findings, and must agree.

        Raises:
            FileFormatError: The text is corrupt, foreign, of another schema, or contradicts itself.
        """
        from askgauss.evidence import result_file

        return result_file.loads(text)


def _written(text: str, path: str | os.PathLike[str] | None, private: bool) -> str:
    if path is not None:
        from askgauss.files import atomic

        atomic.write_text(path, text, private=private)
    return text
