"""Several auditors on the same scores, side by side; it decides nothing.

The verdict belongs to one method chosen beforehand (`askgauss.audit`). A table of many bounds, each
valid by itself, has no valid best: the largest of them is above the truth more often than any one.
So there is none here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from askgauss import _validate
from askgauss._text import number, one_line, whole_percent
from askgauss.auditing import audit
from askgauss.auditors import as_auditor, auditor_types
from askgauss.auditors.auditor import Auditor
from askgauss.checks import diagnose
from askgauss.claims import HOW_TO_CLAIM, PrivacyClaim
from askgauss.exceptions import (
    AskGaussError,
    InvalidArgumentError,
    MissingExtraError,
    ScoreDirectionError,
)
from askgauss.files import codec
from askgauss.publish.disclosure import reveals_individuals
from askgauss.report.words import measured
from askgauss.results import (
    PRIVATE_NOTE,
    Assumption,
    AuditResult,
    Consequence,
    Finding,
    Status,
)
from askgauss.scores import check_audit_data
from askgauss.stats.attack_metrics import area_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from askgauss.recording.inputs import AuditInput

__all__ = ["Comparison", "ComparisonRow", "compare"]

_KIND = "askgauss-comparison"
_SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """What one method says.

    Attributes:
        name: The method, in kebab-case.
        options: Its options that are not the default ones.
        bound: The lower bound on epsilon; None where there is none, and the reason says why.
        estimate: The method's estimate of epsilon, where it has one.
        share: The bound as a share of the claimed epsilon.
        assumption: What the bound rests on.
        adversary: What the adversary sees whose success the bound is about.
        ceiling: The most the method could report from these canaries.
        seconds: How long it took.
        reason: Why there is no bound, or why it must not be used.
    """

    name: str
    options: str
    bound: float | None
    estimate: float | None
    share: float | None
    assumption: Assumption
    ceiling: float | None
    seconds: float
    reason: str = ""
    adversary: str = ""

    @property
    def label(self) -> str:
        """The method with its options."""
        return f"{self.name} ({self.options})" if self.options else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows in the order in which the methods were asked.

    Attributes:
        rows: One row a method.
        present: Number of present canaries.
        absent: Number of absent canaries.
        delta: The delta the bounds are stated at.
        confidence: Each bound by itself is above the truth in at most 1 - confidence of audits.
        claim: What was claimed, if anything.
        area: Area under the curve of the scores, its lower and its upper limit at the confidence,
            for independent canaries of any law; None where scores are not finite.
        private: Whether so few canaries stand behind its numbers that they tell of single ones.
    """

    rows: tuple[ComparisonRow, ...]
    present: int
    absent: int
    delta: float
    confidence: float
    claim: PrivacyClaim | None = None
    area: tuple[float, float, float] | None = None
    private: bool = False

    def _cells(self) -> list[tuple[str, ...]]:
        numbers = ("epsilon >=", "of claim", "ceiling", "seconds")
        cells: list[tuple[str, ...]] = [("method", *numbers, "adversary sees", "assuming")]
        for row in self.rows:
            cells.append(
                (
                    one_line(row.label),
                    "-" if row.bound is None else number(row.bound),
                    "-" if row.share is None else whole_percent(row.share),
                    "-" if row.ceiling is None else number(row.ceiling),
                    f"{row.seconds:.3f}",
                    row.adversary or "-",
                    row.assumption.value,
                )
            )
        return cells

    def _heading(self) -> str:
        claimed = "" if self.claim is None else f"; claimed {self.claim}"
        if self.area is not None:
            middle, low, high = self.area
            claimed += f"; area under the curve {middle:.3f} ({low:.3f} to {high:.3f})"
        return (
            f"{self.present:,} inserted and {self.absent:,} held-out canaries, delta "
            f"{self.delta:g}, confidence {self.confidence:g} each{claimed}"
        )

    def _notes(self) -> list[str]:
        reasons = [one_line(f"{row.label}: {row.reason}") for row in self.rows if row.reason]
        return [*reasons, PRIVATE_NOTE] if self.private else reasons

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = [self._heading()]
        for line in cells:
            padded = [
                text.ljust(width) if column in (0, len(line) - 1) else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  " + "  ".join(padded).rstrip())
        return "\n".join(lines + [f"  {note}" for note in self._notes()])

    def to_markdown(self) -> str:
        """The table in Markdown, with its notes below."""
        head, *body = self._cells()
        ruler = ("---", *["---:"] * (len(head) - 2), "---")
        lines = [self._heading(), ""]
        lines += ["| " + " | ".join(line) + " |" for line in (head, ruler, *body)]
        notes = self._notes()
        if notes:
            lines += ["", *(f"- {note}" for note in notes)]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; infinity is the string ``"inf"``."""
        plain: dict[str, Any] = codec.to_plain(self)
        return plain

    def to_json(self) -> str:
        """JSON text."""
        return codec.dumps(_KIND, _SCHEMA, self.to_dict())

    def to_latex(self) -> str:
        """The table for a paper, for LaTeX with the package booktabs."""
        head, *body = self._cells()
        lines = [r"\begin{tabular}{lrrrrl}", r"\toprule"]
        lines += [" & ".join(map(_latex, head)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_latex, line)) + r" \\" for line in body]
        lines += [r"\bottomrule", r"\end{tabular}"]
        notes = [self._heading(), *self._notes()]
        return "\n".join([*lines, *(f"% {note}" for note in notes)]) + "\n"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Every method's bound on one axis, the first one on top.

        Args:
            ax: Where to draw; a figure of its own if not given.
        """
        from askgauss.figures.leak_figures import EpsilonAxis

        return EpsilonAxis.from_comparison(self).plot(ax)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a line a method.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("A data frame needs pandas: pip install pandas.") from error
        names = [field.name for field in dataclasses.fields(ComparisonRow)]
        lines = [
            {**{name: getattr(row, name) for name in names}, "assumption": row.assumption.value}
            for row in self.rows
        ]
        return pandas.DataFrame(lines, columns=names)


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    ">": r"$>$",
    "<": r"$<$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _latex(text: str) -> str:
    """Text that means nothing but itself in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)


def compare(
    data: AuditInput,
    *,
    claim: PrivacyClaim | None = None,
    delta: float | None = None,
    auditors: Iterable[Auditor[Any] | str] | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """What several methods say about the same scores.

    Args:
        data: The scores of one training run, or its transcript.
        claim: What the run claims.
        delta: Where to state the bounds when there is no claim.
        auditors: The methods; if not given, one of each with its default options.
        confidence: Each bound by itself is above the truth in at most 1 - confidence of audits.

    Returns:
        A table. A method that does not apply is in it with the reason; so is one whose assumptions
        fail a check.

    Raises:
        ScoreDirectionError: Present canaries score below absent ones.
        InvalidArgumentError: An argument is outside its range.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 500), absent=rng.normal(0, 1, 500))
        >>> table = compare(scores, delta=1e-5, auditors=[ag.GaussianShift(), ag.OneRun()])
        >>> [row.name for row in table.rows]
        ['gaussian-shift', 'one-run']
    """
    check_audit_data(data)
    _validate.instance(PrivacyClaim, HOW_TO_CLAIM, claim=claim)
    methods = _methods(auditors)
    level = _delta(claim, delta)
    _validate.within(0.5, 1, confidence=confidence)
    private = reveals_individuals(data)
    if not data.has_steps:
        data = data.scores()
    checks = diagnose(data, claim=claim)
    rows = [_row(data, method, claim, delta, confidence, checks) for method in methods]
    present = int(data.member.sum())
    return Comparison(
        rows=tuple(rows),
        present=present,
        absent=int(data.member.size) - present,
        delta=level,
        confidence=confidence,
        claim=claim,
        area=_area(data, confidence),
        private=private,
    )


def _area(data: AuditInput, confidence: float) -> tuple[float, float, float] | None:
    try:
        scores = data.scores()
    except AskGaussError:
        return None  # every row says what is wrong with them
    return area_interval(scores.present, scores.absent, confidence=confidence)


def _methods(auditors: Iterable[Auditor[Any] | str] | None) -> list[Auditor[Any]]:
    if auditors is None:
        return [kind() for kind in auditor_types().values()]
    methods = [as_auditor(given) for given in auditors]
    if not methods:
        raise InvalidArgumentError("Expected at least one of auditors, got none.")
    return methods


def _delta(claim: PrivacyClaim | None, delta: float | None) -> float:
    if (claim is None) == (delta is None):
        raise InvalidArgumentError(
            "Expected exactly one of claim and delta, got "
            f"{'both' if claim is not None else 'neither'}. A claim brings its own delta."
        )
    level = claim.delta if claim is not None else delta
    assert level is not None
    _validate.within(0.0, 1.0, closed="left", delta=level)
    return level


def _row(
    data: AuditInput,
    method: Auditor[Any],
    claim: PrivacyClaim | None,
    delta: float | None,
    confidence: float,
    checks: tuple[Finding, ...],
) -> ComparisonRow:
    started = time.perf_counter()
    result: AuditResult | None = None
    reason = ""
    try:
        result = audit(
            data,
            claim=claim,
            delta=delta,
            auditor=method,
            confidence=confidence,
            diagnostics=False,
        )
    except ScoreDirectionError:
        raise  # wrong for every method alike
    except AskGaussError as error:
        reason = f"does not apply: {error}"
    seconds = time.perf_counter() - started
    bound = estimate = ceiling = None
    if result is not None:
        estimate = result.epsilon_point
        if method.assumption is Assumption.ESTIMATE:
            reason = f"an estimate of {number(estimate)}, and no bound."
        elif not result.carries_bound:
            reason = f"{measured(result)}."
        else:
            bound, ceiling = result.epsilon_lower, result.ceiling
            reason = _caution(method.assumption, result.findings + checks)
    return ComparisonRow(
        name=method.name,
        options=_options(method),
        bound=bound,
        estimate=estimate,
        share=None if claim is None or bound is None else bound / claim.epsilon,
        assumption=method.assumption,
        ceiling=ceiling,
        seconds=seconds,
        reason=reason,
        adversary=method.adversary,
    )


def _caution(assumption: Assumption, findings: Sequence[Finding]) -> str:
    """Why a bound of this assumption must not be used, if a check failed that it rests on."""
    for finding in findings:
        if (
            finding.status is Status.FAIL
            and finding.consequence is Consequence.INVALIDATES
            and assumption.rests_on(finding.undermines)
        ):
            return f"INVALID: {finding.check}: {finding.summary}"
    return ""


def _options(method: Auditor[Any]) -> str:
    """The options that differ from the default ones."""
    return ", ".join(
        f"{field.name}={getattr(method, field.name)!r}"
        for field in dataclasses.fields(method)
        if getattr(method, field.name) != _default(field)
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    """What an option is if nobody says; of one that must be said, nothing equals it."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
