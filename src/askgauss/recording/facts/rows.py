"""Facts of the rows that were trained on, next to the records that the loader drew for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from askgauss.exceptions import FileFormatError

__all__ = ["RowFacts", "rows_over_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Rows of per-sample gradients in every step, compared with the records drawn for it.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        unseen: Why rows and draws could not be compared; empty where they were.
        steps: Private steps.
        compared: Those whose rows and draws were both seen.
        identified: Those whose input was also recognised as the batch that the loader yielded.
        more: Steps with more rows than records drawn.
        more_first: The first of them.
        multiple: Rows of each record, where every such step has the same whole multiple of its
            records and their number varies; 0 otherwise.
        extra_least: The fewest rows that such a step had beyond its records.
        extra_most: The most.
        more_rows: Rows of these steps together.
        more_drawn: Records drawn for them.
        fewer: Steps with fewer rows than records drawn.
        fewer_first: The first of them.
        fewer_rows: Rows of these steps together.
        fewer_drawn: Records drawn for them.
        doubled: Steps with as many rows as records, of which some records had several.
        doubled_first: The first of them.
        strays: Steps with a row that was drawn for an earlier step, and not for this one.
        strays_first: The first of them.
        unused: Batches that no step used although a later one of the same pass was used, or the
            model was called with them as with those that were used.
        unused_empty: Those of them that held no record.
        unused_first: The step before which the first of them was left out.
        skipped: Batches of whole passes that the model was called with and no step used, where
            every other pass was used whole: a schedule does that, and depends on no record.
        even: Whether equally many were left out before every step, which depends on no record.
        undrawn: Steps while the loader had not been drawn from since the audit was attached.
        other: What the batches of other loaders were drawn by, where one was used.
        foreign: Steps whose rows are those of another loader's batch.
        foreign_first: The first of them.
        again: Steps without a draw of their own, after the loader had been drawn from.
        again_first: The first of them.
        missed: Steps on batches that were drawn before the audit was attached.
    """

    unseen: str = ""
    steps: int = 0
    compared: int = 0
    identified: int = 0
    more: int = 0
    more_first: int = 0
    multiple: int = 0
    extra_least: int = 0
    extra_most: int = 0
    more_rows: int = 0
    more_drawn: int = 0
    fewer: int = 0
    fewer_first: int = 0
    fewer_rows: int = 0
    fewer_drawn: int = 0
    doubled: int = 0
    doubled_first: int = 0
    strays: int = 0
    strays_first: int = 0
    unused: int = 0
    unused_empty: int = 0
    unused_first: int = 0
    skipped: int = 0
    even: bool = False
    undrawn: int = 0
    other: str = ""
    foreign: int = 0
    foreign_first: int = 0
    again: int = 0
    again_first: int = 0
    missed: int = 0

    @property
    def never_drawn(self) -> bool:
        """Whether the loader was not drawn from in any of several steps."""
        return 1 < self.undrawn == self.steps

    @property
    def dropped(self) -> int:
        """Batches left out in a way that may depend on the records."""
        return 0 if self.even else self.unused

    @property
    def clean(self) -> bool:
        """Whether every step that was seen trained on the records drawn for it, once each."""
        faults = (
            self.more,
            self.fewer,
            self.doubled,
            self.strays,
            self.dropped,
            self.foreign,
            self.again,
        )
        return not self.unseen and not any(faults) and not self.never_drawn

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 0:
                raise FileFormatError(f"Expected facts.rows.{item.name} >= 0, got {value}.")
        counted = ("compared", "identified", "more", "fewer", "undrawn", "foreign", "again")
        for name in counted:
            if getattr(self, name) > self.steps:
                raise FileFormatError(
                    f"Expected facts.rows.{name} <= {self.steps} steps, got {getattr(self, name)}."
                )


def rows_over_ranks(ranks: Sequence[RowFacts]) -> RowFacts:
    """What several ranks found: the first fault of each kind, and the most steps of any rank."""
    merged = ranks[0]
    for other in ranks[1:]:
        for name in ("more", "fewer", "doubled", "strays", "unused", "skipped", "foreign", "again"):
            if getattr(other, name) > getattr(merged, name):
                of_kind = {
                    item.name: getattr(other, item.name)
                    for item in fields(RowFacts)
                    if item.name.startswith(name) or (name == "more" and item.name in _OF_MORE)
                }
                merged = replace(merged, **of_kind)
        merged = replace(
            merged,
            unseen=merged.unseen or other.unseen,
            even=merged.even and other.even,
            other=merged.other or other.other,
            compared=min(merged.compared, other.compared),
            identified=min(merged.identified, other.identified),
            undrawn=max(merged.undrawn, other.undrawn),
            missed=max(merged.missed, other.missed),
        )
    return merged


_OF_MORE = ("multiple", "extra_least", "extra_most")
