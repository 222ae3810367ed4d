"""Facts of federated rounds: what clients reported, and what an aggregator did with odd ones."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.exceptions import FileFormatError

__all__ = ["HonestFacts", "ParticipationFacts", "ProbeFacts", "ProbeReading", "RoundFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What one client adds to the released sum of a probe.

    Attributes:
        added: In clip norms, on a grid as wide as its error.
        error: Standard error of that, by the noise next to it.
        noise: Noise multiplier of the same release: a sum that is scaled up with its noise, such
            as one over fewer survivors, is no fault.
        values: Entries from which that noise was measured.
    """

    added: float
    error: float = 0.0
    noise: float = 0.0
    values: int = 0


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
        heavy: What a client adds that reports a million times what others do.
        heavy_refused: Name of what was raised instead; empty where nothing was.
        clipped: What a client adds whose update is above the clip norm: the most of all that were
            tried.
        clipped_size: The norm of that update, in clip norms.
        clipped_way: How it was made, in words.
        clipped_tried: Number of updates that were tried.
        overflowed: How the update was made that the release is not finite after; empty where it
            always is.
        counted: What the client adds that counts most, where all send as much.
        spread: Noise of a round of four times as many clients over that of a round, on the sum.
        spread_error: Standard error of that ratio.
        norm_if_above: The next clip norm over this one, every update being far above it.
        norm_if_below: The same, every update being far below.
    """

    unchecked: str = ""
    clients: int = 0
    with_nan: str = ""
    zero: str = ""
    heavy: ProbeReading | None = None
    heavy_refused: str = ""
    clipped: ProbeReading | None = None
    clipped_size: float = 0.0
    clipped_way: str = ""
    clipped_tried: int = 0
    overflowed: str = ""
    counted: ProbeReading | None = None
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
class HonestFacts:
    """What honest clients add to the sums, along their own updates.

    Attributes:
        rounds: Rounds in which it was read.
        groups: Groups of clients that were told apart.
        group: The group that adds most, in words.
        added: What a client of this group adds, in clip norms, on a grid as wide as its error.
        error: Standard error of that.
    """

    rounds: int = 0
    groups: int = 0
    group: str = ""
    added: float = 0.0
    error: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("rounds", "groups", "error"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.rounds.honest.{name} >= 0, got it below.")


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
        honest: What honest clients add; None where it was not read.
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
    honest: HonestFacts | None = None

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("fewest", "most", "heaviest", "reported", "unreleased"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.rounds.{name} >= 0, got it below.")
        if not all(ratio > 0.0 for ratio in self.next_norms):
            raise FileFormatError("Expected facts.rounds.next_norms > 0, got others.")
        if self.participation is not None:
            self.participation.check()
        if self.honest is not None:
            self.honest.check()
