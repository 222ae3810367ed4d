"""Deterministic checks of weights and steps; they have no false positives by construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from askgauss.checks.context import Context
from askgauss.checks.registry import (
    CLIPPING,
    NOISE_SCALE,
    SENSITIVITY,
    STEPS,
    TRAINED_PARAMETERS,
    WEIGHTS,
    Check,
    check,
    fact,
    made,
    not_run,
)
from askgauss.recording.facts import SettingFacts, StepFacts, WeightFacts
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.results import Consequence, Finding
from askgauss.stats.rounding import FEW, about, digits

__all__ = [
    "RECORDING_CHECKS",
    "STEP_CHECKS",
    "WEIGHT_CHECKS",
    "loaded_state",
    "moved_by_the_release",
    "schedule_checks",
]

# A contribution this far above the clip norm is no rounding; one further still violates the claim.
_ABOVE = 1.001
_FAR_ABOVE = 1.01
# An error of a norm, as a share of the whole gradient's, that cancellation does not explain.
_NORM_OFF = 0.01
# A loaded state that changes an update by more than the update itself is no detail.
_MORE_THAN_THE_RELEASE = 1.0
# The setting that the divisor is, and the scheduler whose value depends on a metric.
_DIVISOR = "expected batch size"
_BY_METRIC = "ReduceLROnPlateau"


@check("weights moved by the release", part=WEIGHTS, decides=True)
def moved_by_the_release(facts: WeightFacts) -> Finding:
    """Whether every tracked weight moved as the noisy gradient says, and why not."""
    if facts.unchecked:
        return not_run(f"an optimizer whose updates can be recomputed: {facts.unchecked}")
    if facts.steps == 0:
        return not_run("a step that was observed to its end")
    if facts.otherwise == 0:
        said = (
            f"in {facts.steps:,} steps, the noisy gradient explains every update that "
            f"{facts.optimizer} made to the {facts.places:,} tracked weights."
        )
        return fact(
            False,
            said,
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=0.0,
            sees=f"any update of {facts.places:,} tracked weights that the noisy gradient does not "
            "explain",
        )
    only_scaled = facts.scaled == facts.otherwise
    why = "other code wrote to them"
    if facts.closures and facts.regraded:
        why = "a closure computed the gradient again, after the noise"
    elif only_scaled:
        why = f"the gradient was multiplied by {facts.factor:.4g} after the noise"
    elif facts.regraded:
        why = "the gradient was replaced after the noise"
    return fact(
        True,
        f"in {facts.otherwise:,} of {facts.steps:,} steps the noisy gradient does not explain the "
        f"update, first in step {facts.first:,} in {facts.tensor}, where the rest is "
        f"{facts.excess:.3g} times the explained update: {why}.",
        # One factor for all may be postprocessing; anything else is not known to be.
        consequence=Consequence.INVALIDATES if only_scaled else Consequence.BREACH,
        measured=float(facts.otherwise),
        claimed=0.0,
        remedy="If the factor is computed from the noisy gradient alone, apply it before the "
        "optimizer's own step or through the learning rate: then it is postprocessing."
        if only_scaled
        else "Write weights and gradients in the private step only: no closure for the wrapped "
        "optimizer, no second optimizer, no hook that changes gradients.",
    )


@check("loaded optimizer state", part=WEIGHTS)
def loaded_state(facts: WeightFacts) -> Finding | None:
    """Whether every loaded optimizer state follows from what this run released."""
    if facts.unseen:
        return None
    if facts.unchecked:
        return not_run(f"an optimizer whose updates can be recomputed: {facts.unchecked}")
    if facts.steps == 0:
        return not_run("a step that was observed to its end")
    said = "noisy gradients or a checkpoint of this run explain every loaded optimizer state."
    if facts.loaded:
        said = (
            f"before step {facts.loaded_first:,}"
            f"{f' and {facts.loaded - 1:,} times more' if facts.loaded > 1 else ''}, "
            "load_state_dict wrote an optimizer state that neither the noisy gradients nor a "
            "checkpoint of this run explains; it changed the next update by up to "
            f"{facts.loaded_excess:.3g} times the update from the noisy gradients."
        )
    return fact(
        facts.loaded > 0,
        said,
        consequence=Consequence.BREACH
        if facts.loaded_excess > _MORE_THAN_THE_RELEASE
        else Consequence.INVALIDATES,
        measured=float(facts.loaded),
        claimed=0.0,
        remedy="Load only what optimizer.state_dict() returned inside this audited run, or load "
        "before the first step. A state computed from released values alone is loaded inside "
        f"`with {facts.declare}:`.",
    )


@check("weights between steps", part=WEIGHTS)
def weights_between_steps(facts: WeightFacts) -> Finding | None:
    """Whether weights changed outside the optimizer's steps."""
    if facts.unseen:
        return None
    declared = (
        f" {facts.declared:,} changes were declared postprocessing." if facts.declared else ""
    )
    said = f"weights did not change outside optimizer.step().{declared}"
    if facts.between:
        last = facts.between_first > facts.steps > 0
        when = "after the last step" if last else f"before step {facts.between_first:,}"
        often = "once" if facts.between == 1 else f"{facts.between:,} times"
        said = (
            f"weights changed {often} outside optimizer.step(), first {when} in "
            f"{facts.between_tensor}.{declared}"
        )
    return fact(
        facts.between > 0,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.between),
        claimed=0.0,
        remedy="Find the code that writes weights outside optimizer.step(). If it reads released "
        "weights and no data (clamping, rounding, weight decay, an average of weights), put it "
        f"inside `with {facts.declare}:`.",
    )


