"""The result of a replay: what differed between neighbouring datasets, and what it means."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from askgauss._text import one_line
from askgauss.auditing import with_findings
from askgauss.files import atomic, codec
from askgauss.replay.neighbouring_data import LEFT_OUT, REPLACED, Neighbour
from askgauss.results import AuditResult, Consequence, Finding, Status, Verdict

__all__ = [
    "ADJACENCIES",
    "Adjacency",
    "Difference",
    "ReplayReport",
    "after",
    "decide",
    "join",
    "joined_findings",
    "with_claim",
]

Adjacency = Literal["add-remove", "replace-one", "zero-out"]
ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace-one", "zero-out")

_KIND = "askgauss-replay"
_SCHEMA = 1
_WIDTH = 110
_SHOWN_STEPS = 8
_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differed between neighbouring data, and may not.

    Attributes:
        name: What it is called.
        kind: ``"public"`` (a value that goes public as it is), ``"release"`` (a noisy sum moved by
            more than one record may), ``"noise"``, ``"seed"``, ``"state"`` (weights and buffers),
            ``"control flow"`` or ``"exception"``.
        step: The first step it differed in; 0 is before the first.
        steps: All of them.
        size: The largest distance: in clip norms for a release, else in the thing's own units;
            None where there is no number for it.
        values: With the record and without it (or with another), the first time.
        worlds: Where it was seen: the record ``"left out"`` or ``"replaced"``.
        leak_under: The adjacencies that this is a leak under.
        follows: A difference before it that this one may follow from.
    """

    name: str
    kind: str
    step: int
    steps: tuple[int, ...]
    size: float | None
    values: tuple[str, str]
    worlds: tuple[str, ...]
    leak_under: tuple[Adjacency, ...]
    follows: str = ""

    def again(self, step: int, size: float | None) -> Difference:
        """The same, seen in another step too."""
        steps = self.steps if step in self.steps else (*self.steps, step)
        return replace(self, steps=steps, size=size)

    def also(self, other: Difference) -> Difference:
        """The same, also for another neighbour."""
        sizes = [item.size for item in (self, other) if item.size is not None]
        return replace(
            self,
            step=min(self.step, other.step),
            steps=tuple(sorted({*self.steps, *other.steps})),
            size=max(sizes, default=None),
            worlds=(*self.worlds, *other.worlds),
        )

    def leaking(self, under: tuple[Adjacency, ...]) -> Difference:
        """The same, as a leak under these adjacencies."""
        return replace(self, leak_under=under)

    def __str__(self) -> str:
        unit = " clip norms" if self.kind == "release" else ""
        size = "" if self.size is None else f", by up to {self.size:.4g}{unit}"
        clean = [item for item in ADJACENCIES if item not in self.leak_under]
        under = f"leak under {', '.join(self.leak_under)}"
        if clean:
            under += f", not under {' and '.join(clean)}"
            if self.worlds == ("left out",) and self.kind != "release":
                under += ": it depends on the number of records"
        follows = f" (may follow from {self.follows})" if self.follows else ""
        return one_line(
            f"{self.name} [{self.kind}, {_steps(self.steps)}{size}]: {self.values[0]} against "
            f"{self.values[1]}; {under}{follows}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The answer of one replay.

    Attributes:
        verdict: VIOLATION where something differed that is a leak under the adjacency claimed,
            CONSISTENT where nothing did and everything recorded could be compared, INCONCLUSIVE
            otherwise.
        reason: Why, in one sentence.
        adjacency: The one the verdict is about.
        record: The record in question.
        records: How many there are.
        worlds: The neighbours that were tried.
        source: The record that stood in for it where it was replaced, if one of the data did.
        steps: Steps taken on the data as given.
        asked: Steps asked for.
        present: Steps whose batches had the record; empty where batches are not known.
        differences: What differed and may not, in the order it was met.
        moved: The most a release moved in the steps of the record when it was left out, in clip
            norms; None where nothing was released there.
        elsewhere: The same in all other steps.
        compared: How often each thing was compared, by name.
        not_checked: What this replay could not look at, and why.
        seed: Seed of batches and noise.
        version: The askgauss that made it.
    """

    verdict: Verdict
    reason: str
    adjacency: Adjacency
    record: int
    records: int
    worlds: tuple[Neighbour, ...]
    source: int | None
    steps: int
    asked: int
    present: tuple[int, ...]
    differences: tuple[Difference, ...]
    moved: float | None
    elsewhere: float | None
    compared: dict[str, int]
    not_checked: tuple[str, ...]
    seed: int
    version: str

    @property
    def leaks(self) -> tuple[Difference, ...]:
        """The differences that are leaks under the adjacency of the verdict."""
        return tuple(item for item in self.differences if self.adjacency in item.leak_under)

    @property
    def derived(self) -> bool:
        """Whether the verdict follows from what differed and what could not be compared."""
        # What lies after the last step is no doubt about those before it.
        unsure = [item for item in self.not_checked if item != after(self.steps)]
        return self.verdict is decide(self.adjacency, self.record, self.differences, unsure)[0]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The same as findings of an audit: a leak is a breach."""
        found = [
            Finding(
                check=f"replay: {item.name}",
                status=Status.FAIL if self.adjacency in item.leak_under else Status.INFO,
                summary=str(item),
                consequence=Consequence.BREACH
                if self.adjacency in item.leak_under
                else Consequence.INFORMS,
                measured=item.size,
                # What may differ under this adjacency needs no fix.
                remedy=_REMEDIES.get(item.kind, "") if self.adjacency in item.leak_under else "",
            )
            for item in self.differences
        ]
        if not self.leaks:
            passed = self.verdict is not Verdict.INCONCLUSIVE
            status = Status.PASS if passed else Status.NOT_RUN
            found.append(Finding(check="replay", status=status, summary=self.reason))
        return tuple(found)

    @property
    def scope(self) -> str:
        """What was tested, and what was not."""
        return (
            "one record, these steps and this randomness; what the training did not record was not "
            "compared, and whether there is enough noise is for an audit to say."
        )

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text; also written to ``path``, whole or not at all, if one is given.

        What differs between neighbouring datasets reveals the record: only the owner may read
        it.
        """
        text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(self))
        if path is not None:
            atomic.write_text(path, text, private=True)
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> ReplayReport:
        """Read what `to_json` wrote.

        Raises:
            FileFormatError: The text is corrupt, foreign, or of a newer schema.
        """
        content = codec.loads(text, _KIND, _SCHEMA)
        report: ReplayReport = codec.from_plain(cls, content, "report")
        return report

    def rows(self) -> list[tuple[str, str]]:
        """What was replayed, as pairs of a name and a sentence."""
        other = "another record" if self.source is None else f"a copy of record {self.source}"
        pairs = {LEFT_OUT: "left out", REPLACED: f"replaced by {other}"}
        neighbours = ", then ".join(pairs[item] for item in self.worlds)
        rows = [("pair", f"record {self.record} of {self.records:,} {neighbours}")]
        present = (
            f"the record was in the batches of {_steps(self.present)}"
            if self.present
            else "which of them had the record is not known"
        )
        rows.append(("steps", f"{self.steps} of {self.asked} asked; {present}"))
        if self.moved is not None:
            others = (
                f", and by {self.elsewhere:.3g} in others" if self.elsewhere is not None else ""
            )
            rows.append(
                ("releases", f"moved by at most {self.moved:.3f} clip norms in its steps{others}")
            )
        names = [f"{name} ({count})" for name, count in self.compared.items()]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        rows.append(("compared", ", ".join(names[:_SHOWN_NAMES]) + more))
        rows += [("not checked", item) for item in self.not_checked]
        rows.append(("tested", self.scope))
        return rows

    def __str__(self) -> str:
        lines = [one_line(f"{self.verdict.value}: {self.reason}")]
        for item in self.differences:
            mark = "leak" if self.adjacency in item.leak_under else "differs"
            lines += _wrapped(f"  [{mark}] ", str(item))
        for name, text in self.rows():
            lines += _wrapped(f"  {name:<11} ", one_line(text))
        return "\n".join(lines)


def decide(
    adjacency: Adjacency,
    record: int,
    differences: tuple[Difference, ...],
    unsure: Sequence[str],
) -> tuple[Verdict, str]:
    """The verdict and why, from what differed and from what could not be compared."""
    leaks = [item for item in differences if adjacency in item.leak_under]
    if leaks:
        most = leaks[0]
        more = f", and {len(leaks) - 1} more" if len(leaks) > 1 else ""
        return Verdict.VIOLATION, (
            f"{most.name} depends on record {record} outside the noisy sum "
            f"({most.values[0]} against {most.values[1]}), a leak under {adjacency}{more}."
        )
    if unsure:
        return Verdict.INCONCLUSIVE, f"no leak was found, but {unsure[0]}."
    others = f"; {len(differences)} differ that other adjacencies forbid" if differences else ""
    return Verdict.CONSISTENT, (
        f"with the same randomness nothing but the noisy sum depends on record {record} under "
        f"{adjacency}, and by no more than allowed{others}."
    )


def after(steps: int) -> str:
    """What a replay that was cut off did not look at."""
    return f"what comes after step {steps}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * max(len(head), 4)
    )


def _steps(steps: tuple[int, ...]) -> str:
    """Steps in words; the time before the first is no step."""
    if steps == (0,):
        return "before the first step"
    some = [str(item) if item else "set-up" for item in steps[:_SHOWN_STEPS]]
    more = f" and {len(steps) - _SHOWN_STEPS} more" if len(steps) > _SHOWN_STEPS else ""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(some)}{more}"


_REMEDIES = {
    "public": "Compute it from public constants, or add noise to it and account for that.",
    "release": "Clip every record's contribution before the sum, and take its steps from the "
    "sampler alone.",
    "noise": "Draw the noise from a generator and by a scale that know nothing of the data.",
    "seed": "Seed the generator from the system's entropy, never from the data.",
    "state": "Change weights and buffers only by what was released with noise; take layers whose "
    "running statistics mix records out.",
    "control flow": "Decide from public constants or from what was released with noise.",
    "exception": "Check records before the training by rules that look at one record at a time.",
}


def join(result: AuditResult, report: ReplayReport) -> AuditResult:
    """An audit's result with the findings of a replay; a leak found there breaks the claim.

    A result is made to be published, and what a run does with and without one record is not: what
    is joined is the name of what differed, its kind, and the adjacencies it is a leak under.

    Args:
        result: The audit of a run.
        report: The replay of its training. What is a leak is decided by the adjacency of the
            result's claim, where it has one.
    """
    return with_findings(result, joined_findings(report, result))


def joined_findings(report: ReplayReport, result: AuditResult) -> tuple[Finding, ...]:
    """What a result says of a replay: no value, no size, no step and no record."""
    claimed = with_claim(report, result)
    # A finding for each difference, and one more where none of them is a leak.
    return tuple(
        replace(
            finding,
            summary=_nothing_leaks(claimed) if item is None else _differs(item),
            measured=None,
        )
        for finding, item in zip_longest(claimed.findings, claimed.differences)
    )


def _differs(item: Difference) -> str:
    clean = [name for name in ADJACENCIES if name not in item.leak_under]
    beyond = f", not under {' and '.join(clean)}" if clean else ""
    return one_line(
        f"{item.name} ({item.kind}) differs between neighbouring data; leak under "
        f"{', '.join(item.leak_under)}{beyond}."
    )


def _nothing_leaks(report: ReplayReport) -> str:
    if report.verdict is Verdict.INCONCLUSIVE:
        return "no leak was found, but not everything could be checked: the report says why."
    return (
        "with the same randomness nothing but the noisy sum depends on the tested record under "
        f"{report.adjacency}, and by no more than allowed."
    )


def with_claim(report: ReplayReport, result: AuditResult) -> ReplayReport:
    """A report as the adjacency of a result's claim has it, where there is one."""
    if result.claim is None:
        return report
    claimed: Adjacency = "replace-one" if result.claim.adjacency == "replace" else "add-remove"
    return replace(report, adjacency=claimed)
