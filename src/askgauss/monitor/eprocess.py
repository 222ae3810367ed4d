"""E-processes against a run's claim, one for each watched part, and the cause of an alarm."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from askgauss import accounting
from askgauss.canaries import Canaries, ExampleCanaries
from askgauss.exceptions import FileFormatError
from askgauss.sampling import Scheme
from askgauss.stats import betting
from askgauss.stats.rounding import on_grid, scale_on_grid

__all__ = [
    "PARTS",
    "EProcessState",
    "EProcesses",
    "ObservedStep",
    "Tally",
    "WatchedCanaries",
    "cause_summary",
    "find_onset",
    "implied_epsilon",
]

PARTS = ("noise", "contribution", "sampling rate", "repeated noise")
# Alternatives to the claim. Whatever lies between two of them is seen by both, a little later.
NOISE = np.array([0.995, 0.99, 0.975, 0.95, 0.9, 0.8, 0.5, 0.1])
# Slopes in units of the declared noise: an excess of d deviations is found best by d / (1 + d^2).
CONTRIBUTION = np.array([0.025, 0.05, 0.1, 0.2, 0.35, 0.5])
ODDS = np.array([1.05, 1.1, 1.25, 1.5, 2.0, 4.0])
# A correlation of c is found best by c / (1 + 2 c^2), the same noise by a third.
CORRELATION = np.array([0.1, 1.0 / 3.0, -0.1, -1.0 / 3.0])
# Where more than one tensor is seen, half of the noise's weight is on all of them together.
_POOLED = 0.5
# Of a step, two for each part: freedom and square, total and square, count and opportunities, and
# once more total and square.
_STATISTICS = 2 * len(PARTS)
# Earlier steps to compare with: the one before, the first, and for each power of two the last step
# that it divides and twice of it does not, so that steps of every age are there.
_PREVIOUS, _FIRST, _LEVELS = 0, 1, 8

# Steps in which a fault that has just been seen may have begun.
_RECENT = 64

_Floats = NDArray[np.float64]
# Plantings, the sum over them, and how often a canary could have been planted.
_Signal = tuple[float, float, float]


class ObservedStep(NamedTuple):
    """A step as a recorder saw it, in clip norms; arrays have an entry for each tensor.

    Attributes:
        planted: Number of canaries planted.
        planted_total: Sum over them.
        planted_square: Sum of squares.
        total: Sum over the others.
        square: Sum of squares over the others.
        kept: Values of the kept canaries.
        noise_multiplier: What was declared for the step; None where nothing was.
        known: Whether the other records' sum has been subtracted.
        own_coin: Whether the recorder sampled the canaries, not the training's sampler.
    """

    planted: NDArray[np.int64]
    planted_total: _Floats
    planted_square: _Floats
    total: _Floats
    square: _Floats
    kept: _Floats
    noise_multiplier: float | None
    known: bool
    own_coin: bool


class WatchedCanaries:
    """What is watched, as far as it is fixed before the run.

    Args:
        canaries: Who is planted where.
        kept: Indices of the canaries whose values are seen one by one.
    """

    def __init__(self, canaries: Canaries, kept: NDArray[np.int64]) -> None:
        tensor = np.asarray(canaries.tensor)
        self.present = int(np.count_nonzero(canaries.member))
        self.orthogonal = not isinstance(canaries, ExampleCanaries)
        self.size = np.bincount(tensor, minlength=1).astype(np.float64)
        self.count = int(canaries.size)
        self.tensors = np.flatnonzero(self.size)
        self.quiet = np.flatnonzero(~canaries.member[kept])
        self.quiet_tensor = tensor[kept][self.quiet]
        self.quiet_size = np.bincount(self.quiet_tensor, minlength=self.size.size).astype(float)

    def reasons(
        self, *, known: bool, own_coin: bool, declared: bool, rate: float | None
    ) -> dict[str, str]:
        """Why each part cannot be watched, or nothing; never from what the run released."""
        nobody = "" if self.present else "no canary is present"
        hidden = "" if known else "the background is unknown"
        silent = "" if declared else "no noise multiplier is declared or follows from the claim"
        along = "" if self.orthogonal else "values along gradients are not independent"
        coin = "the recorder's own coin plants" if own_coin else ""
        unclaimed = "no sampling rate is claimed" if rate is None else ""
        always = "every record is in every step" if rate == 1.0 else ""
        alone = "" if self.quiet.size > 1 else "no absent canaries are kept"
        return {
            "noise": along or silent,
            "contribution": along or hidden or nobody or silent,
            "sampling rate": coin or nobody or unclaimed or always,
            "repeated noise": along or hidden or alone,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EProcessState:
    """The plain values of a checkpoint."""

    parts: tuple[str, ...]
    step: int
    wealth: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    row_steps: tuple[int, ...]


class EProcesses:
    """One e-process for each part that is watched, and their mean.

    Given the alternative, all but one kind of bet is a straight line in a few statistics of the
    step, so that a step is one product with the matrix of these lines.

    Args:
        layout: What is watched.
        parts: The parts, of `PARTS`.
        rate: The claimed sampling rate, where it is watched.
    """

    def __init__(self, layout: WatchedCanaries, parts: tuple[str, ...], rate: float | None) -> None:
        self._layout, self._parts = layout, parts
        self._step = 0
        self._log_weight = np.zeros(0)
        self._slices: dict[str, slice] = {}
        lines = [self._lines(name, rate) for name in parts]
        start = 0
        for name, part in zip(parts, lines, strict=True):
            weights = self._weights(name, len(part))
            self._slices[name] = slice(start, start + weights.size)
            start += weights.size
            self._log_weight = np.append(self._log_weight, np.log(weights / len(parts)))
        self._matrix = np.concatenate(lines) if lines else np.zeros((0, _STATISTICS))
        self._wealth = np.full(start, -math.inf)
        self._many = "noise" in parts and layout.tensors.size > 1
        self._watch_contribution = "contribution" in parts
        self._watch_likeness = "repeated noise" in parts
        self._several = np.count_nonzero(layout.quiet_size) > 1
        self._quiet_sizes: list[float] = layout.quiet_size.tolist()
        self._no_bets = np.zeros(CORRELATION.size)
        self._rows = np.zeros((2 + _LEVELS, layout.quiet.size))
        self._squared_rows = self._rows.copy()
        self._row_steps = [0] * (2 + _LEVELS)
        self._filled: list[int] = []
        self._totals: tuple[_Floats, tuple[int, ...]] = (np.zeros(1), (0,))

    def _lines(self, name: str, rate: float | None) -> _Floats:
        """The bets of a part, a row each: what every statistic of `weigh` adds to them."""
        line: Callable[[float, float], _Floats]
        if name == "noise":
            first, line = 0, functools.partial(betting.noise_log_e, ratio=NOISE)
        elif name == "contribution":
            first, line = 2, functools.partial(betting.sign_log_e, slope=CONTRIBUTION)
        elif name == "sampling rate":
            assert rate is not None
            first, line = 4, functools.partial(betting.rate_log_e, rate=rate, odds=ODDS)
        else:
            first, line = 6, functools.partial(betting.sign_log_e, slope=CORRELATION)
        first_line, second_line = line(1.0, 0.0), line(0.0, 1.0)
        found = np.zeros((first_line.size, _STATISTICS))
        found[:, first], found[:, first + 1] = first_line, second_line
        return found

    def _weights(self, name: str, lines: int) -> _Floats:
        if name == "noise" and self._layout.tensors.size > 1:
            each = self._layout.tensors.size * lines
            return np.repeat([_POOLED / lines, (1.0 - _POOLED) / each], [lines, each])
        bets = 2 * lines if name == "repeated noise" else lines
        return np.full(bets, 1.0 / bets)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are watched."""
        return self._parts

    def weigh(
        self,
        step: ObservedStep,
        count: int,
        noise: float | None,
        freedom: _Floats,
        square: _Floats,
    ) -> float:
        """Weigh one step; the logarithm of the joint e-process after it.

        Args:
            step: The step.
            count: Number of planted canaries.
            noise: The noise multiplier declared for it, above 0; None where none is.
            freedom: Degrees of freedom of the noise, by tensor.
            square: Its sum of squares, in units of what is declared.
        """
        self._step += 1
        layout = self._layout
        statistics = [0.0] * _STATISTICS
        statistics[4], statistics[5] = count, layout.present
        if noise is not None:
            statistics[0], statistics[1] = layout.count - count, sum(square.tolist())
            if self._watch_contribution:
                # Plain numbers: a handful of them is far quicker to add up than arrays.
                total, squares = (
                    sum(part.tolist()) for part in (step.planted_total, step.planted_square)
                )
                statistics[2] = (total - count) / noise
                statistics[3] = (squares - 2.0 * total + count) / (noise * noise)
        earlier = None
        if self._watch_likeness:
            statistics[6], statistics[7], earlier = self._likeness(step.kept[layout.quiet])
        parts = [self._matrix @ np.array(statistics)]
        if self._many:
            pooled, lines = NOISE.size, self._matrix
            each = np.zeros((layout.tensors.size, pooled))
            if noise is not None:
                each = freedom[layout.tensors, None] * lines[:pooled, 0]
                each += square[layout.tensors, None] * lines[:pooled, 1]
            parts = [parts[0][:pooled], each.ravel(), parts[0][pooled:]]
        if earlier is not None:
            parts.append(earlier)
        logs = np.concatenate(parts)
        self._wealth = betting.advance(self._wealth, self._log_weight, self._step, logs)
        return betting.log_evidence(self._wealth, self._step)

    def _likeness(self, values: _Floats) -> tuple[float, float, _Floats]:
        """How like this step's noise is to the one before; and the bets on an earlier one."""
        row = self._scaled(values)
        totals, squares = self._rows @ row, self._squared_rows @ (row * row)
        self._totals = (totals, tuple(self._row_steps))
        filled, earlier = self._filled, self._no_bets
        if len(filled) > 1:
            some = filled[1:]
            logs = betting.sign_log_e(totals[some, None], squares[some, None], CORRELATION)
            # Each of them is as good a guess as any other.
            earlier = np.logaddexp.reduce(logs, axis=0) - math.log(len(some))
        level = 2 + min((self._step & -self._step).bit_length() - 1, _LEVELS - 1)
        for index in (_PREVIOUS, level if filled else _FIRST):
            self._rows[index], self._row_steps[index] = row, self._step
            self._squared_rows[index] = row * row
        if len(filled) < len(self._rows):
            self._filled = [place for place, number in enumerate(self._row_steps) if number]
        return float(totals[_PREVIOUS]), float(squares[_PREVIOUS]), earlier

    def _scaled(self, values: _Floats) -> _Floats:
        """Values with mean square 1 in each tensor: only their signs are bet on."""
        layout = self._layout
        if not self._several:
            return values * math.sqrt(values.size / (float(values @ values) or 1.0))
        squares = np.bincount(layout.quiet_tensor, values * values, layout.size.size).tolist()
        factors = [
            math.sqrt(size / (square or 1.0))
            for size, square in zip(self._quiet_sizes, squares, strict=True)
        ]
        return np.asarray(values * np.array(factors)[layout.quiet_tensor])

    def likeness(self) -> tuple[int, float]:
        """The earlier step whose noise the last one's is most like, and their correlation."""
        totals, steps = self._totals
        nearest = int(np.argmax(np.abs(totals)))
        return steps[nearest], float(totals[nearest]) / self._layout.quiet.size

    def evidence(self, part: str | None = None) -> float:
        """Logarithm of the e-process of a part, or of all together."""
        if self._step == 0:
            return 0.0
        if part is None:
            return betting.log_evidence(self._wealth, self._step)
        share = 1.0 / len(self._parts)
        return betting.log_evidence(self._wealth[self._slices[part]], self._step, share)

    def weakest_tensor(self) -> int | None:
        """The tensor most of the noise's evidence is about; None where it is about all."""
        group = int(np.argmax(self._wealth[self._slices["noise"]])) // NOISE.size
        return None if group == 0 else int(self._layout.tensors[group - 1])

    def state(self) -> EProcessState:
        """Everything that changes from step to step."""
        return EProcessState(
            parts=self._parts,
            step=self._step,
            wealth=tuple(self._wealth.tolist()),
            rows=tuple(tuple(row) for row in self._rows.tolist()),
            row_steps=tuple(self._row_steps),
        )

    def load(self, state: EProcessState) -> None:
        """Go on from a state.

        Raises:
            FileFormatError: It is not one of these bets.
        """
        count, width = self._rows.shape
        fits = state.parts == self._parts and len(state.wealth) == self._wealth.size
        fits = fits and [len(row) for row in state.rows] == [width] * count
        if not fits or len(state.row_steps) != count or state.step < 0:
            raise FileFormatError(
                "Expected the monitor's checkpoint to be of this run's canaries, got other sizes. "
                "Load the checkpoint of this run."
            )
        self._step, self._wealth = state.step, np.array(state.wealth, dtype=np.float64)
        rows = np.array(state.rows, dtype=np.float64).reshape(count, width)
        self._rows, self._squared_rows = rows, rows * rows
        self._row_steps = list(state.row_steps)
        self._filled = [place for place, number in enumerate(self._row_steps) if number]


