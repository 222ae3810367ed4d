"""What is to be seen of a watched run, and a page on this machine that shows it."""

from __future__ import annotations

import errno
import hmac
import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from askgauss import __version__
from askgauss._text import one_line
from askgauss.exceptions import AskGaussError, FileFormatError, InvalidArgumentError
from askgauss.files import codec
from askgauss.monitor.feed import FEED_NAME, Feed, read_feed

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
    no_claim = f"none given; epsilons at delta {feed.delta:g}"
    lines.append(("claim", no_claim if feed.claim is None else str(feed.claim)))
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


_LOOPBACK = "127.0.0.1"
_STATIC = {
    "/": ("watch.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
}
# What a browser says of a request of this page, and of an address that somebody typed.
_OWN_SITES = ("same-origin", "none")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class WatchServer(ThreadingHTTPServer):
    """Serves the page of one run, on this machine only and to those who know its address.

    The address holds a random token: other users of the machine do not see a run whose feed is its
    owner's alone.

    Args:
        follower: The run.
        port: Where; 0 for any port that is free.

    Raises:
        InvalidArgumentError: Another program has the port.
    """

    daemon_threads = True
    # Otherwise a second server could share the port of a first one on some systems.
    allow_reuse_address = False

    def __init__(self, follower: Follower, port: int) -> None:
        self._follower = follower
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        try:
            super().__init__((_LOOPBACK, port), _Page)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise InvalidArgumentError(
                f"Expected --port to be free, {port} is taken or not allowed. Choose another one, "
                "or 0 for any."
            ) from error

    @property
    def address(self) -> str:
        """Where the page is, token and all."""
        return f"http://{_LOOPBACK}:{self.server_address[1]}/{self._token}/"

    def within(self, path: str) -> str | None:
        """What is asked for behind the token; None where it is not that of this server."""
        token, slash, asked = path.removeprefix("/").partition("/")
        right = hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
        return f"{slash}{asked}" if right and slash else None

    def data(self) -> bytes:
        """What the page shows, as JSON."""
        with self._lock:
            try:
                content = codec.to_plain(self._follower.look())
            except (AskGaussError, OSError) as error:
                content = {"headline": str(error), "tone": "bad", "over": False}
        return json.dumps(_printable(content), allow_nan=False).encode()


class _Page(BaseHTTPRequestHandler):
    server: WatchServer
    server_version = "askgauss"
    sys_version = ""
    # A client that says nothing must not hold a thread for ever.
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        # A page of another origin that points its name here must not read the run.
        host, asked = self.headers.get("Host") or "", self.server.within(self.path)
        if host.rsplit(":", 1)[0] not in (_LOOPBACK, "localhost"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"", "text/plain", body)
        elif self._foreign(host) or asked is None:
            self._send(HTTPStatus.FORBIDDEN, b"", "text/plain", body)
        elif asked == "/data.json":
            self._send(HTTPStatus.OK, self.server.data(), "application/json", body)
        elif asked in _STATIC:
            name, kind = _STATIC[asked]
            content = resources.files("askgauss.cli").joinpath("page", name).read_bytes()
            self._send(HTTPStatus.OK, content, kind, body)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"", "text/plain", body)

    def _foreign(self, host: str) -> bool:
        """Whether a page of another origin asks, by what its browser says of it."""
        origins = self.headers.get_all("Origin", [])
        sites = self.headers.get_all("Sec-Fetch-Site", [])
        return any(origin != f"http://{host}" for origin in origins) or any(
            site not in _OWN_SITES for site in sites
        )

    def _send(self, status: HTTPStatus, content: bytes, kind: str, body: bool) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads who looked when."""


def _printable(value: Any) -> Any:
    """The same with every text as one printable line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def serve_forever(follower: Follower, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; say where once it is up."""
    with WatchServer(follower, port) as server:
        ready(server.address)
        server.serve_forever(poll_interval=0.2)
