"""What an audit answers: the bound, the verdict, the findings, and the evidence behind them."""

from __future__ import annotations

import enum
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from askgauss import _validate
from askgauss._rounding import is_handful
from askgauss._text import one_line
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import (
    AskGaussError,
    FileFormatError,
    InvalidArgumentError,
    NotDefinedError,
)
from askgauss.files import atomic, codec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from askgauss.auditors.auditor import Auditor
    from askgauss.comparison import Comparison
    from askgauss.evidence.provenance import Provenance
    from askgauss.stats.interpretation import GaussianPrivacy
    from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "PRIVATE_NOTE",
    "Assumption",
    "AuditResult",
    "Consequence",
    "Finding",
    "Part",
    "Status",
    "Verdict",
]

_KIND = "askgauss-result"
_SCHEMA = 2
# Of every file.
_HEADER = {"kind", "schema", "digest"}
# What is computed again on another processor may differ in the last digits.
_ROUNDING = 1e-6
# What is said of numbers that must not be published.
PRIVATE_NOTE = (
    "Fewer than 30 canaries or plantings of a kind: numbers here tell of single ones, and with the "
    "weights of what the noise hides. Keep this result with the training data."
)
_MOST_COUNTED = 10**18


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
    """Only that canaries were made present by independent fair coins."""
    INDEPENDENT_CANARIES = "independent canaries"
    """Also that the canaries' scores are independent of each other."""
    MECHANISM_FAMILY = "mechanism family (mu-GDP)"
    """Independent fair coins, and that the mechanism's trade-off curve is a Gaussian one. Scores,
    and how they depend on each other, are arbitrary."""
    SAMPLED_FAMILY = "mechanism family (DP-SGD)"
    """The same with the curve of DP-SGD at a known sampling rate and number of steps."""
    INDEPENDENT_FAMILY = "independent canaries, mechanism family (mu-GDP)"
    """Also that the canaries' scores are independent of each other; of any distribution."""
    INDEPENDENT_SAMPLED_FAMILY = "independent canaries, mechanism family (DP-SGD)"
    """The same with the curve of DP-SGD."""
    GAUSSIAN_SCORES = "Gaussian scores"
    """Also that scores are Gaussian, or follow the law of a subsampled Gaussian sum."""
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
        sees: The smallest fault this check would have noticed with probability .8, in words, such
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
        smallest: The smallest fault that would have been seen with probability .8, in words.
        how_to_test: What to do to have it tested, where it was not.
        met: Whether the canaries went through it.
    """

    name: str
    status: Literal["fine", "broken", "not tested"]
    smallest: str = ""
    how_to_test: str = ""
    met: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The answer of one audit; everything that is printed, drawn or gated comes from it.

    Attributes:
        auditor: The method and its options.
        evidence: Sufficient statistics the method kept; they answer `epsilon_at` and `p_value`.
        present: Number of present canaries.
        absent: Number of absent canaries.
        delta: The delta the bound is stated at.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        epsilon_lower: The lower bound on epsilon.
        epsilon_point: An estimate of epsilon; never to be read without the bound.
        ceiling: The most this method could report from this many canaries.
        distribution_free: The bound of a method that needs no law of the scores, run beside one
            whose assumptions failed, or were not declared.
        distribution_free_evidence: What the distribution-free method kept, where that was run.
        claim: What was claimed, if anything.
        gate_error: Probability that a correct run ends in VIOLATION or INVALID.
        verdict: The verdict on the claim; None where there is no claim.
        reason: Why the verdict is what it is, in one sentence.
        power: Probability of a VIOLATION had the true epsilon been 1.25 times the claim.
        smallest_leak: The smallest true epsilon that would have been a VIOLATION with probability
            .8; None where that is unknown.
        findings: The checks.
        scope: Every part of the training: tested and fine, tested and broken, or not tested.
        metadata: Facts about the run, for the report.
        version: The askgauss that made the result.
        law_declared: Whether the law of the noise was declared. If not, the verdict rests on a test
            that needs none.
        if_gaussian: The bound that Gaussian noise would mean, had it been declared; None where it
            was, or where the scores speak against it.
        gaussian_evidence: What that bound follows from.
        membership: How it was decided which canaries were present; None where nobody said.
        run: The identity of the run that was audited; None where its data do not say.
        provenance: The file that was audited, its digest, when and with what; None where only
            arrays were.
        commitment: The digest that was published before the run; None where there was none.
        private: Whether so few canaries stand behind its numbers that they tell of single ones.
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
    distribution_free: float | None = None
    claim: PrivacyClaim | None = None
    gate_error: float = 0.001
    verdict: Verdict | None = None
    reason: str = ""
    power: float | None = None
    smallest_leak: float | None = None
    findings: tuple[Finding, ...] = ()
    scope: tuple[Part, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    distribution_free_evidence: Any = None
    law_declared: bool = True
    if_gaussian: float | None = None
    gaussian_evidence: Any = None
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
        from askgauss.policy import membership_gap

        return membership_gap(self.findings) is None

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
        from askgauss.stats.interpretation import gaussian_privacy

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
        if self.auditor.name == "gaussian-shift":  # exact, so that its other tail is a bound too
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; infinity is the string ``"inf"``."""
        from askgauss.checks import scope

        plain: dict[str, Any] = codec.to_plain(replace(self, auditor=_NO_AUDITOR))
        plain["auditor"] = {"name": self.auditor.name, "options": codec.to_plain(self.auditor)}
        plain["assumption"] = self.assumption.value
        plain["carries_bound"] = self.carries_bound
        plain["next_step"] = self.next_step
        plain["outside"] = list(scope.OUTSIDE)
        return plain

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text; also written to ``path``, whole or not at all, if one is given."""
        return _written(codec.dumps(_KIND, _SCHEMA, self.to_dict()), path, self.private)

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
        from askgauss.figures import plots

        return plots.epsilon_axis(self, ax)

    @property
    def sight(self) -> str:
        """What this audit would have called a violation, and how often; empty where unknown."""
        from askgauss.report.result_text import sight_of

        return sight_of(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the run, such as what was taken on trust."""
        run = self.metadata.get("run")
        listed = run.get("notes") if isinstance(run, dict) else None
        notes = tuple(map(str, listed)) if isinstance(listed, (list, tuple)) else ()
        return (*notes, PRIVATE_NOTE) if self.private else notes

    @property
    def next_step(self) -> str:
        """What to do now, with a number where one helps."""
        from askgauss.report.advice import advice

        return advice(self).action

    def scope_rows(self) -> list[tuple[str, str]]:
        """The scope in words: what was tested, what is broken, what was not tested and how to."""
        from askgauss.report.result_text import scope_rows_of

        return scope_rows_of(self)

    def _repr_html_(self) -> str:
        from askgauss import report

        return report.card(self)

    @classmethod
    def load(cls, source: atomic.Source) -> AuditResult:
        """Read the file that `to_json` wrote.

        Raises:
            FileFormatError: As for `from_json`.
            OSError: The file cannot be read.
        """
        return cls.from_json(atomic.read_bytes(source))

    @classmethod
    def from_json(cls, text: str | bytes) -> AuditResult:
        """Read what `to_json` wrote.

        Bound, verdict, reason, power and smallest leak are not taken at its word: they are computed
        again from the evidence, the claim and the findings, and must agree.

        Raises:
            FileFormatError: The text is corrupt, foreign, of a newer schema, or contradicts itself.
        """
        if text.strip()[:1] not in ("{", b"{", "", b""):
            raise FileFormatError(
                f"Expected the text of a result, got {text[:80]!r}. To read a file, use "
                "AuditResult.load(path)."
            )
        content = codec.loads(text, _KIND, _SCHEMA)
        result = _from_content(content)
        _check_derived(result, content)
        return result

    def __str__(self) -> str:
        from askgauss.report.result_text import text_of

        return text_of(self)


