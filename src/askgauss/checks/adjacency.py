"""Whether canaries show the neighbouring datasets that the claim is about, and its privacy unit."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.checks.findings import not_run
from askgauss.checks.registry import ADJACENCY, PRIVACY_UNIT, check
from askgauss.claims import PrivacyClaim
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import Finding, Status
from askgauss.sampling import ReplaceOne
from askgauss.scores import CanaryScores

__all__ = ["NEIGHBOUR_CHECKS", "Neighbours", "has_opposites"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What was audited and the neighbouring datasets that the claim is about.

    Attributes:
        data: What was audited.
        claim: What the run claims.
        replaced: Whether the bound is that of replace-one neighbours.
    """

    data: Data
    claim: PrivacyClaim
    replaced: bool

    @property
    def unit(self) -> str | None:
        """What a canary is: a record or a user; None where that is not known."""
        if isinstance(self.data, CanaryScores):
            return self.data.metadata.unit
        if self.data.facts.rounds is not None:
            return "user"
        return self.data.facts.unit if isinstance(self.data, Transcript) else None


@check("adjacency", part=ADJACENCY, decides=True)
def adjacency(seen: Neighbours) -> Finding | None:
    """Whether canaries show the neighbouring datasets of the claim."""
    if seen.claim.adjacency == "replace":
        return _replaced(seen.data, seen.replaced)
    if isinstance(seen.data, CanaryScores):  # of scores, presence is all that is known
        return None
    scheme = seen.claim.scheme
    if seen.claim.adjacency == "add-remove" and scheme is not None and scheme.fixed_batch:
        return _stated(
            "with batches of fixed size one record more or less changes which others are drawn; "
            "the bound is that of a record whose gradient is left out (zero-out).",
            Status.INFO,
        )
    return _stated(
        f"canaries are inserted or held out, as a record is under {seen.claim.adjacency}."
    )


def _stated(summary: str, status: Status = Status.PASS) -> Finding:
    return Finding(check="", status=status, summary=summary)


def _replaced(data: Data, replaced: bool) -> Finding:
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
        return not_run(needs)
    if isinstance(data, Transcript):
        scheme = data.facts.drawn_by
        replaced_by = None if scheme is None else ReplaceOne(of=scheme.record_by_record())
        if replaced_by is not None and not replaced_by.shown:
            needs = "a scheme with a replace-one law (Poisson, fixed size, every step)"
            return not_run(f"{needs}, not {scheme}")
    rounds = None if isinstance(data, CanaryScores) else data.facts.rounds
    why = (
        "canaries point either way"
        if rounds is not None and rounds.signed
        else "it assumes that a gradient and its opposite are clipped and noised alike"
    )
    return _stated(
        "the bound is that of a record exchanged for its opposite, which moves a sum by two clip "
        f"norms; {why}."
    )


@check("privacy unit", part=PRIVACY_UNIT, decides=True)
def privacy_unit(seen: Neighbours) -> Finding | None:
    """Whether canaries are what the claim protects."""
    measured = "canaries are users: what one user adds over the whole run was measured."
    if seen.claim.unit == "user" and seen.unit == "user":
        return _stated(measured)
    if seen.claim.unit == "user":
        return not_run(
            "canaries that are users: clients of federated rounds, or what one user adds after all "
            'its examples were clipped together, declared by unit="user"'
        )
    if isinstance(seen.data, CanaryScores) or seen.unit != "user":
        return None
    return _stated(
        f"{measured} The claim speaks of one example, of which a user may have many.", Status.INFO
    )


NEIGHBOUR_CHECKS = (adjacency, privacy_unit)
"""Checks of the claim's adjacency and privacy unit."""