@check("closure", part=WEIGHTS)
def closure(facts: WeightFacts) -> Finding | None:
    """Whether a closure was passed to the optimizer, which may compute gradients again."""
    if facts.unseen or not facts.optimizer:
        return None
    followed = not facts.unchecked and facts.steps > 0 and facts.otherwise == 0
    said = "no closure was passed to the optimizer that updates the weights."
    if facts.closures:
        said = (
            f"in {facts.closures:,} steps a closure was passed to {facts.optimizer}, which may "
            "compute gradients again, without noise."
        )
    return fact(
        facts.closures > 0,
        said,
        consequence=Consequence.INFORMS if followed else Consequence.INVALIDATES,
        measured=float(facts.closures),
        claimed=0.0,
        remedy="Call step() without a closure, or use Opacus 1.1 or later, which handles it.",
    )


@check("trained parameters without canaries", part=TRAINED_PARAMETERS)
def trained_parameters_without_canaries(facts: WeightFacts) -> Finding | None:
    """Whether every trained tensor has canaries or watched coordinates."""
    if facts.unseen or not facts.optimizer:
        return None
    shown = ", ".join((facts.bare_moved or facts.bare)[:3])
    said = "every trained tensor has canaries or watched coordinates."
    if facts.bare_moved:
        said = f"{len(facts.bare_moved)} tensors without canaries were trained: {shown}."
    elif facts.bare:
        said = f"{len(facts.bare)} trainable tensors have no canaries: {shown}."
    return fact(
        bool(facts.bare or facts.bare_moved),
        said,
        consequence=Consequence.INVALIDATES if facts.bare_moved else Consequence.INFORMS,
        measured=float(len(facts.bare_moved or facts.bare)),
        claimed=0.0,
        remedy="Unfreeze parameters before the audit is created, so that canaries are placed in "
        "them.",
    )


