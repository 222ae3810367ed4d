"""Facts of federated rounds: what clients reported, and what an aggregator did with odd ones."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.exceptions import FileFormatError

__all__ = ["ParticipationFacts", "ProbeFacts", "RoundFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """What a copy of the aggregator did with updates that no correct client may upset it with.

    Numbers are None where the probe could not be made; an outcome is ``"finite"``, ``"nan"``, or
    the name of what was raised.

    Attributes:
        unchecked: Why nothing was probed; empty where it was.
        clients: Clients of one probe.
        with_nan: What came of an update with one nan.
        zero: What came of an update of zeros.
        heavy: What a client adds, in clip norms, that reports a million times what others do.
        heavy_error: Standard error of that, by the noise next to it.
        heavy_refused: Name of what was raised instead; empty where nothing was.
        spread: Noise of a round of four times as many clients over that of a round, on the sum.
        spread_error: Standard error of that ratio.
        norm_if_above: The next clip norm over this one, every update being far above it.
        norm_if_below: The same, every update being far below.
    """

    unchecked: str = ""
    clients: int = 0
    with_nan: str = ""
    zero: str = ""
    heavy: float | None = None
    heavy_error: float = 0.0
    heavy_refused: str = ""
    spread: float | None = None
    spread_error: float = 0.0
    norm_if_above: float | None = None
    norm_if_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipationFacts:
    """How often clients took part, where rounds say who did.

    Attributes:
        clients: Clients that were named.
        most: Most rounds that one of them entered.
        closest: Least distance between two rounds of one of them; 0 where none entered twice.
        limit: Most rounds that were accounted for; None where nothing limits them.
        separation: Least distance that was accounted for.
        moved: How far the client that moves the mechanism most moves its nodes or rows, in clip
            norms, of those beyond the limits; 0 where none is.
    """

    clients: int = 0
    most: int = 0
    closest: int = 0
    limit: int | None = None
    separation: int = 1
    moved: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("clients", "most", "closest", "limit", "separation", "moved"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise FileFormatError(
                    f"Expected facts.rounds.participation.{name} >= 0, got it below."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What was seen of the clients of all rounds, beside what was released.

    Attributes:
        fewest: Honest clients of the smallest round.
        most: Honest clients of the largest round.
        heaviest: The largest weight that an honest client reported, over the mean weight of its
            round; canaries report the largest one of their round.
        reported: What canaries would add on average, were clients weighted as they report.
        adaptive: Whether the clip norm may change from round to round.
        next_norms: The clip norm after each round over the one before it; empty where it is fixed.
        unreleased: Rounds that released nothing.
        probes: What odd updates did.
        participation: How often clients took part; None where rounds do not say who did.
        signed: Whether canaries sent updates of either sign, as many as chance has it.
    """

    fewest: int = 0
    most: int = 0
    heaviest: float = 1.0
    reported: float = 1.0
    adaptive: bool = False
    next_norms: tuple[float, ...] = ()
    unreleased: int = 0
    probes: ProbeFacts = ProbeFacts()
    participation: ParticipationFacts | None = None
    signed: bool = False

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("fewest", "most", "heaviest", "reported", "unreleased"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.rounds.{name} >= 0, got it below.")
        if not all(ratio > 0.0 for ratio in self.next_norms):
            raise FileFormatError("Expected facts.rounds.next_norms > 0, got others.")
        if self.participation is not None:
            self.participation.check()