def _from_content(content: dict[str, Any]) -> AuditResult:
    """The result that JSON values describe, within the ranges of an audit."""
    from askgauss.auditors import GaussianShift, OneRun, auditor_from_options
    from askgauss.evidence.provenance import Provenance

    description = content.get("auditor")
    if not isinstance(description, dict) or "evidence" not in content:
        raise FileFormatError("Expected the fields auditor and evidence in an audit result.")
    auditor = auditor_from_options(description.get("name"), description.get("options", {}))
    hints: dict[str, Any] = {
        "present": int,
        "absent": int,
        "delta": float,
        "confidence": float,
        "epsilon_lower": float,
        "epsilon_point": float | None,
        "ceiling": float,
        "distribution_free": float | None,
        "claim": PrivacyClaim | None,
        "gate_error": float,
        "verdict": Verdict | None,
        "reason": str,
        "power": float | None,
        "findings": tuple[Finding, ...],
        "metadata": dict[str, Any],
        "version": str,
    }
    # Fields that came later: results written before them do not say.
    later = {
        "smallest_leak": float | None,
        "scope": tuple[Part, ...],
        "distribution_free_evidence": OneRun.evidence_type | None,
        "law_declared": bool,
        "if_gaussian": float | None,
        "gaussian_evidence": GaussianShift.evidence_type | None,
        "membership": Literal["randomised", "declared", "fixed"] | None,
        "run": str | None,
        "provenance": Provenance | None,
        "commitment": str | None,
        "private": bool,
    }
    hints |= {name: hint for name, hint in later.items() if name in content}
    missing = hints.keys() - content.keys()
    if missing:
        raise FileFormatError(f"Expected the fields {sorted(missing)} in an audit result.")
    fields = {name: codec.from_plain(hint, content[name], name) for name, hint in hints.items()}
    evidence = codec.from_plain(auditor.evidence_type, content["evidence"], "evidence")
    result = AuditResult(auditor=auditor, evidence=evidence, **fields)
    _check_ranges(result)
    return result


