"""One page on this machine that shows a run while it trains; nothing is loaded from elsewhere."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from askgauss.cli.terminal import one_line
from askgauss.cli.watch_view import Follower
from askgauss.exceptions import AskGaussError, InvalidArgumentError
from askgauss.files import codec

__all__ = ["WatchServer", "serve_forever"]

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
