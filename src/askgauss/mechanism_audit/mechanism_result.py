"""The result of an audit of a mechanism, and the bets behind it as plain counts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, policy
from askgauss._text import number, of_the_claim
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import InvalidArgumentError
from askgauss.files import atomic, codec
from askgauss.results import Assumption, Verdict
from askgauss.stats import betting

__all__ = ["Bet", "BetEvidence", "MechanismResult"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bet:
    """Bets on one event, over one batch of fresh outputs.

    Attributes:
        event: What was bet on.
        known_trials: Outputs of each side the event was chosen on.
        known_favoured: How many of the favoured side's were in it.
        known_other: How many of the other side's.
        trials: Fresh outputs of each side, block by block.
        favoured: Hits among them on the favoured side.
        other: Hits among them on the other side.
    """

    event: str
    known_trials: int
    known_favoured: int
    known_other: int
    trials: tuple[int, ...]
    favoured: tuple[int, ...]
    other: tuple[int, ...]

    def __post_init__(self) -> None:
        known = min(self.known_favoured, self.known_other) >= 0 and self.known_trials > 0
        known &= max(self.known_favoured, self.known_other) <= self.known_trials
        blocks = list(zip(self.trials, self.favoured, self.other, strict=True))
        if not (
            known and blocks and all(0 <= min(hits) <= max(hits) <= n > 0 for n, *hits in blocks)
        ):
            raise InvalidArgumentError(
                "Its bets are none that an audit places: hits and outputs do not fit each other."
            )

    def table(self) -> Array:
        """Rows as `betting.log_wealth` takes them, one column a block."""
        fresh = np.array([self.favoured, self.other, self.trials], np.float64)
        known = np.array([[self.known_favoured], [self.known_other], [self.known_trials]])
        return np.concatenate((fresh, known + np.cumsum(fresh, axis=1) - fresh))


@dataclass(frozen=True, slots=True, kw_only=True)
class BetEvidence:
    """Bets of several players on the same outputs; their average wealth is the evidence.

    Attributes:
        players: The bets of each, batch by batch.
    """

    players: tuple[tuple[Bet, ...], ...]

    def __post_init__(self) -> None:
        blocks = {tuple(size for bet in bets for size in bet.trials) for bets in self.players}
        if len(blocks) > 1 or () in blocks:
            raise InvalidArgumentError("Its bets are none that an audit places: of other outputs.")

    @property
    def trials(self) -> int:
        """Outputs of each side that were bet on."""
        return sum(sum(bet.trials) for bet in self.players[0]) if self.players else 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of bets, in order."""
        return tuple(size for bet in self.players[0] for size in bet.trials)

    def log_peak(self, epsilon: Array, delta: float) -> Array:
        """Largest logarithm of the average wealth so far, for each epsilon tested."""
        if self.trials == 0:
            return np.zeros(np.size(epsilon))
        paths = []
        for bets in self.players:
            table = np.concatenate([bet.table() for bet in bets], axis=1)
            paths.append(betting.log_wealth(*table, epsilon=epsilon, delta=delta))
        average = np.logaddexp.reduce(paths, axis=0) - math.log(len(paths))
        return np.asarray(np.maximum(average.max(axis=1), 0.0))

    def rejects(self, epsilon: float, delta: float, error: float) -> bool:
        """Whether this epsilon, and every smaller one of the grid, is contradicted."""
        goal = -math.log(error)
        if self.trials == 0 or self.log_peak(np.array([epsilon]), delta)[0] < goal:
            return False
        below = _grid(self.trials)
        return bool(np.all(self.log_peak(below[below < epsilon], delta) >= goal))

    def p_value(self, epsilon: float, delta: float) -> float:
        """Probability of evidence this strong, whenever one stops, were this epsilon true."""
        if self.trials == 0 or epsilon >= betting.ceiling(self.trials, delta=delta, error=0.5):
            return 1.0
        below = _grid(self.trials)
        levels = np.append(below[below < epsilon], epsilon)
        return float(np.exp(-self.log_peak(levels, delta).min()))

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """The largest epsilon of the grid that is contradicted with all below it; 0 if none."""
        if self.trials == 0:
            return 0.0
        levels = _grid(self.trials)
        standing = self.log_peak(levels, delta) < -math.log(1.0 - confidence)
        first = int(np.argmax(standing)) if standing.any() else levels.size
        return float(levels[first - 1]) if first else 0.0


