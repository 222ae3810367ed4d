"""What is to be seen of a run that is being watched: one picture for terminal, pipe and page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from askgauss import __version__
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.monitor.feed import FEED_NAME, Feed, read_feed

__all__ = ["Follower", "WatchView", "duration", "spark"]

Tone = Literal["plain", "good", "bad", "muted"]

# A feed that was not written for so long, or for so many times as long as it should take, is stale.
_STALE_SECONDS = 30.0
_STALE_TIMES = 4.0
# Clocks of two machines may differ by this much without a word.
_CLOCKS = 5.0
_BARS = "▁▂▃▄▅▆▇█"
# What a folder holds once its run is over.
_OF_THE_END = ("audit.json", "result.json", "report.html", "transcript.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """A run at one moment.

    Attributes:
        headline: The state in a sentence.
        tone: How it is meant.
        lines: Names and values.
        parts: Every part that can be watched, what is known of it, and how it is meant.
        notes: What a reader should know besides.
        feed: What the view was made from; None while there is nothing.
        spent: Epsilon by the accountant, for the steps so far.
        over: Whether the run has ended.
    """

    headline: str
    tone: Tone
    lines: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str, Tone], ...] = ()
    notes: tuple[str, ...] = ()
    feed: Feed | None = None
    spent: float | None = None
    over: bool = False

    @property
    def line(self) -> str:
        """All that matters in one line, for a log."""
        values = ", ".join(f"{name} {value}" for name, value in self.lines)
        return ". ".join(text.rstrip(".") for text in (self.headline, values, *self.notes) if text)


@dataclass(slots=True)
class Follower:
    """Reads a run's feed again and again.

    Args:
        path: The run's folder, or its ``watch.json``.
        clock: Seconds that never jump, to tell how long nothing came.
        wall: The time of day, to compare with the writer's.

    Raises:
        InvalidArgumentError: On making one, if there is no such folder.
    """

    path: Path
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    _last: Feed | None = field(default=None, init=False)
    _changed: float = field(default=0.0, init=False)
    _problem: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InvalidArgumentError(
                f"Expected RUN to be the folder a run is watched in, got {str(self.path)!r}, which "
                "is not there. Give the monitor folder=, and name that folder."
            )

    def look(self) -> WatchView:
        """The run as it is now.

        Raises:
            FileFormatError: The first feed that is found is none of ours. One that becomes
                unreadable later is a note: the last good one stays.
        """
        now = self.clock()
        try:
            feed = read_feed(self.path)
        except FileNotFoundError:
            if self._last is None:
                return self._waiting()
            self._problem = f"{FEED_NAME} has been removed"
        except (FileFormatError, OSError) as error:
            if self._last is None:
                raise
            self._problem = str(error)
        else:
            self._problem = ""
            if self._last is None or feed != self._last:
                # Before the first look only the writer's clock can say how old the feed is.
                age = max(self.wall() - feed.written, 0.0) if self._last is None else 0.0
                self._last, self._changed = feed, now - age
        assert self._last is not None
        return self._view(self._last, now - self._changed)

    def _waiting(self) -> WatchView:
        ended = [name for name in _OF_THE_END if (self.path / name).exists()]
        if not ended:
            return WatchView(headline=f"waiting for {FEED_NAME}.", tone="muted")
        return WatchView(
            headline=f"no {FEED_NAME} here, but {ended[0]}: the run has ended, and was not watched "
            "in this folder. Give its monitor folder= to follow a run.",
            tone="muted",
            over=True,
        )

    def _view(self, feed: Feed, silent: float) -> WatchView:
        notes = [f"{self._problem}; this is what it last said."] if self._problem else []
        patience = max(feed.every, feed.seconds_a_step or 0.0) * _STALE_TIMES
        stale = feed.status == "running" and silent > max(_STALE_SECONDS, patience)
        if stale:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.wall() - silent))
            notes.append(
                f"nothing was written since {since}, {duration(silent)} ago: the run may have "
                "stopped."
            )
        if feed.written > self.wall() + _CLOCKS:
            ahead = duration(feed.written - self.wall())
            notes.append(f"the writer's clock is {ahead} ahead of this one.")
        if feed.version != __version__:
            notes.append(f"written by askgauss {feed.version}, shown by {__version__}.")
        spent = feed.spent
        return WatchView(
            headline=_headline(feed, stale),
            tone=_tone(feed, stale),
            lines=tuple(_lines(feed, spent, stale)),
            parts=tuple(_parts(feed)),
            notes=tuple(notes),
            feed=feed,
            spent=spent,
            over=feed.status != "running",
        )


def _headline(feed: Feed, stale: bool) -> str:
    if feed.alarm is not None:
        return f"ALARM. {feed.alarm}"
    if feed.status == "failed":
        return "the run ended with an error; no alarm."
    if feed.status == "finished":
        return "the run has ended; no alarm."
    return "no news of the run." if stale else "running; no alarm."


def _tone(feed: Feed, stale: bool) -> Tone:
    if feed.alarm is not None or feed.status == "failed":
        return "bad"
    return "muted" if stale else "good"


def _lines(feed: Feed, spent: float | None, stale: bool) -> list[tuple[str, str]]:
    planned = f" of {feed.planned:,}" if feed.planned else ""
    lines = [("step", f"{feed.steps:,}{planned}")]
    left = feed.seconds_left
    if left is not None and not stale:
        lines.append(("time left", duration(left)))
    told = f"none told; epsilons at delta {feed.delta:g}"
    lines.append(("claim", told if feed.claim is None else str(feed.claim)))
    if feed.sampling is not None:
        lines.append(("batches", str(feed.sampling)))
    if spent is not None:
        lines.append(("spent", f"epsilon {spent:.3f} by the accountant"))
    if feed.bound is not None:
        bound, step = feed.bound
        lines.append(("leaked", f"epsilon at least {bound:.3f} by step {step:,}"))
    if feed.projection is not None:
        found = feed.projection
        lines.append(
            ("at the end", f"epsilon {found.epsilon:.3g} ({found.low:.3g} to {found.high:.3g})")
        )
    noise = [value for value in feed.course.noise if math.isfinite(value)]
    if noise:
        lines.append(("noise", f"{noise[-1]:.4f} times what is declared"))
    if "all" in feed.evidence:
        limit = feed.alarm_at
        lines.append(("evidence", f"10^{feed.evidence['all']:.1f} (alarm at 10^{limit:.1f})"))
    return lines


def _parts(feed: Feed) -> list[tuple[str, str, Tone]]:
    parts: list[tuple[str, str, Tone]] = []
    for name, value in feed.evidence.items():
        if name == "all":
            continue
        broken = feed.alarm is not None and feed.alarm.cause == name
        tone: Tone = "bad" if broken else "good"
        parts.append((name, f"evidence 10^{value:.1f}", tone))
    if feed.alarm is not None and feed.alarm.cause not in feed.evidence:
        exact = math.isinf(feed.alarm.evidence)
        seen = "exact" if exact else f"evidence 10^{feed.alarm.evidence:.1f}"
        parts.append((feed.alarm.cause, seen, "bad"))
    parts += [(name, f"not tested: {why}", "muted") for name, why in feed.untested.items()]
    return parts


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(42), duration(600), duration(7300), duration(200_000)
        ('42 s', '10 min', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{round(whole / 60)} min"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def spark(values: tuple[float, ...], width: int) -> str:
    """The last values as a line of bars, between their least and largest.

    Examples:
        >>> spark((1.0, 2.0, 3.0), 10)
        '▁▅█'
    """
    shown = [value for value in values if math.isfinite(value)][-max(width, 1) :]
    if not shown:
        return ""
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in shown)
