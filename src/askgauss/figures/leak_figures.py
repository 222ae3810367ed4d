"""How much leaks: epsilon on one axis, its trade-off curve, and what other sizes would show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from askgauss import accounting
from askgauss._text import number, one_line
from askgauss.auditors.subsampled_gaussian import StepEvidence
from askgauss.exceptions import InvalidArgumentError, NotDefinedError
from askgauss.figures import style
from askgauss.figures.style import AuditFigure, NothingToDrawError
from askgauss.figures.summary import tables_of
from askgauss.power import resized
from askgauss.results import AuditResult
from askgauss.stats import gaussian
from askgauss.stats.tradeoff import TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from askgauss.comparison import Comparison, ComparisonRow

__all__ = [
    "Bound",
    "EpsilonAxis",
    "EpsilonByCanaries",
    "EpsilonBySteps",
    "EpsilonCurve",
    "Meaning",
    "TradeOffCurves",
]

Array = NDArray[np.float64]

# Auditors whose evidence says what a run of another size would have shown.
_OF_SCORES = "gaussian-shift", "gaussian-rectangle"
_OF_STEPS = "subsampled-gaussian"
_FALSE_POSITIVES = 0.01
_CANARY_FACTORS = 2.0 ** np.arange(-4, 5)
_STEP_FACTORS = 2.0 ** np.arange(-5, 3)
# Levels of the measured trade-off curve, and how finely its top is looked for.
_LEVELS = 40
_RESOLUTION = 2e-3
# A longer line would be wider than the axis it stands on.
_LONGEST_ANSWER = 54
# Rates below this are drawn on the edge of a logarithmic axis.
_SMALLEST_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One auditor's answer; the reason where it has none.

    Attributes:
        name: The method.
        lower: The bound; None where it has none.
        point: Its estimate.
        reason: Why there is no bound, or why it must not be used.
        usable: False where an assumption of the method failed a check.
    """

    name: str
    lower: float | None
    point: float | None = None
    reason: str = ""
    usable: bool = True

    @classmethod
    def of_row(cls, row: ComparisonRow) -> Bound:
        """That of one row of a comparison."""
        return cls(
            name=row.label,
            lower=row.bound,
            point=row.estimate,
            reason=row.reason,
            usable=not row.reason.startswith("INVALID"),
        )

    def __str__(self) -> str:
        name = one_line(self.name, 40)
        if self.lower is None:
            return one_line(f"{name}: {self.reason}", _LONGEST_ANSWER)
        warning = "" if self.usable else ", not valid"
        if math.isinf(self.lower):
            return f"{name}: no finite epsilon fits{warning}"
        return f"{name}: at least {number(self.lower)}{warning}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpsilonAxis(AuditFigure):
    """Claimed and measured epsilon on one axis, one row an auditor.

    A bar begins at the bound: epsilon is somewhere on it. A ring marks the estimate.

    Attributes:
        claimed: The claimed epsilon, if any.
        delta: The delta of all bounds.
        bounds: One an auditor; the first is the one that decided.
        carries_bound: Whether the deciding one is evidence at all.
    """

    title = ""
    kind = "axis"

    claimed: float | None
    delta: float
    bounds: tuple[Bound, ...]
    carries_bound: bool = True

    @classmethod
    def from_result(cls, result: AuditResult, comparison: Comparison | None = None) -> Self:
        """Claimed epsilon, the bound of the result, and those of a comparison.

        Args:
            result: The audit.
            comparison: Other auditors' bounds on the same scores, to be shown beside it.
        """
        name, free = result.auditor.name, result.distribution_free
        rows = () if comparison is None else comparison.rows
        own = Bound(
            name=name,
            lower=result.epsilon_lower,
            point=result.epsilon_point,
            usable=result.usable,
        )
        beside = (
            () if free is None else (Bound(name="without assumptions", lower=free.epsilon_lower),)
        )
        return cls(
            verdict=result.verdict,
            claimed=None if result.claim is None else result.claim.epsilon,
            delta=result.delta,
            bounds=(own, *beside, *(Bound.of_row(row) for row in rows if row.label != name)),
            carries_bound=result.carries_bound,
        )

    @classmethod
    def from_comparison(cls, comparison: Comparison) -> Self:
        """Every method's bound, in the order of the comparison."""
        return cls(
            claimed=None if comparison.claim is None else comparison.claim.epsilon,
            delta=comparison.delta,
            bounds=tuple(map(Bound.of_row, comparison.rows)),
        )

    @property
    def label(self) -> str:
        """What it shows, for readers who cannot see it."""
        shown = "" if self.claimed is None else f"claimed {number(self.claimed)}, "
        lower = number(self.bounds[0].lower)
        return f"Epsilon on one axis: {shown}measured at least {lower}."

    @property
    def caption(self) -> str:
        """What the figure shows."""
        decided = self.bounds[0]
        if decided.usable:
            caption = "Epsilon lies somewhere on the bar, which begins at the bound"
            caption += "; the ring is an estimate." if decided.point is not None else "."
        elif self.carries_bound:
            caption = "The bound is drawn for the record only: an assumption it rests on failed."
        else:
            caption = "There is no bound."
        if len(self.bounds) > 1:
            caption += " The first method decided; the others are shown for comparison only."
        return caption

    @property
    def size(self) -> tuple[float, float]:
        """As high as there are bounds."""
        rows = len(self.bounds)
        return 4.3, 0.85 + (0.46 if rows < 3 else 0.36) * rows

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        rows = len(self.bounds)
        ax = style.axes(ax, height=0.9 + 0.55 * rows)
        color = self.accent
        values = [value for bound in self.bounds for value in (bound.lower, bound.point)]
        finite = [value for value in (*values, self.claimed) if value is not None]
        finite = [value for value in finite if math.isfinite(value)]
        right = 1.22 * max([*finite, 1e-9]) if any(finite) else 1.0
        for row, bound in enumerate(self.bounds):
            main = row == 0
            tone = color if main else style.OTHER
            height = -row
            ax.annotate(
                str(bound),
                (0.0, height),
                xytext=(2, 8),
                textcoords="offset points",
                color=style.INK if main else style.MUTED,
                fontsize=10 if main else 9,
                va="bottom",
                zorder=5,
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5},
                parse_math=False,
            )
            ax.plot([0.0, right], [height, height], color=style.GRID, linewidth=1.0, zorder=1)
            if bound.lower is None:
                continue
            start = right if math.isinf(bound.lower) else bound.lower
            ax.plot(
                [start, right],
                [height, height],
                color=tone,
                alpha=0.28 if bound.usable else 0.1,
                linewidth=7 if main else 5,
                solid_capstyle="butt",
            )
            marker = ">" if math.isinf(bound.lower) else "|"
            ax.plot(
                [start],
                [height],
                marker=marker,
                markersize=11 if main else 8,
                markeredgewidth=2.6 if main else 1.8,
                color=tone,
                zorder=4,
                clip_on=False,
            )
            if bound.point is not None and math.isfinite(bound.point):
                ax.plot(
                    [bound.point],
                    [height],
                    marker="o",
                    markersize=6 if main else 5,
                    markerfacecolor=style.PAPER,
                    markeredgecolor=tone,
                    zorder=4,
                )
        if self.claimed is not None:
            ax.plot(
                [self.claimed] * 2, [-rows + 0.62, 0.62], color=style.CLAIM, linewidth=1.6, zorder=3
            )
            ax.annotate(
                f"claimed {number(self.claimed)}",
                (self.claimed, 0.62),
                xytext=(0, 3),
                textcoords="offset points",
                color=style.CLAIM,
                fontsize=10,
                ha="center",
                va="bottom",
            )
        style.tidy(ax, x=f"epsilon at delta {self.delta:g}", grid="x")
        ax.set_xlim(0.0, right)
        ax.set_ylim(-rows + 0.55, 0.95)
        ax.set_yticks([])
        return ax


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an attacker can do: claimed at most, measured at least; None where it is not known.

    Attributes:
        advantage: Largest true positive rate minus false positive rate, claimed and measured.
        true_positives: True positive rate at 1 % false positives.
        belief: Belief in presence that an even prior can rise to, but for events of probability
            delta.
        from_mechanism: Whether the claimed numbers are those of the described mechanism, rather
            than of the worst one the claimed epsilon and delta allow.
        from_gaussian: Whether they are those of a Gaussian mechanism, as the measured ones are.
    """

    advantage: tuple[float | None, float | None]
    true_positives: tuple[float | None, float | None]
    belief: tuple[float | None, float | None]
    from_mechanism: bool
    from_gaussian: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TradeOffCurves(AuditFigure):
    """False negatives against false positives, and what they mean.

    A lower curve leaks more. No attack can be below the curve of the mechanism.

    Attributes:
        alpha: False positive rates.
        claim: The lowest curve the claimed epsilon and delta allow.
        mechanism: The curve of the claimed mechanism, where it is described.
        measured: The curve through the bounds at many deltas.
        observed: Error rates of thresholds on the scores: false positives, false negatives.
        meaning: What an attacker can do at such curves.
        missing: Why there is no measured curve; empty where there is one.
    """

    title = "Trade-off curve"
    label = "False negative rate against false positive rate: claim and bound."
    kind = "square"

    alpha: Array
    claim: Array | None
    mechanism: Array | None
    measured: Array | None
    observed: tuple[Array, Array] | None
    meaning: Meaning
    missing: str

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """The trade-off curve that was claimed, the one at the bound, and what they mean.

        A bound of a method that does not model the scores says nothing of the curve away from its
        own delta; then there is no measured curve.
        """
        # Fine at both ends, for logarithmic axes.
        small = np.geomspace(1e-7, 0.05, 60)
        alpha = np.concatenate(
            [[0.0], small, np.linspace(0.06, 0.94, 60), 1.0 - small[::-1], [1.0]]
        )
        claim = result.claim
        claimed = None if claim is None else TradeOff.epsilon_delta(claim.epsilon, claim.delta)
        mechanism, missing = _mechanism_curve(result), _no_profile(result)
        bound_at = _bound_at(result)
        profile = None if missing else _profile(result, bound_at)
        measured = None if profile is None else TradeOff.from_profile(*zip(*profile, strict=True))
        bound: float | None = result.epsilon_lower
        if not result.usable:
            free = result.distribution_free
            bound = None if free is None else free.epsilon_lower
        scores = tables_of(result).scores
        observed = None
        if scores is not None:
            above = np.cumsum(scores.absent_counts[::-1])[::-1] / scores.absent.count
            below = np.cumsum(scores.present_counts) / scores.present.count
            observed = above[1:], below[:-1]

        def drawn(curve: TradeOff | None) -> Array | None:
            return None if curve is None else curve.beta_at(alpha)

        # Compared with a Gaussian curve, a claim is read as one too: the larger epsilon leaks more
        # everywhere then.
        gaussian_claim = None
        if mechanism is None and claim is not None and measured is not None and claim.delta > 0.0:
            gaussian_claim = TradeOff.gaussian(gaussian.gdp_mu(claim.epsilon, claim.delta))
        tightest = mechanism or gaussian_claim or claimed
        return cls(
            verdict=result.verdict,
            alpha=alpha,
            claim=drawn(claimed),
            mechanism=drawn(mechanism),
            measured=drawn(measured),
            observed=observed,
            meaning=Meaning(
                advantage=(
                    None if tightest is None else tightest.advantage(),
                    None if profile is None else profile[0][1],
                ),
                true_positives=(
                    None if tightest is None else 1.0 - tightest.beta_at(_FALSE_POSITIVES),
                    None if profile is None else _least_true_positives(profile, bound_at),
                ),
                belief=(
                    None if claim is None else float(expit(claim.epsilon)),
                    None if bound is None else float(expit(bound)),
                ),
                from_mechanism=mechanism is not None,
                from_gaussian=gaussian_claim is not None,
            ),
            missing=missing,
        )

    @property
    def caption(self) -> str:
        """What the figure shows, or why there is no measured curve."""
        return self.missing or "The measured curve goes through the bounds at many deltas."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax, 4.4, 4.0)
        color = self.accent
        inside = (self.alpha > 0.0) & (self.alpha < 1.0)
        floor = _SMALLEST_RATE
        if self.claim is not None:
            # A little below the corner of the region that the claim forbids.
            corner = float(np.maximum(self.alpha, self.claim).min())
            floor = min(max(0.1 * corner, floor), 1e-3)
        ax.plot(self.alpha[inside], 1.0 - self.alpha[inside], color=style.GRID, linewidth=1.0)
        if self.claim is not None:
            ax.fill_between(
                self.alpha[inside],
                floor,
                np.maximum(self.claim[inside], floor),
                color=style.CLAIM,
                alpha=0.22,
                linewidth=0,
                label="forbidden by the claim",
            )
        if self.mechanism is not None:
            ax.plot(
                self.alpha,
                self.mechanism,
                color=style.CLAIM,
                linewidth=1.4,
                label="claimed mechanism",
            )
        if self.measured is not None:
            ax.plot(self.alpha, self.measured, color=color, linewidth=2.0, label="measured bound")
        if self.observed is not None:
            false, missed = self.observed
            seen = (false >= floor) & (missed >= floor)
            ax.plot(
                false[seen],
                missed[seen],
                linestyle="none",
                marker="o",
                markersize=2.4,
                clip_on=False,
                color=style.OTHER,
                label="thresholds on the scores",
            )
        style.tidy(ax, x="false positive rate", y="false negative rate", grid="both")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(floor, 1.0)
        ax.set_ylim(floor, 1.0)
        ax.set_box_aspect(1)
        style.log_ticks(ax.xaxis, most=8)
        style.log_ticks(ax.yaxis, most=8)
        if ax.get_legend_handles_labels()[0]:
            style.legend(ax, loc="center")
        return ax


def _mechanism_curve(result: AuditResult) -> TradeOff | None:
    """The curve of the mechanism that was claimed, where the claim describes it."""
    claim = result.claim
    if claim is None or not claim.noise_multiplier:
        return None
    if claim.sampling_rate is None or claim.steps is None or claim.adjacency == "replace":
        return None
    return accounting.dpsgd_tradeoff(
        noise_multiplier=claim.noise_multiplier,
        sampling_rate=claim.sampling_rate,
        steps=claim.steps,
    )


def _no_profile(result: AuditResult) -> str:
    """Why the bound says nothing of other deltas; empty where it does."""
    if not result.usable:
        return "An assumption of the bound failed, so there is no measured curve."
    if not result.assumption.gaussian_curve:
        return "This method bounds epsilon at one delta: there is no measured curve."
    if math.isinf(result.epsilon_lower):
        return "No finite epsilon fits, so there is no measured curve."
    if result.epsilon_lower == 0.0:
        return "The bound is 0, so there is no measured curve."
    if not _answers_everywhere(result):
        return "A measured curve needs the sampling rate and the number of steps of the scores."
    return ""


def _bound_at(result: AuditResult) -> Callable[[float], float]:
    """The bound at any delta.

    Of a composed bound the ratio of signal to noise behind it is found once: to ask the auditor
    would fit every tensor again for every delta.
    """
    evidence, epsilon = result.evidence, result.epsilon_lower
    rate = (
        None if getattr(evidence, "replaced", False) else getattr(evidence, "sampling_rate", None)
    )
    if result.auditor.name != _OF_STEPS or rate is None or not 0.0 < epsilon < math.inf:
        return lambda delta: result.epsilon_at(delta=delta)
    run = {"sampling_rate": rate, "steps": evidence.steps}
    # The ratio is given to seven digits and rounded up; give up more than that.
    signal = (1.0 - 1e-6) * accounting.dpsgd_signal_to_noise(
        epsilon=epsilon, delta=result.delta, **run
    )
    return lambda delta: accounting.dpsgd_epsilon_lower(signal_to_noise=signal, delta=delta, **run)


def _profile(result: AuditResult, bound_at: Callable[[float], float]) -> list[tuple[float, float]]:
    """Bounds on epsilon at many deltas, as pairs of rising epsilon and falling delta.

    Where the scores are modelled, one event makes all of them true together. The first epsilon is
    0, and its delta the least advantage.
    """
    low, high = result.delta, 1.0
    while high - low > _RESOLUTION * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bound_at(middle) > 0.0 else (low, middle)
    pairs = [(0.0, low)]
    # Most levels where a picture shows them, and a few for the steep end.
    middle = min(1e-3, 0.1 * low)
    visible = ndtr(np.linspace(ndtri(low), ndtri(middle), _LEVELS))
    steep = np.geomspace(middle, 0.01 * min(result.delta, middle), 5)[1:]
    for delta in np.concatenate([visible, steep]).tolist():
        epsilon = bound_at(delta)
        if pairs[-1][0] < epsilon < math.inf:
            pairs.append((epsilon, delta))
    return pairs


def _answers_everywhere(result: AuditResult) -> bool:
    """Whether the method vouches for its bound at every delta."""
    try:
        result.epsilon_at(delta=0.5)
    except (InvalidArgumentError, NotDefinedError):
        return False
    return True


def _least_true_positives(
    profile: list[tuple[float, float]], bound_at: Callable[[float], float]
) -> float:
    """The true positive rate at 1 % false positives, from below.

    It is the least of ``delta + e^epsilon alpha`` over the whole profile (and of the same with the
    roles exchanged). Between two pairs it is at least what the smaller epsilon gives with the
    smaller delta; the interval where that is least is halved until it is known well enough.
    """
    alpha = _FALSE_POSITIVES

    def rate(epsilon: float, delta: float) -> float:
        growth = math.exp(min(epsilon, 700.0))
        return min(delta + growth * alpha, 1.0 - (1.0 - delta - alpha) / growth)

    pairs = [*profile, (math.inf, 0.0)]
    while True:
        floors = [rate(left[0], right[1]) for left, right in pairwise(pairs)]
        best = min(rate(*pair) for pair in profile)
        place = int(np.argmin(floors))
        left, right = pairs[place], pairs[place + 1]
        if floors[place] >= 0.97 * best or len(pairs) > 3 * _LEVELS or right[1] == 0.0:
            return max(floors[place], alpha)
        delta = float(ndtr(0.5 * (ndtri(left[1]) + ndtri(right[1]))))
        epsilon = min(max(bound_at(delta), left[0]), right[0])
        pairs.insert(place + 1, (epsilon, delta))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpsilonCurve(AuditFigure):
    """The bound this method would report of the same run at other sizes.

    Attributes:
        size: Number of canaries, or of steps.
        lower: The bound there.
        point: The estimate of epsilon there.
        here: The size of this audit.
        bound: Its bound.
        claimed: The claimed epsilon.
    """

    what: ClassVar[str]

    sizes: Array
    lower: Array
    point: Array
    here: float
    bound: float
    claimed: float | None

    @classmethod
    def _of(cls, result: AuditResult, found: Sequence[tuple[float, Any]], here: float) -> Self:
        """The bounds that evidence of other sizes gives."""
        rows = []
        for size, evidence in found:
            lower = result.auditor.epsilon_lower(
                evidence, delta=result.delta, confidence=result.confidence
            )
            point = result.auditor.epsilon_point(evidence, delta=result.delta)
            if point is not None and math.isfinite(lower) and math.isfinite(point):
                rows.append((float(size), lower, point))
        if len(rows) < 2:
            raise NothingToDrawError("needs a finite bound.")
        sizes, lower, point = np.array(rows).T
        return cls(
            verdict=result.verdict,
            sizes=sizes,
            lower=lower,
            point=point,
            here=here,
            bound=result.epsilon_lower,
            claimed=None if result.claim is None else result.claim.epsilon,
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        color = self.accent
        ax = style.axes(ax)
        if self.claimed is not None:
            ax.axhline(self.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
        ax.plot(
            self.sizes,
            self.point,
            color=style.OTHER,
            linewidth=1.2,
            linestyle=(0, (4, 3)),
            label="estimate",
        )
        ax.plot(self.sizes, self.lower, color=color, linewidth=2.0, label="bound")
        ax.plot([self.here], [self.bound], marker="o", color=color, linestyle="none", markersize=6)
        ax.set_xscale("log")
        style.tidy(ax, x=f"number of {self.what}", y="epsilon")
        style.count_ticks(ax)
        ax.set_ylim(bottom=0.0)
        style.legend(ax, loc="best")
        return ax


class EpsilonByCanaries(EpsilonCurve):
    """The bound this method would report of the same run with more or fewer canaries."""

    __slots__ = ()

    title = "With more or fewer canaries"
    label = "The bound on epsilon by number of canaries."
    what = "canaries"
    caption = "What the same run would have shown; the dot is this audit."

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """The bound with more or fewer canaries, all else as measured."""
        _check_law(result)
        total = result.present + result.absent
        factors = _CANARY_FACTORS[_CANARY_FACTORS * min(result.present, result.absent) >= 2.0]
        evidence = _pooled(result.evidence)
        found = [(factor * total, resized(evidence, factor)) for factor in factors]
        return cls._of(result, found, float(total))


class EpsilonBySteps(EpsilonCurve):
    """The bound this method would report after more or fewer steps of the same kind."""

    __slots__ = ()

    title = "After more or fewer steps"
    label = "The bound on epsilon by number of steps."
    what = "steps"
    caption = "What the same kind of run would have shown; the dot is this audit."

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """The bound after more or fewer steps, all else as measured."""
        name, evidence = result.auditor.name, _pooled(result.evidence)
        _check_law(result)
        if evidence.steps is None or getattr(evidence, "slope", None) is not None:
            raise NothingToDrawError("needs the number of steps, each with the same noise.")
        run = tables_of(result).run
        if name != _OF_STEPS and (run.source != "transcript" and evidence.sampling_rate == 1.0):
            # Correlated noise looks the same in the scores, and grows otherwise.
            raise NothingToDrawError("needs a transcript, or scores of sampled canaries.")
        here: int = evidence.steps
        found = []
        for steps in np.unique(np.rint(_STEP_FACTORS * here)).astype(int).tolist():
            if steps < 1:
                continue
            if name == _OF_STEPS:
                if evidence.plantings * steps < 2 * here:
                    continue
                found.append((steps, replace(resized(evidence, steps / here), steps=steps)))
            else:
                # In units of the noise of a score, the shift grows with the root of the steps.
                gap = evidence.present.mean - evidence.absent.mean
                mean = evidence.absent.mean + gap * math.sqrt(steps / here)
                present = replace(evidence.present, mean=mean)
                found.append((steps, replace(evidence, steps=steps, present=present)))
        return cls._of(result, found, float(here))


def _check_law(result: AuditResult) -> None:
    """Refuse methods and bounds that say nothing of other sizes."""
    name, point = result.auditor.name, result.epsilon_point
    if name not in (*_OF_SCORES, _OF_STEPS):
        raise NothingToDrawError(f"{name} has no model of what other sizes would show.")
    if not result.usable:
        raise NothingToDrawError("an assumption of the bound failed.")
    if point is not None and result.epsilon_lower > point:
        raise NothingToDrawError("the bound is that of one tensor, above the estimate from all.")


def _pooled(evidence: Any) -> Any:
    """Evidence of all tensors together.

    Scaled by itself, what a small tensor shows by chance would become certain, and the largest of
    many tensors' bounds would be drawn.
    """
    if not isinstance(evidence, StepEvidence):
        return evidence
    return replace(evidence, strata=evidence.strata[:1], weighted=evidence.weighted[:1])