class Tally:
    """What was measured of the noise, the contribution and the rate: all along, and lately.

    Lately is since `forget` was called last, or since where `narrow` found it to begin.

    Args:
        tensors: Number of tensors.
    """

    def __init__(self, tensors: int) -> None:
        # Degrees of freedom and squares of the relative noise, by tensor.
        self._noise = (np.zeros(tensors), np.zeros(tensors))
        self._signal: _Signal = (0.0, 0.0, 0.0)
        self._recent: deque[tuple[_Floats, _Floats, _Signal]] = deque(maxlen=_RECENT)
        self.forget()

    def add(self, freedom: _Floats, square: _Floats, signal: _Signal) -> None:
        """Add a step; the arrays are kept, and must not change."""
        self._recent.append((freedom, square, signal))
        for sums, new in zip(self._noise, (freedom, square), strict=True):
            np.add(sums, new, out=sums)
        old = self._signal
        self._signal = (old[0] + signal[0], old[1] + signal[1], old[2] + signal[2])

    def forget(self) -> None:
        """Begin anew with what is lately."""
        self._noise_before = (self._noise[0].copy(), self._noise[1].copy())
        self._signal_before = self._signal

    def narrow(
        self, weigh: Callable[[float, float, _Signal], float], tensor: int | None = None
    ) -> None:
        """Let lately begin in that of the last steps since when most speaks against the claim.

        Args:
            weigh: How much degrees of freedom, squares and signals of some steps speak against it.
            tensor: The tensor whose noise they are; None for all.
        """
        chosen = slice(None) if tensor is None else slice(tensor, tensor + 1)

        def weighed(rows: _Floats, signal: _Signal) -> float:
            freedom, square = rows[:, chosen].sum(axis=1).tolist()
            return weigh(freedom, square, signal)

        noise, signal = np.zeros((2, self._noise[0].size)), (0.0, 0.0, 0.0)
        now = np.array(self._noise)
        since, since_signal = now - self._noise_before, self._signals(lately=True)
        best = weighed(since, since_signal)
        for freedom, square, more in reversed(self._recent):
            noise = noise + np.stack((freedom, square))
            signal = (signal[0] + more[0], signal[1] + more[1], signal[2] + more[2])
            value = weighed(noise, signal)
            if value > best:
                best, since, since_signal = value, noise, signal
        before = now - since
        self._noise_before = (before[0], before[1])
        first, second, third = self._signal
        self._signal_before = (
            first - since_signal[0],
            second - since_signal[1],
            third - since_signal[2],
        )

    def noise(self, tensor: int | None = None, *, lately: bool = False) -> float:
        """Noise in units of what is declared, as may be published; nan where none was seen.

        It is rounded to its standard error: in a tensor of one canary it is that canary's value.
        """
        freedom, square = self._noise_of(tensor, lately)
        if not freedom > 0.0:
            return math.nan
        # The exact number of values would reveal how many canaries were included.
        values = 2.0 ** round(math.log2(freedom))
        return scale_on_grid(math.sqrt(square / freedom), values)

    def _noise_of(self, tensor: int | None, lately: bool) -> tuple[float, float]:
        rows = np.array(self._noise) - (self._noise_before if lately else 0.0)
        freedom, square = rows.sum(axis=1) if tensor is None else rows[:, tensor]
        return float(freedom), max(float(square), 0.0)

    def noise_sums(self) -> tuple[float, float]:
        """Degrees of freedom and squares of all tensors and steps."""
        freedom, square = self._noise
        return sum(freedom.tolist()), sum(square.tolist())

    def _signals(self, lately: bool) -> _Signal:
        before = self._signal_before if lately else (0.0, 0.0, 0.0)
        now = self._signal
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def contribution(self, deviation: float, *, lately: bool = False) -> float:
        """What an included canary adds, in clip norms, as may be published; nan where none was.

        Args:
            deviation: The noise of one value, in clip norms: the grid is as wide as the error.
            lately: Whether to speak of lately only.
        """
        count, total, _ = self._signals(lately)
        return on_grid(total / count, deviation / math.sqrt(count), 1.0) if count else math.nan

    def rate(self, *, lately: bool = False) -> float:
        """How often a present canary was planted; nan where none is present."""
        count, _, opportunities = self._signals(lately)
        return float(count / opportunities) if opportunities else math.nan

    def state(self) -> tuple[tuple[float, ...], ...]:
        """All numbers, as rows."""
        rows = (*self._noise, *self._noise_before)
        return (*(tuple(row.tolist()) for row in rows), self._signal, self._signal_before)

    def load(self, state: tuple[tuple[float, ...], ...]) -> None:
        """Go on from a state.

        Raises:
            FileFormatError: It has another shape.
        """
        width = self._noise[0].size
        if [len(row) for row in state] != [width] * 4 + [3, 3]:
            raise FileFormatError("Expected the monitor's tallies to have one entry a tensor.")
        rows = [np.array(row, dtype=np.float64) for row in state[:4]]
        self._noise, self._noise_before = (rows[0], rows[1]), (rows[2], rows[3])
        first, second, third = state[4]
        self._signal = (first, second, third)
        first, second, third = state[5]
        self._signal_before = (first, second, third)


