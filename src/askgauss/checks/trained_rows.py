"""Checks of the rows that were trained on: one for each record drawn, and its gradient alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from askgauss.checks.context import Context
from askgauss.checks.registry import (
    DRAWS,
    PER_SAMPLE_GRADIENT,
    SENSITIVITY,
    TRAINED_ROWS,
    check,
    fact,
    not_run,
)
from askgauss.recording.facts import RowFacts
from askgauss.results import Consequence, Finding
from askgauss.stats.rounding import FEW, about, digits

__all__ = ["ROW_CHECKS", "TrainedRows", "mixed_records"]

# Where records of a batch may mix: what is said of it, and what to do.
_CAUSES = (
    (
        "forward",
        "the model's forward pass: outputs of one record change when other records of the batch "
        "are replaced",
        "Replace layers that mix records, such as batch normalisation or attention over the batch, "
        "by layers that process each record separately, such as GroupNorm or LayerNorm.",
    ),
    (
        "inputs",
        "the model's inputs: rows are made of two records of the batch, as by mixup or cutmix",
        "Augment each record separately: mixup and cutmix put two records into one row, which is "
        "clipped as one.",
    ),
    (
        "loss",
        "the loss: the gradient of one record depends on other records of the batch",
        "Use a loss that is a sum over records: contrastive, centred and load-balancing losses "
        "give each record a gradient that depends on the others.",
    ),
    (
        "weights",
        "weights of the loss: classes are weighted by how many records of them are in the batch",
        "Fix class weights before training, from public data or from counts with noise.",
    ),
    (
        "state",
        "the model's buffers: the forward pass keeps a statistic of the batch without noise, and "
        "later outputs depend on it",
        "Keep no statistics of the batch in the model.",
    ),
)
_LOOKED = {"forward": "the forward pass", "inputs": "the inputs", "loss": "the loss"}
_ATTACHED = "a step whose batch was drawn while the audit was attached"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRows:
    """The rows that were trained on, and the run that they are of."""

    facts: RowFacts
    context: Context


def _seen(rows: TrainedRows) -> str:
    unseen = rows.facts.unseen
    return f"the rows and draws of every step: {unseen}" if unseen else ""


def _compared(rows: TrainedRows) -> str:
    return "" if rows.facts.compared else _ATTACHED


@check("training loader", part=TRAINED_ROWS, explains=DRAWS, needs=(_seen,))
def training_loader(rows: TrainedRows) -> Finding:
    """Whether the steps trained on batches of the audited loader."""
    facts = rows.facts
    other = f" ({facts.other})" if facts.other else ""
    broken, said = False, "no step trained on a batch of another loader."
    if facts.never_drawn:
        broken = True
        used = f"; another loader{other} was used" if other else ""
        said = (
            f"the loader given as data_loader= was not drawn from in any of {facts.steps:,} "
            f"steps{used}."
        )
    elif facts.foreign:
        broken = True
        said = (
            f"in {facts.foreign:,} of {facts.steps:,} steps, first in step "
            f"{facts.foreign_first:,}, the model was trained on a batch of another loader{other}."
        )
    elif facts.steps and facts.undrawn == facts.steps:
        return not_run(_ATTACHED)
    return fact(
        broken,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.undrawn if facts.never_drawn else facts.foreign),
        claimed=0.0,
        remedy="Train on the loader that make_private returned, not on the one that was passed to "
        "it: only the returned one draws batches as the accountant assumes. Attach the audit "
        "before the first batch is drawn.",
        sees="any step on a batch of another loader",
    )


@check(
    "rows per record",
    part=TRAINED_ROWS,
    decides=True,
    explains=f"{DRAWS}, divisor",
    needs=(_seen, _compared),
)
def rows_per_record(rows: TrainedRows) -> Finding:
    """Whether a step has one row for each record drawn for it."""
    facts = rows.facts
    if facts.more:
        return _more_rows(rows.context, facts)
    if facts.strays and not (facts.fewer or facts.doubled):
        # An augmentation may turn one record into another, so that this is no proof.
        return not_run(
            f"steps of the records drawn for them: in {_of(facts.strays, facts)} steps, first in "
            f"step {facts.strays_first:,}, rows are those of records drawn for earlier steps"
        )
    broken, said = bool(facts.fewer or facts.doubled), ""
    measured = 1.0
    if facts.fewer:
        measured = facts.fewer_rows / facts.fewer_drawn
        said = (
            f"in {_of(facts.fewer, facts)} steps, first in step {facts.fewer_first:,}, only part "
            f"of the batch was trained on: {measured:.2g} rows for each record drawn."
        )
    elif facts.doubled:
        said = (
            f"in {_of(facts.doubled, facts)} steps, first in step {facts.doubled_first:,}, some "
            "records of the batch have two rows or more and others none."
        )
    else:
        known = f", recognised in {facts.identified:,} of them" if facts.identified else ""
        said = (
            f"{facts.compared:,} steps have one row of per-sample gradients for each record drawn "
            f"for them{known}."
        )
    return fact(
        broken,
        said,
        consequence=Consequence.INVALIDATES,
        measured=digits(measured),
        claimed=1.0,
        remedy="Train on the whole batch that was drawn: selecting records by their content is not "
        "the sampling that was accounted for.",
        sees="one row too many or too few in any step",
    )


def _more_rows(context: Context, facts: RowFacts) -> Finding:
    """More rows than records: a record is clipped once for each of its rows."""
    average = facts.more_rows / max(facts.more_drawn, 1)
    where = f"in {_of(facts.more, facts)} steps, first in step {facts.more_first:,},"
    remedy = (
        "Clip once for each record: average the gradients of its views before clipping, and pass "
        "each batch through the model once."
    )
    if facts.multiple:
        beyond, implied = _implied(context, facts, signal=float(facts.multiple))
        return fact(
            True,
            f"{where} each record drawn has {facts.multiple} rows, each clipped separately: one "
            f"record adds up to {facts.multiple} clip norms.{implied}",
            consequence=Consequence.BREACH if beyond else Consequence.INVALIDATES,
            measured=float(facts.multiple),
            claimed=1.0,
            remedy=remedy,
        )
    fixed = facts.extra_least == facts.extra_most and facts.more > 1
    extra = f"{facts.extra_least:,}" if fixed else f"up to {_about(facts.extra_most)}"
    other = f" Another loader ({facts.other}) was used." if facts.other else ""
    implied = ""
    if facts.more == facts.steps:
        _, implied = _implied(context, facts, rate=1.0)
        implied = implied and f" If they are training records in every step:{implied[3:]}"
    return fact(
        True,
        f"{where} {extra} rows more than records drawn were trained on ({average:.3g} rows for "
        f"each record drawn): records that were not drawn, or records with several rows."
        f"{other}{implied}",
        consequence=Consequence.INVALIDATES,
        measured=digits(average),
        claimed=1.0,
        remedy=f"Add no rows to the batch that was drawn. {remedy}",
    )


def _implied(
    context: Context, facts: RowFacts, *, signal: float = 1.0, rate: float | None = None
) -> tuple[bool, str]:
    """Whether these steps, with this contribution or rate, violate the claim."""
    rate = rate or context.claimed_rate
    if context.claim is None or rate is None or not context.transcript.finite:
        return context.claim is None, ""
    level = context.noise_level
    if not level > 0.0:
        return False, ""
    by_step = np.ones(min(facts.steps, context.transcript.number_of_steps))
    by_step[: facts.more] = signal
    return context.exceeds(by_step / level, rate)


@check("repeated batches", part=TRAINED_ROWS, explains=DRAWS, needs=(_seen, _compared))
def repeated_batches(rows: TrainedRows) -> Finding:
    """Whether a batch was drawn for every step."""
    facts = rows.facts
    said = "every step trained on a batch that was drawn for it."
    if facts.again:
        said = (
            f"no batch was drawn for {_of(facts.again, facts)} steps, first step "
            f"{facts.again_first:,}: an earlier batch was trained on again."
        )
    return fact(
        facts.again > 0,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.again),
        claimed=0.0,
        remedy="Draw a new batch for every step: the accountant counts each step as a new draw.",
        sees="any step without a new draw",
    )


@check(
    "unused batches",
    part=TRAINED_ROWS,
    explains=f"{DRAWS}, step count",
    needs=(_seen, _compared),
)
def unused_batches(rows: TrainedRows) -> Finding:
    """Whether every batch was trained on that a later one followed or the model was given."""
    facts = rows.facts
    said = "every batch that was drawn was trained on, up to the last one of each pass."
    if facts.dropped:
        empty = facts.unused_empty
        what = ""
        if empty == facts.unused:
            what = ", all of them empty"
        elif empty:
            what = f", {empty:,} of them empty"
        said = (
            f"{facts.unused:,} batches were drawn and not trained on{what}, first before step "
            f"{facts.unused_first:,}."
        )
    elif facts.unused:
        said = (
            f"the same number of batches, {facts.unused:,} in all, was skipped before every step."
        )
    elif facts.skipped:
        said = (
            f"every batch was trained on except {facts.skipped:,} of whole passes over the loader "
            "(assumed to be skipped independently of records, not verified)."
        )
    return fact(
        facts.dropped > 0,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.dropped),
        claimed=0.0,
        remedy="Take a step for every batch, also an empty one: whether a batch is skipped must "
        "not depend on its records, their number or their loss.",
        sees="any batch skipped between two steps, or after the model was called with it",
    )


def _of(count: int, facts: RowFacts) -> str:
    return f"all {count:,}" if count == facts.steps else f"{count:,} of {facts.steps:,}"


def _about(count: int) -> str:
    return "a few" if count < FEW else about(count)


@check(
    "mixed records",
    part=PER_SAMPLE_GRADIENT,
    exact=True,
    explains=f"{SENSITIVITY}, record contributions, ghost norms, sum of records",
)
def mixed_records(context: Context) -> Finding | None:
    """Whether records of a batch are mixed before they are clipped."""
    facts = context.facts.mixing
    if facts is None:
        return None
    found = [item for item in _CAUSES if getattr(facts, f"{item[0]}_first")]
    if found:
        first = min(getattr(facts, f"{kind}_first") for kind, _, _ in found)
        return fact(
            True,
            f"records are mixed before they are clipped, first seen in step {first:,}, by "
            + "; by ".join(said for _, said, _ in found)
            + ". One record changes the clipped gradients of others: the clip norm does not bound "
            "what it adds.",
            consequence=Consequence.INVALIDATES,
            measured=float(len(found)),
            claimed=0.0,
            remedy=" ".join(remedy for _, _, remedy in found),
        )
    unseen = {kind: getattr(facts, f"{kind}_unseen") for kind in _LOOKED}
    looked = [said for kind, said in _LOOKED.items() if getattr(facts, kind) and not unseen[kind]]
    missing = [
        f"{said} ({unseen[kind] or 'no step was tested'})"
        for kind, said in _LOOKED.items()
        if unseen[kind] or not getattr(facts, kind)
    ]
    if missing:
        clean = f"; {_listed(looked)} mixed no records" if looked else ""
        return not_run(f"a test of {_listed(missing)}{clean}")
    steps = min(facts.forward, facts.inputs, facts.loss)
    return fact(
        False,
        f"in {steps:,} tested steps, neither the inputs nor the forward pass nor the loss mixed "
        "records.",
        consequence=Consequence.INVALIDATES,
        measured=0.0,
        claimed=0.0,
        sees=f"mixing of records in the inputs, forward pass or loss of {steps:,} steps",
    )


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


ROW_CHECKS = (training_loader, rows_per_record, repeated_batches, unused_batches)
"""Checks of the rows that were trained on."""