def _check_ranges(result: AuditResult) -> None:
    """Refuse numbers that no audit has."""
    try:
        _validate.within(0.5, 1, confidence=result.confidence)
        _validate.within(0, 0.5, gate_error=result.gate_error)
        result.auditor.check_delta(result.delta)
        _validate.count(
            0,
            maximum=_validate.MOST_CANARIES,
            present=result.present,
            absent=result.absent,
        )
        if result.claim is not None and result.claim.delta != result.delta:
            raise _validate.fail("delta", result.delta, f"to be the claim's {result.claim.delta}")
        if not isinstance(result.metadata, dict):
            raise _validate.fail("metadata", result.metadata, "to be an object")
        for kept in (result.evidence, result.distribution_free_evidence):
            _check_counts(codec.to_plain(kept))
            _check_trials(kept, result.present + result.absent)
        _check_groups(result)
        for item in result.findings:
            if item.p_value is not None and not 0.0 <= item.p_value <= 1.0:
                raise _validate.fail(f"p_value of {item.check}", item.p_value, "in [0, 1]")
    except InvalidArgumentError as error:
        raise FileFormatError(f"It is no result of an audit: {error}") from error


def _check_counts(plain: Any) -> None:
    """Refuse counts beyond what canaries and steps can be multiplied to: searches would not end."""
    if isinstance(plain, (dict, list)):
        for item in plain.values() if isinstance(plain, dict) else plain:
            _check_counts(item)
    elif isinstance(plain, int) and abs(plain) > _MOST_COUNTED:
        raise _validate.fail("a count", plain, f"up to {_MOST_COUNTED:g}")


