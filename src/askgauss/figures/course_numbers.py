"""The course of a run that was watched: bound and claim over the steps, evidence, alarm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from askgauss.figures.missing import Missing
from askgauss.files import codec
from askgauss.monitor.feed import Feed
from askgauss.results import AuditResult, Finding, Status
from askgauss.stats.rounding import FEWEST_SHOWN

__all__ = ["RunCourse", "course", "with_course"]

# Where a result's metadata keeps what its monitor said.
_KEY = "watched"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCourse:
    """What a monitor saw of a run.

    Attributes:
        step: Steps, thinned out.
        bound: Lower bound on epsilon that held there; nan before there was one.
        claimed: The claimed epsilon, if any.
        spent: Epsilon by the accountant at the end of the watched steps, where known.
        evidence: Decimal logarithm of the joint evidence.
        alarm_at: The evidence of an alarm.
        alarm_step: Where the alarm came; None where none did.
        alarm: The alarm in words; empty where none came.
        untested: Parts that were not watched, and why.
    """

    step: tuple[int, ...]
    bound: tuple[float, ...]
    claimed: float | None
    spent: float | None
    evidence: tuple[float, ...]
    alarm_at: float
    alarm_step: int | None
    alarm: str
    untested: dict[str, str]


def with_course(result: AuditResult, feed: Feed) -> AuditResult:
    """A result that also shows how its run went, in its report and its JSON.

    Integrations do this by themselves. The verdict stays: an alarm has an error rate of its own,
    and is a warning among the findings.

    Args:
        result: An audit of the run.
        feed: What its monitor says: ``monitor.feed("finished")``.
    """
    findings = result.findings
    if feed.alarm is not None:
        warning = Finding(
            check="monitor",
            status=Status.WARN,
            summary=f"alarmed while the run trained. {feed.alarm}",
            remedy="Look for what changed at this step; the report shows the course.",
        )
        findings = (*findings, warning)
    # Without the clock, so that the same run gives the same result.
    watched = {_KEY: codec.to_plain(replace(feed, written=0.0, elapsed=0.0))}
    return replace(result, findings=findings, metadata=result.metadata | watched)


def course(result: AuditResult) -> RunCourse | Missing:
    """The course that `with_course` put there.

    Raises:
        FileFormatError: What is there is corrupt.
    """
    if _KEY not in result.metadata:
        return Missing(reason="needs a monitor: nobody watched the run.")
    feed: Feed = codec.from_plain(Feed, result.metadata[_KEY], _KEY)
    feed.check()
    if not feed.course.step:
        return Missing(reason=f"a point of it has {FEWEST_SHOWN} plantings, and there were fewer.")
    claimed = feed.claim or result.claim
    return RunCourse(
        step=feed.course.step,
        bound=feed.course.bound,
        claimed=None if claimed is None else claimed.epsilon,
        spent=feed.spent,
        evidence=feed.course.evidence,
        alarm_at=feed.alarm_at,
        alarm_step=None if feed.alarm is None else feed.alarm.step,
        alarm="" if feed.alarm is None else str(feed.alarm),
        untested=feed.untested,
    )
