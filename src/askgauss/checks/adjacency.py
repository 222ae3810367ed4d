"""Whether canaries show the neighbouring datasets that the claim is about, and its privacy unit."""

from __future__ import annotations

from collections.abc import Iterator

from askgauss.checks.findings import not_run
from askgauss.claims import PrivacyClaim
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.results import Finding, Status
from askgauss.sampling import ReplaceOne
from askgauss.scores import CanaryScores

__all__ = ["has_opposites", "neighbour_checks"]

Data = CanaryScores | Transcript | LinearTranscript


def has_opposites(data: Data) -> bool:
    """Whether a canary's record can be exchanged for one with the opposite gradient.

    A gradient-space canary adds a vector that the audit chose. Clipping depends on a gradient's
    norm alone and the noise on none, so the opposite vector adds the opposite. Of an input-space
    canary nobody knows a record whose gradient is the opposite one, and scores do not say what
    they are of.
    """
    if isinstance(data, CanaryScores):
        return False
    rounds = data.facts.rounds
    if isinstance(data, LinearTranscript):
        return True
    return data.facts.contribution is None and (rounds is None or rounds.signed)


def neighbour_checks(data: Data, claim: PrivacyClaim, *, replaced: bool) -> Iterator[Finding]:
    """What canaries show of the claim's adjacency and unit.

    Args:
        data: What was audited.
        claim: What the run claims.
        replaced: Whether the bound is that of replace-one neighbours.
    """
    if claim.adjacency == "replace":
        yield _replaced(data, replaced)
    elif not isinstance(data, CanaryScores):  # of scores, presence is all that is known
        yield _left_out(claim)
    if claim.unit == "user":
        yield _user(data)
    elif not isinstance(data, CanaryScores) and _unit(data) == "user":
        yield Finding(
            check="privacy unit",
            status=Status.INFO,
            summary="canaries are users: what one user adds over the whole run was measured. The "
            "claim speaks of one example, of which a user may have many.",
        )


def _left_out(claim: PrivacyClaim) -> Finding:
    said = f"canaries are inserted or held out, as a record is under {claim.adjacency}."
    if claim.adjacency == "add-remove" and claim.scheme is not None and claim.scheme.fixed_batch:
        said = (
            "with batches of fixed size one record more or less changes which others are drawn; "
            "the bound is that of a record whose gradient is left out (zero-out)."
        )
        return Finding(check="adjacency", status=Status.INFO, summary=said)
    return Finding(check="adjacency", status=Status.PASS, summary=said)


def _replaced(data: Data, replaced: bool, check: str = "adjacency") -> Finding:
    if not replaced:
        if has_opposites(data):
            needs = "the default method, or auditor=SubsampledGaussian(replaced=True)"
        elif isinstance(data, CanaryScores):
            needs = (
                "the transcript; or auditor=GaussianShift(replaced=True), where a record's "
                "opposite moves its score as far the other way"
            )
        else:
            needs = "gradient-space canaries, which have an opposite: leave ExampleCanaries out"
        return not_run(check, needs)
    if isinstance(data, Transcript):
        drawn = data.facts.drawn_by
        law = None if drawn is None else ReplaceOne(of=drawn.record_by_record())
        if law is not None and not law.shown:
            needs = "a scheme with a replace-one law (Poisson, fixed size, every step)"
            return not_run(check, f"{needs}, not {drawn}")
    rounds = None if isinstance(data, CanaryScores) else data.facts.rounds
    why = (
        "canaries point either way"
        if rounds is not None and rounds.signed
        else "it assumes that a gradient and its opposite are clipped and noised alike"
    )
    return Finding(
        check=check,
        status=Status.PASS,
        summary="the bound is that of a record exchanged for its opposite, which moves a sum by "
        f"two clip norms; {why}.",
    )


def _unit(data: Data) -> str | None:
    if isinstance(data, CanaryScores):
        return data.metadata.unit
    if data.facts.rounds is not None:
        return "user"
    return data.facts.unit if isinstance(data, Transcript) else None


def _user(data: Data, check: str = "privacy unit") -> Finding:
    if _unit(data) != "user":
        return not_run(
            check,
            "canaries that are users: clients of federated rounds, or what one user adds after all "
            'its examples were clipped together, declared by unit="user"',
        )
    return Finding(
        check=check,
        status=Status.PASS,
        summary="canaries are users: what one user adds over the whole run was measured.",
    )