@check("weights that never train", part=TRAINED_PARAMETERS)
def weights_that_never_train(facts: WeightFacts) -> Finding | None:
    """Whether the run left a tensor unchanged, or only noise moved it."""
    if facts.unseen:
        return None
    if facts.steps == 0 or facts.tensors == 0:
        return not_run("a step that was observed to its end")
    still, dead = facts.unmoved, facts.unreached
    nothing = len(still) == facts.tensors
    said = (
        f"all {facts.tensors:,} tracked tensors were updated, and each received gradients of "
        "records."
    )
    if nothing:
        said = (
            f"nothing was trained: in {facts.steps:,} steps none of the {facts.places:,} tracked "
            "weights changed."
        )
    elif still:
        said = f"{len(still)} of {facts.tensors:,} tensors never changed: {_first(still)}."
    elif len(dead) == facts.tensors:
        said = "nothing was learned: no tensor received a record's gradient, only noise."
    elif dead:
        said = (
            f"{len(dead)} of {facts.tensors:,} tensors received only noise and no record's "
            f"gradient in any step: {_first(dead)}."
        )
    return fact(
        bool(still or dead),
        said,
        # The released model is then not what this optimizer trained.
        consequence=Consequence.INVALIDATES if nothing else Consequence.INFORMS,
        measured=float(len(still or dead)),
        claimed=0.0,
        remedy="Check that the optimizer has the tensors that the model uses (create it after "
        "adapters are added and weights are cast or moved), and the learning rate.",
    )


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@check("recording", part=STEPS)
def recording(facts: RunFacts) -> Finding | None:
    """Whether the whole training was recorded."""
    if not facts.ended:
        return None
    return fact(
        True,
        f"the audit stopped recording before the training ended: {facts.ended}",
        consequence=Consequence.INVALIDATES,
        remedy="Remove the cause, then train and audit again.",
    )


@check("frozen parameters", part=TRAINED_PARAMETERS)
def frozen_parameters(facts: RunFacts) -> Finding | None:
    """Which tensors were frozen during the audit."""
    frozen = facts.frozen
    if not frozen:
        return None
    shown = ", ".join(
        f"{name} in {steps:,} steps from step {first:,} on" for name, first, steps in frozen[:3]
    )
    more = f" and {len(frozen) - 3} others" if len(frozen) > 3 else ""
    return fact(
        True,
        f"{len(frozen)} tensors were frozen during the audit ({shown}{more}): their canaries were "
        "left out, and their noise was tested only in steps with exact checks.",
        consequence=Consequence.INFORMS,
        measured=float(len(frozen)),
        claimed=0.0,
        remedy="To test these tensors too, create a new audit whenever the set of trained layers "
        "changes.",
    )


def _schedule(setting: SettingFacts) -> Finding:
    """Whether a setting that changed may depend on the data."""
    name, changes, steps = setting.name, setting.changes, setting.steps
    declared = (
        f" {setting.declared:,} changes were declared to be independent of the data, or made by a "
        "scheduler of the step number."
        if setting.declared
        else ""
    )
    said = f"the {name} changed in {changes:,} of {steps:,} steps"
    if setting.erratic:
        said += (
            f", up and down, first in step {setting.first:,}, and no schedule of the step number "
            "explains it. A value computed from the batch (norms, loss, batch size) without noise "
            "reveals who is in it."
        )
    elif setting.adapted:
        said += ", adapted by the optimizer from a noisy count."
    elif not changes:
        said = f"the {name} followed its schedule in all {steps:,} steps."
    elif setting.scheduler:
        said += f", set by {setting.scheduler}."
    else:
        said += "; no scheduler sets it (assumed to depend on the step alone, not verified)."
    if setting.scheduler == _BY_METRIC:
        said += " Its metric is assumed to be public or released with noise (not verified)."
    return fact(
        setting.erratic,
        f"{said}{declared}",
        consequence=Consequence.INVALIDATES,
        measured=float(changes),
        claimed=0.0,
        remedy=f"Keep the {name} constant, or make it a function of the step number. If it is "
        "computed from released (noisy) values alone, set it inside audit.postprocessing(). "
        "Otherwise release it with noise and account for it.",
    )


_SCHEDULES = {
    setting: check(f"{setting} schedule", part=part)(_schedule)
    for setting, part in (
        ("clip norm", CLIPPING),
        ("noise multiplier", NOISE_SCALE),
        ("learning rate", WEIGHTS),
    )
}


def schedule_checks(settings: Iterable[SettingFacts]) -> Iterator[Finding]:
    """Whether settings that changed followed a schedule; the divisor has a separate check."""
    for setting in settings:
        if setting.name != _DIVISOR and (setting.changes or setting.declared):
            other = Check(name=f"{setting.name} schedule", test=_schedule)
            yield from made((_SCHEDULES.get(setting.name, other),), setting)


