"""Checks of the rows that were trained on: those of the records drawn for the step, once each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from askgauss._rounding import FEW, about, digits
from askgauss.checks.context import Context
from askgauss.checks.findings import fact, not_run
from askgauss.recording.facts import RowFacts
from askgauss.results import Consequence, Finding

__all__ = ["ROW_CHECKS", "row_checks"]

ROW_CHECKS = ("rows per record", "training loader", "repeated batches", "unused batches")


def row_checks(context: Context, facts: RowFacts) -> Iterator[Finding]:
    """Every comparison of trained rows with drawn records."""
    if facts.unseen:
        for name in ROW_CHECKS:
            yield not_run(name, f"rows and draws of every step: {facts.unseen}")
        return
    yield _training_loader(facts)
    yield _rows_per_record(context, facts)
    yield _repeated(facts)
    yield _unused(facts)


def _training_loader(facts: RowFacts) -> Finding:
    """Whether the steps trained on batches of the audited loader."""
    name, other = "training loader", f" ({facts.other})" if facts.other else ""
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
        return not_run(name, "a step whose batch was drawn while the audit was attached")
    return fact(
        name,
        broken,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.undrawn if facts.never_drawn else facts.foreign),
        claimed=0.0,
        remedy="Train on the loader that make_private returned, not on the one that was passed to "
        "it: only that one draws batches as the accountant assumes. Attach the audit before the "
        "first batch is drawn.",
        sees="any step on a batch of another loader",
    )


def _rows_per_record(context: Context, facts: RowFacts) -> Finding:
    """Whether a step has one row for each record drawn for it."""
    name = "rows per record"
    if facts.compared == 0:
        return not_run(name, "a step whose batch was drawn while the audit was attached")
    if facts.more:
        return _more_rows(context, facts)
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
        name,
        broken,
        said,
        consequence=Consequence.INVALIDATES,
        measured=digits(measured),
        claimed=1.0,
        remedy="Train on the whole batch that was drawn: choosing records by what they hold is "
        "not the sampling that was accounted for.",
        sees="one row too many or too few in any step",
    )


def _more_rows(context: Context, facts: RowFacts) -> Finding:
    """More rows than records: a record's contribution is clipped once for each of its rows."""
    average = facts.more_rows / max(facts.more_drawn, 1)
    where = f"in {_of(facts.more, facts)} steps, first in step {facts.more_first:,},"
    remedy = (
        "Clip once for each record: average the gradients of its views before clipping, and send "
        "each batch through the model once."
    )
    if facts.multiple:
        beyond, implied = _implied(context, facts, signal=float(facts.multiple))
        return fact(
            "rows per record",
            True,
            f"{where} each record drawn has {facts.multiple} rows, each clipped by itself: one "
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
        "rows per record",
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
    """Whether so many steps with this contribution, or at this rate, break the claim."""
    rate = rate or context.claimed_rate
    if context.claim is None or rate is None or not context.transcript.finite:
        return context.claim is None, ""
    level = context.noise_level
    if not level > 0.0:
        return False, ""
    by_step = np.ones(min(facts.steps, context.transcript.number_of_steps))
    by_step[: facts.more] = signal
    return context.exceeds(by_step / level, rate)


def _repeated(facts: RowFacts) -> Finding:
    """Whether a step had a draw of its own."""
    name = "repeated batches"
    if facts.compared == 0:
        return not_run(name, "a step whose batch was drawn while the audit was attached")
    said = "every step trained on a batch that was drawn for it."
    if facts.again:
        said = (
            f"{_of(facts.again, facts)} steps, first step {facts.again_first:,}, had no draw of "
            "their own: a batch that was drawn once was trained on again."
        )
    return fact(
        name,
        facts.again > 0,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.again),
        claimed=0.0,
        remedy="Draw a new batch for every step: each step is accounted for as a draw of its own.",
        sees="any step without a draw of its own",
    )


def _unused(facts: RowFacts) -> Finding:
    """Whether every batch was trained on that a later one followed or the model was given."""
    name = "unused batches"
    if facts.compared == 0:
        return not_run(name, "a step whose batch was drawn while the audit was attached")
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
        said = f"equally many batches, {facts.unused:,} in all, were left out before every step."
    elif facts.skipped:
        said = (
            f"every batch was trained on, but {facts.skipped:,} of whole passes over the loader; "
            "which passes are trained on must not depend on records."
        )
    return fact(
        name,
        facts.dropped > 0,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(facts.dropped),
        claimed=0.0,
        remedy="Take a step for every batch, also an empty one: whether a batch is left out must "
        "not depend on its records, their number or their loss.",
        sees="any batch left out between two steps, or after the model was called with it",
    )


def _of(count: int, facts: RowFacts) -> str:
    return f"all {count:,}" if count == facts.steps else f"{count:,} of {facts.steps:,}"


def _about(count: int) -> str:
    return "a few" if count < FEW else about(count)
