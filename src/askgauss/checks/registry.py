"""The checks and the parts of the training they test, each declared once.

A check is one function with a declaration above it::

    @check("noise by tensor", part=NOISE_SCALE, explains="noise scale, noise shape")
    def noise_by_tensor(context: Context) -> Finding: ...

What an audit tested (`scope`), which failure explains which (`gate`), what a published p-value may
reveal (`publish`), the severity that reports state and docs/checks.md follow from the declarations.
Modules list their checks in the order in which they run: the number of checks decides each one's
share of the gate's false-alarm rate.

A check ends as a finding: `judged` by its p-value once the gate has decided, a `fact` that holds or
does not, or `not_run` for lack of data. Findings get their names from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.stats.rounding import round_p_value

__all__ = [
    "ACCOUNTANT",
    "ADJACENCY",
    "CLIPPING",
    "DRAWS",
    "NOISE_FRESHNESS",
    "NOISE_SCALE",
    "PARTS",
    "PER_SAMPLE_GRADIENT",
    "PRIVACY_UNIT",
    "SAMPLER",
    "SENSITIVITY",
    "STEPS",
    "SUSPICIOUS",
    "TRAINED_PARAMETERS",
    "TRAINED_ROWS",
    "WEIGHTING",
    "WEIGHTS",
    "Check",
    "Severity",
    "TrainingPart",
    "Undecided",
    "check",
    "fact",
    "failed_status",
    "judged",
    "made",
    "not_run",
    "published_p_value",
    "registered",
    "severity",
]

Data = TypeVar("Data")
Reads = TypeVar("Reads", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPart:
    """A part of the training that checks test.

    Attributes:
        name: What it is called.
        passed: The word for it among the parts canaries went through; empty where canaries do not
            go through it, and other facts tell.
        how_to_test: The next step where it was not tested.
        of: Where this part occurs: in training on records, in federated rounds, or in both.
        needed: Whether the claimed epsilon is about this part itself, so that CONSISTENT is not
            given where it was not tested, whatever canaries went through.
    """

    name: str
    passed: str = ""
    how_to_test: str
    of: Literal["records", "rounds", "both"] = "both"
    needed: bool = False


_SEE_THE_NOISE = "record with observe(..., background=the clean sum), or watch coordinates"

NOISE_SCALE = TrainingPart(name="noise scale", passed="noise", how_to_test=_SEE_THE_NOISE)
NOISE_FRESHNESS = TrainingPart(name="noise freshness", passed="noise", how_to_test=_SEE_THE_NOISE)
SAMPLER = TrainingPart(
    name="sampler",
    passed="sampler",
    how_to_test="give the audit the private loader, CanaryAudit(optimizer, data_loader=loader); in "
    "an own loop, observe(planted=...)",
)
# Whether a record's gradient is its own. What an input-space canary adds on average does not tell:
# a loss that mixes records shares the canary out over rows that add up to it.
PER_SAMPLE_GRADIENT = TrainingPart(
    name="per-sample gradient",
    passed="per-sample gradient",
    how_to_test="compare neighbouring datasets with replay(), and review that no layer or loss "
    "mixes records",
    of="records",
)
CLIPPING = TrainingPart(
    name="clipping",
    passed="clipping",
    how_to_test="send canaries through the clipper: with gradients of single records (no "
    'ghost clipping) CanaryAudit(..., inject="sample"); wrap(..., clipped_grad=...) in JAX; in '
    'an own loop, canary rows among the gradients to be clipped, Recorder(inserted="before '
    'clipping")',
)
WEIGHTING = TrainingPart(
    name="weighting",
    passed="weighting",
    how_to_test="audit an aggregator that can be copied, or let clients report different weights",
    of="rounds",
)
ADJACENCY = TrainingPart(
    name="adjacency",
    how_to_test="audit gradient-space canaries, or claim add-remove neighbours",
    needed=True,
)
PRIVACY_UNIT = TrainingPart(
    name="privacy unit",
    how_to_test='insert whole users as canaries and declare it, Recorder(..., unit="user")',
    needed=True,
)
TRAINED_ROWS = TrainingPart(
    name="trained rows",
    how_to_test="give the audit the loader that make_private returned: data_loader=",
)
STEPS = TrainingPart(
    name="steps", how_to_test="say how many steps were accounted for: PrivacyClaim(steps=...)"
)
ACCOUNTANT = TrainingPart(
    name="accountant",
    how_to_test="claim noise_multiplier=, sampling_rate= and steps=, or attach to the run",
)
WEIGHTS = TrainingPart(
    name="weights",
    how_to_test="use an optimizer that treats coordinates apart, such as SGD or Adam; "
    "elsewhere compare neighbouring datasets with replay(), and review what is done with the "
    "noisy gradient, such as a division by the size of the batch",
)
TRAINED_PARAMETERS = TrainingPart(
    name="trained parameters",
    how_to_test="give the audit the model: CanaryAudit(optimizer, model=model)",
)

PARTS = (
    NOISE_SCALE,
    NOISE_FRESHNESS,
    SAMPLER,
    PER_SAMPLE_GRADIENT,
    CLIPPING,
    WEIGHTING,
    ADJACENCY,
    PRIVACY_UNIT,
    TRAINED_ROWS,
    STEPS,
    ACCOUNTANT,
    WEIGHTS,
    TRAINED_PARAMETERS,
)
"""Every part of the training, in the order in which results list them."""


class Severity(Enum):
    """What a failure does to the guarantee, in the classes of JAX Privacy's list of pitfalls.

    They say how much of the formal guarantee is lost, not how likely harm is.
    """

    CRITICAL = "critical"
    """An ordinary mistake, without any sign of it: the stated epsilon does not hold."""
    THEORETICAL = "theoretical"
    """The guarantee fails only against an active adversary in conditions largely theoretical."""
    NEGLIGIBLE = "negligible"
    """The guarantee holds, up to a negligible amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Reads]):
    """A check: its declaration and the function that makes its finding.

    Attributes:
        name: What findings call it.
        part: The part of the training that it tests; None where it tests what the audit assumes.
        decides: Whether the part counts as tested once this check ran, with enough power.
        exact: Whether it reads the run's own records, and so tests its part whether or not canaries
            went through it.
        explains: Names of the checks that fail because this one does. No chain of them comes back
            to itself.
        reveals_individual: Whether its p-value may be that of one canary, one step or one pair, so
            that it is published as a power of ten.
        severity: What its failure does to the guarantee, where the failure is about the guarantee.
        needs: What it needs of the data: each says what is missing, or nothing.
        after_resume: Whether it fails where a model is resumed from another step than its audit:
            steps are then recorded twice or not at all.
        test: Makes the finding, without the name; None where the check does not concern the run.
    """

    name: str
    part: TrainingPart | None = None
    decides: bool = False
    exact: bool = False
    explains: tuple[str, ...] = ()
    reveals_individual: bool = False
    severity: Severity = Severity.CRITICAL
    needs: tuple[Callable[[Any], str], ...] = ()
    after_resume: bool = False
    test: Callable[[Reads], Finding | None]

    def __call__(self, data: Reads) -> Finding | None:
        """The finding of the check under its name; None where it does not concern the run."""
        missing = next(filter(None, (need(data) for need in self.needs)), "")
        found = not_run(missing) if missing else self.test(data)
        return None if found is None else replace(found, check=self.name)

    def variant(self, test: Callable[[Data], Finding | None]) -> Check[Data]:
        """The same check of other data, by another function."""
        return replace(self, test=test, needs=())  # type: ignore[arg-type, return-value]