def _not_looked(facts: StepFacts) -> Finding:
    return not_run(f"a step with exact checks: {facts.unchecked or 'none was made'}")


@check("record contributions", part=CLIPPING, exact=True, explains=f"{SENSITIVITY}, sum of records")
def record_contributions(context: Context) -> Finding | None:
    """Whether any record added more than the clip norm to the sum."""
    facts = context.facts.witness
    if facts is None or not facts.share > 0.0:
        return None
    if facts.records == 0:
        return _not_looked(facts)
    rounding = max(_ABOVE - 1.0, facts.coarseness)
    beyond = facts.largest > 1.0 + rounding
    if not beyond and not _exercised(facts):
        return not_run(
            f"records whose gradients exceed the clip norm, {FEW} of them or most of those that "
            "were checked: none or few did"
        )
    where = f" (step {facts.largest_step:,}, mostly in {facts.largest_tensor})" if beyond else ""
    how = "computed again" if facts.recomputed else "all that were in them"
    # Slightly above the norm needs more digits.
    largest = digits(facts.largest, 4 if beyond or facts.coarseness else 3)
    return fact(
        beyond,
        f"the largest of {_some(facts.records)} records in {facts.steps:,} steps, {how}, added "
        f"{largest:g} clip norms to the sum{where}; {_some(facts.clipped)} exceeded the clip norm."
        f"{_rounding(context, facts)}",
        consequence=Consequence.BREACH
        if facts.largest > max(_FAR_ABOVE, 1.0 + rounding)
        else Consequence.INFORMS,
        measured=largest,
        claimed=1.0,
        remedy="Fix the clipping: a record may add at most one clip norm, whatever its gradient.",
        sees=f"an unclipped gradient among {_some(facts.clipped)} above the clip norm",
    )


def _rounding(context: Context, facts: StepFacts) -> str:
    """The effect of norms in a coarse number format."""
    if not facts.coarseness:
        return ""
    most = 1.0 + facts.coarseness
    said = (
        f" Per-sample gradients are {facts.precision}: their norms are rounded, so that a record "
        f"may add up to {most:.4g} clip norms"
    )
    both = context.epsilon_by_sensitivity(most) if context.transcript.finite else None
    if both is None:
        return f"{said}."
    return f"{said}; that raises epsilon from {both[0]:.4g} to {both[1]:.4g}."


