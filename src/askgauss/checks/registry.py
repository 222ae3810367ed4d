"""The checks and the parts of the training they test, each declared once.

A check is one function with a declaration above it::

    @check("noise by tensor", part=NOISE_SCALE, explains="noise scale, noise shape")
    def noise_by_tensor(context: Context) -> Finding: ...

What an audit tested (`scope`), which failure explains which (`causes`) and what a published p-value
may reveal (`publish`) all follow from the declarations. Modules list their checks in the order in
which they run: how many checks there are decides the share of the gate error that each of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from askgauss.results import Finding
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
    "TRAINED_PARAMETERS",
    "TRAINED_ROWS",
    "WEIGHTING",
    "WEIGHTS",
    "Check",
    "TrainingPart",
    "check",
    "made",
    "published_p_value",
    "registered",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Reads]):
    """A check: its declaration and the function that makes its finding.

    Attributes:
        name: What findings call it.
        part: The part of the training that it tests; a failure breaks the part.
        decides: Whether the part counts as tested once this check ran, with enough power.
        exact: Whether it reads the run's own records, and so tests its part whether or not canaries
            went through it.
        explains: Names of the checks that fail because this one does. No chain of them comes back
            to itself.
        reveals_individual: Whether its p-value may be that of one canary, one step or one pair, so
            that it is published as a power of ten.
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
    after_resume: bool = False
    test: Callable[[Reads], Finding | None]

    def __call__(self, data: Reads) -> Finding | None:
        """The finding of the check under its name; None where it does not concern the run."""
        found = self.test(data)
        return None if found is None else replace(found, check=self.name)

    def variant(self, test: Callable[[Data], Finding | None]) -> Check[Data]:
        """The same check of other data, by another function."""
        return replace(self, test=test)  # type: ignore[arg-type, return-value]


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


def _none(_: object) -> None:
    return None


# Findings that auditors and replays make, which test a part of the training as well.
for _elsewhere in (
    Check(name="noise", part=NOISE_SCALE, test=_none),
    Check(name="sampling", part=SAMPLER, test=_none),
    Check(name="replay", part=PER_SAMPLE_GRADIENT, exact=True, test=_none),
):
    _REGISTERED[_elsewhere.name] = _elsewhere