# A p-value below this that the gate does not reject is worth a look, and no more than that.
SUSPICIOUS = 1e-3

SENSITIVITY = (
    "contribution, single plantings, planted noise, even contribution, equal variance, "
    "normality of present scores, whole-run correlation"
)
"""Checks that fail where a record adds too much."""
DRAWS = (
    "sampling rate, sampling scheme, sampling of pairs, sampling in time, batch sizes, "
    "single records"
)
"""Checks that fail where other records are trained on than were drawn."""

_REGISTERED: dict[str, Check[Any]] = {}


def check(
    name: str,
    *,
    part: TrainingPart | None = None,
    decides: bool = False,
    exact: bool = False,
    explains: str = "",
    reveals_individual: bool = False,
    severity: Severity = Severity.CRITICAL,
    needs: tuple[Callable[[Any], str], ...] = (),
    after_resume: bool = False,
) -> Callable[[Callable[[Data], Finding | None]], Check[Data]]:
    """Declare and register the check that a function makes.

    The arguments are the attributes of `Check`; what it explains is a list with commas.
    """

    def declared(test: Callable[[Data], Finding | None]) -> Check[Data]:
        assert name not in _REGISTERED, name
        found = Check(
            name=name,
            part=part,
            decides=decides,
            exact=exact,
            explains=tuple(item for item in explains.split(", ") if item not in ("", name)),
            reveals_individual=reveals_individual,
            severity=severity,
            needs=needs,
            after_resume=after_resume,
            test=test,
        )
        _REGISTERED[name] = found
        return found

    return declared


def registered() -> Mapping[str, Check[Any]]:
    """Every check by its name."""
    return MappingProxyType(_REGISTERED)