def find_onset(cause: str, bets: EProcesses, tally: Tally, rate: float | None) -> None:
    """Let the tally's latest steps begin where the fault seems to have begun."""

    def weigh(freedom: float, square: float, signal: tuple[float, float, float]) -> float:
        count, total, opportunities = signal
        if cause == "contribution":
            return (total - count) / math.sqrt(max(count, 1.0))
        if cause == "sampling rate" and rate is not None:
            return (count - rate * opportunities) / math.sqrt(max(opportunities, 1.0))
        if cause != "noise" or not square < freedom:
            return 0.0
        # The likelihood of the noise that was measured, over that of what is declared.
        share = max(square / freedom, 1e-300)
        return -0.5 * freedom * (math.log(share) + 1.0 - share)

    tally.narrow(weigh, bets.weakest_tensor() if cause == "noise" else None)


def cause_summary(
    cause: str, bets: EProcesses, tally: Tally, noise: float | None, rate: float | None
) -> str:
    """What was measured of the cause since its onset, in a sentence."""
    if cause == "noise":
        tensor = bets.weakest_tensor()
        where = "" if tensor is None else f" in tensor {tensor}"
        ratio = tally.noise(tensor, lately=True)
        shown = "" if noise is None else f" ({ratio * noise:.4g} for {noise:.4g})"
        return f"The noise{where} is {ratio:.3g} times what is declared{shown}."
    if cause == "contribution":
        deviation = tally.noise(lately=True) * (1.0 if noise is None else noise)
        added = tally.contribution(deviation, lately=True)
        return f"A planted canary adds {added:.3g} clip norms, where 1 is the most."
    if cause == "sampling rate":
        return (
            f"Canaries are sampled at rate {tally.rate(lately=True):.4g}, where "
            f"{rate:.4g} is claimed."
        )
    step, correlation = bets.likeness()
    return f"The noise correlates by {correlation:+.3f} with that of step {step}."