def _check_groups(result: AuditResult) -> None:
    """Refuse numbers of canaries that are not those of the evidence."""
    from askgauss.auditors.step_evidence import StepEvidence
    from askgauss.stats.shift import SlopeTest

    groups = {"present": result.present, "absent": result.absent}
    pair = getattr(result.evidence, "pair", result.evidence)
    for name, canaries in groups.items():
        told = getattr(getattr(pair, name, None), "count", None)
        if told is not None and told != canaries:
            raise _validate.fail(name, canaries, f"= {told}, as in its evidence")
        for trial in getattr(pair, "trials", ()):
            # Some canaries may be spent on choosing a threshold.
            if getattr(trial, name, 0) > canaries:
                hint = "as in its evidence"
                raise _validate.fail(name, canaries, f">= {getattr(trial, name)}, {hint}")
    slope = getattr(pair, "counts", None)
    if isinstance(slope, SlopeTest) and slope.count != sum(groups.values()):
        raise _validate.fail(
            "present + absent", sum(groups.values()), f"= {slope.count}, as in its evidence"
        )
    if isinstance(pair, StepEvidence):
        scheme, steps = pair.scheme, pair.steps
        observed = pair.strata[0].observed if pair.strata else 0
        if observed != steps * sum(groups.values()):
            raise _validate.fail(
                "observations", observed, f"= {steps} of each of {sum(groups.values())} canaries"
            )
        chances = result.present * ((scheme and scheme.poisson_steps(steps)) or steps)
        if pair.opportunities != chances:
            raise _validate.fail(
                "opportunities", pair.opportunities, f"= {chances}, of {result.present} present"
            )


def _check_trials(evidence: Any, canaries: int) -> None:
    """Refuse counts of guesses that the canaries cannot have: bounds take memory by their size."""
    for trial in getattr(evidence, "trials", ()):
        for name, count in codec.to_plain(trial).items():
            if isinstance(count, int) and not 0 <= count <= canaries:
                raise _validate.fail(f"{name} of a trial", count, f"in [0, {canaries}]")


def _check_derived(result: AuditResult, content: dict[str, Any]) -> None:
    """Refuse a result that its own evidence, claim and findings contradict.

    Of a result that another version wrote, or of one without a digest, words and powers may differ;
    the bound may not, nor on which side the verdict stands.
    """
    from askgauss._version import __version__
    from askgauss.auditing import derived

    try:
        again = derived(result, lambda: result.distribution_free_evidence)
    except (
        AskGaussError,
        ArithmeticError,
        ValueError,
        TypeError,
        LookupError,
        MemoryError,
    ) as error:
        raise FileFormatError(
            f"Its evidence is none that an audit gathers: {error}. Audit the run again."
        ) from error
    same_code = content["schema"] == _SCHEMA and result.version == __version__
    _check_scope(result, same_code)
    names = ["epsilon_lower", "epsilon_point", "ceiling"]
    if same_code:
        _check_fields(result, content)
        names += ["distribution_free", "power", "smallest_leak", "reason", "verdict"]
        own = result.auditor.findings(
            result.evidence, delta=result.delta, confidence=result.confidence
        )
        stated_checks = {(item.check, item.status) for item in result.findings}
        if not {(item.check, item.status) for item in own} <= stated_checks:
            raise _contradiction("findings", "others", ", ".join(map(str, own)))
    check_agreement(result, again, names)
    if not same_code and _side(result) != _side(again):
        if _side(again) is Verdict.INVALID and "distribution_free_evidence" not in content:
            # Earlier results do not say what the method beside it saw.
            return
        raise _contradiction("verdict", result.verdict, again.verdict)
    if "assumption" in content and content["assumption"] != result.assumption.value:
        raise _contradiction("assumption", content["assumption"], result.assumption.value)
    if content.get("carries_bound", result.carries_bound) != result.carries_bound:
        raise _contradiction("carries_bound", content["carries_bound"], result.carries_bound)


def _check_fields(result: AuditResult, content: dict[str, Any]) -> None:
    """Refuse fields that no result has, and a result of a handful that is called public."""
    unknown = sorted(content.keys() - result.to_dict().keys() - _HEADER)
    if unknown:
        raise FileFormatError(
            f"Expected the fields of an audit result, got {unknown[0][:80]!r} as well: it was "
            "edited. Audit the run again."
        )
    run = result.metadata.get("run")
    known = isinstance(run, dict) and run.get("background") == "known"
    if known and not result.private and any(map(is_handful, (result.present, result.absent))):
        raise _contradiction("private", False, True)