def made(checks: Iterable[Check[Data]], data: Data) -> Iterator[Finding]:
    """The findings of these checks, in their order, without those that do not concern the run."""
    for item in checks:
        if (found := item(data)) is not None:
            yield found


def published_p_value(finding: Finding) -> float | None:
    """The p-value of a finding as it may be published, never below what it was."""
    if finding.p_value is None:
        return None
    declared = _REGISTERED.get(finding.check)
    of_one = declared is not None and declared.reveals_individual
    return round_p_value(finding.p_value, of_one=of_one)


def severity(finding: Finding) -> Severity | None:
    """What a failure of this finding means for the guarantee; None where it is about the audit."""
    declared = _REGISTERED.get(finding.check)
    if finding.consequence not in (Consequence.BREACH, Consequence.INVALIDATES):
        return Severity.NEGLIGIBLE
    if finding.consequence is Consequence.INVALIDATES and (declared is None or not declared.part):
        return None
    return Severity.CRITICAL if declared is None else declared.severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided(Finding):
    """A check before the gate has decided.

    Attributes:
        if_wrong: What to add to the summary where it does not pass.
    """

    if_wrong: str = ""


def judged(
    p_value: float,
    summary: str,
    *,
    if_wrong: str = "",
    consequence: Consequence,
    breach: tuple[bool, str] = (False, ""),
    measured: float | None = None,
    interval: tuple[float, float] | None = None,
    claimed: float | None = None,
    remedy: str = "",
    tolerable: bool = False,
    undermines: Assumption = Assumption.GAUSSIAN_SCORES,
    sees: str = "",
    visible: float | None = None,
) -> Finding:
    """A check with a p-value; the gate decides later whether it failed.

    Args:
        p_value: Probability of something at least as far off in a correct implementation.
        summary: What was measured, in words that hold however the check ends.
        if_wrong: What to add where it does not pass, such as what follows from it.
        consequence: What a failure means where it is no breach.
        breach: Whether a failure violates the claim, and a sentence about it.
        measured: The measured value.
        interval: Its confidence interval.
        claimed: What it is compared with.
        remedy: What to do about a failure.
        tolerable: The difference is real or not, but too small to matter: it cannot fail.
        undermines: The least a bound must assume for a failure to make it too high.
        sees: The smallest fault it detects with probability .8, in words.
        visible: The size of that fault, as a share of what is claimed.
    """
    if tolerable and p_value < SUSPICIOUS:
        summary = f"{summary[:-1]}; the difference is too small to matter."
    violates, implied = breach
    return Undecided(
        if_wrong=f"{if_wrong} {implied.strip()}".strip(),
        check="",
        status=Status.PASS,
        summary=summary,
        consequence=Consequence.BREACH if violates else consequence,
        undermines=undermines,
        measured=measured,
        interval=interval,
        claimed=claimed,
        p_value=1.0 if tolerable else min(max(float(p_value), 0.0), 1.0),
        remedy=remedy,
        sees=sees,
        visible=visible,
    )


def fact(
    failed: bool,
    summary: str,
    *,
    consequence: Consequence,
    measured: float | None = None,
    claimed: float | None = None,
    remedy: str = "",
    undermines: Assumption = Assumption.DISTRIBUTION_FREE,
    sees: str = "",
    visible: float | None = None,
) -> Finding:
    """A deterministic check: it holds or it does not."""
    return Finding(
        check="",
        status=failed_status(consequence) if failed else Status.PASS,
        summary=summary,
        consequence=consequence,
        undermines=undermines,
        measured=measured,
        claimed=claimed,
        remedy=remedy if failed else "",
        sees=sees,
        visible=visible,
    )


def not_run(needs: str) -> Finding:
    """A check that could not be made; listed, so that it never passes silently."""
    return Finding(check="", status=Status.NOT_RUN, summary=f"not run: needs {needs}.")


def failed_status(consequence: Consequence) -> Status:
    """How a check with this consequence ends where it fails."""
    serious = consequence in (Consequence.BREACH, Consequence.INVALIDATES)
    return Status.FAIL if serious else Status.WARN


def _made_elsewhere(_: object) -> None:
    """Made by the auditor or by a replay."""


# Findings that auditors and replays make, which test a part of the training as well.
for _elsewhere in (
    Check(name="noise", part=NOISE_SCALE, test=_made_elsewhere),
    Check(name="sampling", part=SAMPLER, test=_made_elsewhere),
    Check(name="replay", part=PER_SAMPLE_GRADIENT, exact=True, test=_made_elsewhere),
):
    _REGISTERED[_elsewhere.name] = _elsewhere