def _exercised(facts: StepFacts) -> bool:
    """Whether enough gradients exceeded the clip norm that none of them is revealed.

    One long gradient among short ones belongs to a person: few are reported like none.
    """
    return facts.clipped >= FEW or facts.clipped >= max(2, facts.records // 2 + 1)


def _some(count: int) -> str:
    """A number of records, rounded so that it reveals none."""
    return "a few" if count < FEW else about(count)


@check("sum of records", part=CLIPPING, explains=SENSITIVITY)
def sum_of_records(context: Context) -> Finding | None:
    """Whether the sum before the noise is the sum of clipped gradients."""
    facts = context.facts.witness
    if facts is None or not facts.share > 0.0:
        return None
    if facts.off_step == 0:
        return _not_looked(facts)
    wrong = facts.off > facts.off_allowed
    where = f" (step {facts.off_step:,}, mostly in {facts.off_tensor})" if wrong else ""
    return fact(
        wrong,
        f"the sum before the noise differs by up to {facts.off:.3g} clip norms from the sum of the "
        f"clipped gradients; rounding explains up to {facts.off_allowed:.2g}{where}.",
        consequence=Consequence.INVALIDATES,
        measured=digits(facts.off),
        claimed=0.0,
        remedy="Check that every layer is clipped, over all tensors together; then find what else "
        "is written to the sum.",
    )


@check("ghost norms", part=CLIPPING, explains=f"{SENSITIVITY}, sum of records")
def ghost_norms(context: Context) -> Finding | None:
    """Whether ghost clipping computes the right norms."""
    facts = context.facts.witness
    if facts is None or not facts.share > 0.0 or not facts.recomputed:
        return None
    if facts.records == 0:
        return _not_looked(facts)
    wrong = abs(facts.norm_off) > max(_NORM_OFF, facts.coarseness)
    said = f"the largest error is {abs(facts.norm_off):.2g} of a record's norm"
    if wrong:
        side = "small" if facts.norm_off < 0.0 else "large"
        said = (
            f"the norm in {facts.norm_tensor} is too {side} by {abs(facts.norm_off):.2g} of a "
            f"record's whole norm (step {facts.norm_step:,})"
        )
    return fact(
        wrong,
        f"the norms of ghost clipping were compared with {_some(facts.records)} recomputed "
        f"gradients: {said}.",
        consequence=Consequence.INVALIDATES if facts.norm_off < 0.0 else Consequence.INFORMS,
        measured=digits(abs(facts.norm_off), 2),
        claimed=0.0,
        remedy="Use grad_sample_mode='hooks', or a later Opacus: ghost clipping computes the norm "
        "of this layer wrongly.",
    )


@check("noise coverage", part=NOISE_SCALE)
def noise_coverage(context: Context) -> Finding | None:
    """Whether every trained tensor has noise."""
    facts = context.facts.witness
    if facts is None or not facts.share > 0.0:
        return None
    if facts.covered == 0:
        return not_run("a step with noise and exact checks")
    shown = ", ".join(facts.uncovered[:3])
    said = f"every trained tensor has noise in the {facts.covered:,} steps with exact checks."
    if facts.uncovered:
        said = (
            f"{len(facts.uncovered)} trained tensors, or parts of them, have no noise, first in "
            f"step {facts.uncovered_step:,}: {shown}."
        )
    return fact(
        bool(facts.uncovered),
        said,
        consequence=Consequence.BREACH,
        measured=float(len(facts.uncovered)),
        claimed=0.0,
        remedy="Add noise to every coordinate of every trained parameter.",
    )


@check("divisor", part=CLIPPING)
def divisor(context: Context) -> Finding | None:
    """Whether all steps divided by the stated number of records."""
    facts = context.facts.witness
    if facts is None:
        return None
    stated = next((item for item in context.facts.settings if item.name == _DIVISOR), None)
    if facts.divided == 0:
        return not_run("a step with watched coordinates")
    # One that only grows, or only shrinks, is a schedule of batch sizes.
    moving = stated is not None and stated.turns > 0
    wrong = facts.divisor_step > 0 or moving
    said = f"all {facts.divided:,} steps divided by the stated number of records."
    if stated is not None and stated.changes:
        said = (
            f"the stated number of records that a step divides by (expected_batch_size) changed "
            f"in {stated.changes:,} of {stated.steps:,} steps, first in step {stated.first:,}"
            f"{', up and down.' if moving else ' (its schedule is assumed public, not verified).'}"
        )
    if facts.uneven:
        said = (
            f"in {facts.uneven:,} of {facts.divided:,} steps, first in step "
            f"{facts.divisor_step:,}, the optimizer's gradient was not the noisy sum divided by "
            "one number: something else was added to it after the noise, or scaled parts of it."
        )
    elif facts.divisor_step:
        said = (
            f"steps divided by {facts.least_divisor:.3g} to {facts.most_divisor:.3g} times the "
            f"stated number, first in step {facts.divisor_step:,}."
        )
    return fact(
        wrong,
        said,
        consequence=Consequence.INVALIDATES,
        measured=digits(facts.most_divisor / max(facts.least_divisor, 1e-300)),
        claimed=1.0,
        remedy="Pass the noisy sum on as it is."
        if facts.uneven
        else "Divide by one constant, the expected batch size: the actual size of the batch, or "
        "of the training set, reveals who is in it.",
    )


WEIGHT_CHECKS = (
    moved_by_the_release,
    loaded_state,
    weights_between_steps,
    closure,
    trained_parameters_without_canaries,
    weights_that_never_train,
)
"""Comparisons of weight updates with the noisy gradients."""

STEP_CHECKS = (record_contributions, sum_of_records, ghost_norms, noise_coverage, divisor)
"""Exact checks of some steps."""

RECORDING_CHECKS = (recording, frozen_parameters)
"""Whether the whole training was recorded."""