@lru_cache
def _grid(trials: int) -> Array:
    """Epsilons that are tested: a hundredth apart, or half a percent where that is more.

    They go as far as this many bets could ever reach. Wealth need not fall as epsilon rises, so the
    bound is the last one before the first that stands: if it exceeds the truth, then so does an
    epsilon that was fixed in advance, at which the mechanism is private and the test was valid.
    """
    most = math.log(trials) + 1.0
    small = np.arange(0.0, min(2.0, most), 0.01)
    large = 2.0 * 1.005 ** np.arange(int(max(math.log(most / 2.0) / math.log(1.005), 0)) + 1)
    return np.concatenate((small, large[large <= most]))


_KIND = "askgauss-mechanism-result"
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismResult:
    """The answer of one audit of a mechanism on one pair of neighbouring inputs.

    Attributes:
        evidence: The bets that were placed; they answer `epsilon_at` and `p_value`.
        samples: Outputs drawn from each side, those that events were chosen on included.
        delta: The delta the bound is stated at.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        epsilon_lower: The lower bound on epsilon.
        epsilon_point: What the event bet on last showed; never to be read without the bound.
        event: The event that showed it.
        ceiling: The most that this many outputs could show at this confidence.
        claim: What was claimed, if anything.
        gate_error: Probability that a mechanism that keeps its claim ends in VIOLATION or INVALID.
        verdict: The verdict on the claim; None where there is no claim.
        reason: Why, in one sentence.
        power: Probability of a VIOLATION had the event leaked 1.25 times as much as it did, or as
            the claim where it showed all of that.
        version: The askgauss that made the result.
    """

    evidence: BetEvidence
    samples: int
    delta: float
    confidence: float
    epsilon_lower: float
    epsilon_point: float | None
    event: str
    ceiling: float
    claim: PrivacyClaim | None
    gate_error: float
    verdict: Verdict | None
    reason: str
    power: float | None
    version: str

    def __post_init__(self) -> None:
        _validate.within(0.0, 1.0, closed="left", delta=self.delta)
        _validate.within(0.5, 1, confidence=self.confidence)
        _validate.within(0, 0.5, gate_error=self.gate_error)

    @property
    def assumption(self) -> Assumption:
        """What the bound rests on: independent outputs, and nothing about their law."""
        return Assumption.DISTRIBUTION_FREE

    @property
    def scope(self) -> str:
        """What was tested, and what was not."""
        return (
            "this pair of inputs only, which the caller says are neighbours; events found by this "
            "search; outputs taken for independent draws. Another pair may leak more."
        )

    def epsilon_at(self, *, delta: float) -> float:
        """The lower bound at another delta, from the same bets."""
        _validate.within(0.0, 1.0, closed="left", delta=delta)
        return self.evidence.epsilon_lower(delta, self.confidence)

    def p_value(self, *, epsilon: float) -> float:
        """Probability of evidence this strong, whenever one stops, were epsilon kept."""
        _validate.non_negative(epsilon=epsilon)
        return self.evidence.p_value(epsilon, self.delta)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """JSON text; also written to ``path``, whole or not at all, if one is given."""
        text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(self))
        if path is not None:
            atomic.write_text(path, text)
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> MechanismResult:
        """Read what `to_json` wrote.

        Raises:
            FileFormatError: The text is corrupt, foreign, or of a newer schema.
        """
        content = codec.loads(text, _KIND, _SCHEMA)
        result: MechanismResult = codec.from_plain(cls, content, "result")
        return result

    def __str__(self) -> str:
        lines = []
        if self.claim is not None and self.verdict is not None:
            lines.append(f"{self.verdict.value}: {self.reason}")
            lines.append(f"  claimed     {self.claim}")
        share = ""
        if self.claim is not None:
            share = f" ({of_the_claim(self.epsilon_lower, self.claim.epsilon)})"
        lines.append(
            f"  measured    epsilon >= {number(self.epsilon_lower)} at delta {self.delta:g}, "
            f"confidence {self.confidence:g}{share}"
        )
        lines.append(
            f"  method      bets on events, {self.assumption.value}; {self.samples:,} outputs of "
            "each side"
        )
        if self.event:
            lines.append(f"  event       {self.event}")
        if math.isfinite(self.ceiling):
            lines.append(f"  ceiling     this many outputs could show {number(self.ceiling)}")
        if self.power is not None:
            lines.append(
                f"  power       flags {policy.ALTERNATIVE:g} times the claim in {self.power:.0%} "
                f"of audits; false-alarm rate at most {self.gate_error:g}"
            )
        lines.append(f"  tested      {self.scope}")
        return "\n".join(lines)
