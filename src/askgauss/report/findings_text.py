"""Findings as text for people: what is broken, what follows from it, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from askgauss._text import one_line
from askgauss.checks.causes import root_causes
from askgauss.checks.scope import INPUT_SPACE
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.results import Finding, Status
from askgauss.scores import CanaryScores

__all__ = ["describe"]

_WIDTH = 88
_TITLES = (
    (Status.FAIL, "Failed:"),
    (Status.WARN, "Warnings:"),
    (Status.INFO, "Worth a look, though chance may give it:"),
)


def describe(
    findings: Iterable[Finding],
    *,
    data: CanaryScores | Transcript | LinearTranscript | None = None,
) -> str:
    """The findings as text: what failed and why, what was not checked, and what to do next.

    A check that may fail because another one does is named under it. The advice looks at what the
    run already did, so far as the data tell.

    Args:
        findings: What `diagnose` returned.
        data: What it was given; without it the advice is general.

    Examples:
        >>> import askgauss as ag
        >>> from askgauss.checks import diagnose
        >>> run = ag.simulate_dpsgd(steps=50, sampling_rate=0.2, noise_multiplier=2.0,
        ...                         present=100, absent=100, seed=0, fault="half-noise")
        >>> print(describe(diagnose(run), data=run).splitlines()[0])
        Failed:
    """
    listed = list(findings)
    missing = [item for item in listed if item.status is Status.NOT_RUN]
    causes = root_causes(listed)
    lines = []
    for status, title in _TITLES:
        chosen = [item for item in listed if item.status is status and item.check not in causes]
        lines += [title] if chosen else []
        for item in chosen:
            lines += _paragraph(item, [name for name in causes if causes[name] == item.check])
    passed = sum(item.status is Status.PASS for item in listed)
    lines.append(f"{passed} of {len(listed)} checks passed; not run: {len(missing) or 'none'}.")
    for item in missing:
        lines.append(_wrapped(f"  {item.check} {item.summary.removeprefix('not run: ')}", 6))
    advice = list(dict.fromkeys(_advice(missing, data)))
    if advice:
        lines.append("To check more:")
        lines += [_wrapped(f"  - {text}", 4) for text in advice]
    return "\n".join(lines)


def _wrapped(text: str, indent: int) -> str:
    # Names come from outside: one line until it is wrapped, and no word is cut for a line to begin
    # with what a name wants there.
    start = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(
        one_line(text),
        _WIDTH,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=False,
    )


def _paragraph(finding: Finding, symptoms: list[str]) -> Iterator[str]:
    yield _wrapped(f"  {finding.check}: {finding.summary}", 4)
    if finding.measured is not None and finding.claimed is not None:
        interval = ""
        if finding.interval is not None:
            interval = f" (99 % interval {finding.interval[0]:.4g} to {finding.interval[1]:.4g})"
        yield f"    measured {finding.measured:.4g}{interval}, expected {finding.claimed:.4g}"
    if symptoms:
        yield _wrapped(f"    may explain: {', '.join(symptoms)}", 4)
    if finding.remedy:
        yield _wrapped(f"    {finding.remedy}", 4)


def _advice(
    missing: list[Finding], data: CanaryScores | Transcript | LinearTranscript | None
) -> Iterator[str]:
    """What would let the checks run that were not, given what the run did."""
    facts = None if isinstance(data, CanaryScores) or data is None else data.facts
    member = None if data is None else data.member
    if isinstance(data, CanaryScores):
        yield (
            "These are scores only. A transcript shows the noise of every step, and what a record "
            "adds: record the run with askgauss.Recorder, or attach CanaryAudit."
        )
    for finding in missing:
        needs = finding.summary
        if "own sampler" in needs:
            done = {"noise", *(facts.exercised if facts is not None else ())}
            unseen = [part for part in INPUT_SPACE if part not in done]
            yield (
                f"Canaries did not go through the {' or the '.join(unseen)}: put them into the "
                "training data, and pass planted= to the recorder."
            )
        elif "known background" in needs:
            yield (
                "The other records' sum was not subtracted: with Poisson sampling, pass "
                "background= to the recorder."
            )
        elif "claimed" in needs or "accountant" in needs:
            yield "Put noise_multiplier=, sampling_rate= and steps= into the claim."
        elif "canaries" in needs and member is not None:
            present = int(member.sum())
            yield (
                f"There are {present:,} present and {member.size - present:,} absent canaries; "
                "absent ones cost the training nothing, so take more of those first."
            )
        elif "steps" in needs and isinstance(data, Transcript):
            yield f"The audit saw {data.number_of_steps:,} steps; attach it to more of the run."