def _check_scope(result: AuditResult, same_code: bool) -> None:
    """Refuse a scope that the findings do not give: no green is earned by parts called fine."""
    from askgauss.checks.scope import exercised_in, scope_of

    own = result.auditor.findings(result.evidence, delta=result.delta, confidence=result.confidence)
    named = {item.check for item in own} | {"noise model"}
    others = [item for item in result.findings if item.check not in named]
    # Without diagnostics there are the method's own findings, and those of a replay that joined.
    diagnosed = bool(result.metadata) or any("replay" not in item.check for item in others)
    found = scope_of(result.findings, exercised_in(result.metadata)) if diagnosed else ()
    if same_code and result.scope != found:
        raise _contradiction("scope", _statuses(result.scope), _statuses(found))
    by_name = {part.name: part.status for part in found}
    for part in result.scope:
        # Other versions have other parts, and other words for them.
        if part.status == "fine" and by_name.get(part.name, "fine") != "fine":
            raise _contradiction(f"scope of {part.name}", part.status, by_name[part.name])


def _statuses(scope: Sequence[Part]) -> str:
    return ", ".join(f"{part.name} {part.status}" for part in scope) or "nothing"


def check_agreement(stated: Any, found: Any, names: Sequence[str]) -> None:
    """Refuse what a file states where what it was derived from gives something else.

    Raises:
        FileFormatError: An attribute differs by more than another processor's rounding.
    """
    for name in names:
        if not _agree(getattr(stated, name), getattr(found, name)):
            raise _contradiction(name, getattr(stated, name), getattr(found, name))


def _side(result: AuditResult) -> Verdict | None:
    """Where a verdict stands; that of too weak an audit is with the claim."""
    verdict = result.verdict
    return Verdict.CONSISTENT if verdict is Verdict.INCONCLUSIVE else verdict


def _agree(stated: Any, found: Any) -> bool:
    if isinstance(stated, float) and isinstance(found, float):
        return math.isclose(stated, found, rel_tol=_ROUNDING, abs_tol=1e-9)
    if isinstance(stated, str) and isinstance(found, str):
        return _words(stated) == _words(found)
    return bool(stated == found)


def _words(reason: str) -> str:
    """A sentence without its numbers, whose last shown digit may be rounded the other way."""
    return re.sub(r"[0-9][0-9.e+-]*", "#", reason)


def _contradiction(name: str, stated: Any, found: Any) -> FileFormatError:
    return FileFormatError(
        f"Its {name} is {str(stated)[:80]!r} where its evidence, claim and findings give "
        f"{str(found)[:80]!r}: it was damaged or edited. Audit the run again."
    )


def _written(text: str, path: str | os.PathLike[str] | None, private: bool) -> str:
    if path is not None:
        atomic.write_text(path, text, private=private)
    return text


def number(value: float | None) -> str:
    """A number for a person: four significant digits, infinity in words."""
    if value is None:
        return "none"
    return "infinity" if math.isinf(value) else f"{value:.4g}"


def confidence_in_words(confidence: float) -> str:
    """A confidence for a person, which is never said to be 1.

    Examples:
        >>> confidence_in_words(0.95), confidence_in_words(1.0 - 2e-7)
        ('0.95', '1 - 2e-07')
    """
    return f"{confidence:g}" if confidence <= 0.9999 else f"1 - {1.0 - confidence:.2g}"


def whole_percent(share: float) -> str:
    """A share for a person, rounded down: what falls short of all of it is not 100%."""
    if math.isinf(share):
        return "infinity"
    return f"{math.floor(100.0 * share)}%" if share < 10.0 else f"{share:,.3g} times"


class _NoAuditor:
    """Stands in for the auditor where a result is turned into plain values."""


_NO_AUDITOR: Any = _NoAuditor()