def implied_epsilon(
    cause: str,
    *,
    bets: EProcesses | None,
    tally: Tally,
    declared: float | None,
    rate: float | None,
    scheme: Scheme | None,
    steps: int,
    planned: int | None,
    delta: float,
) -> float | None:
    """Epsilon at the planned end: what was measured so far, and from here on as since the onset.

    Args:
        cause: The cause of the alarm.
        bets: The e-processes, once there are any.
        tally: What was measured.
        declared: The noise multiplier, where all steps have declared the same.
        rate: The claimed sampling rate, where known.
        scheme: How batches are drawn, where that is not Poisson sampling.
        steps: Steps so far.
        planned: Steps at the end, where known.
        delta: Where epsilon is stated.
    """
    if cause == "repeated noise" and bets is not None:
        # The same noise twice cancels out of a difference.
        return math.inf if abs(bets.likeness()[1]) > 0.99 else None
    unknown = delta == 0.0 or (rate is None and scheme is None)
    if cause not in PARTS or unknown or bets is None or declared is None:
        return None
    tensor = bets.weakest_tensor() if cause == "noise" else None
    history = []
    for count, lately in ((steps, False), (max((planned or steps) - steps, 0), True)):
        noise = declared * tally.noise(tensor, lately=lately)
        if cause == "contribution":
            noise /= max(tally.contribution(noise, lately=lately), 1.0)
        if cause == "sampling rate":
            noise, rate = declared, tally.rate(lately=lately)
        if count:
            history.append((noise, count))
    if rate is not None:
        segments = ((noise, min(rate, 1.0), count) for noise, count in history)
        return accounting.history_epsilon(segments, delta)
    assert scheme is not None
    return _over_a_run(scheme, history, delta)


def _over_a_run(scheme: Scheme, history: list[tuple[float, int]], delta: float) -> float:
    """Epsilon of segments of noise and steps, as if their squared signals were spread evenly."""
    steps = sum(count for _, count in history)
    if any(noise == 0.0 for noise, _ in history):
        return scheme.epsilon_lower(noise_multiplier=0.0, steps=steps, delta=delta)
    squared = sum(count / noise**2 for noise, count in history) / steps
    return scheme.epsilon_lower(noise_multiplier=squared**-0.5, steps=steps, delta=delta)
