"""Serves pages on a loopback address, read-only, to the user who started the server.

There is one page of all runs, and one page for each run. The server looks up a path among the names
of runs, never in a file system, and answers only GET and HEAD. A request must name this machine in
its ``Host`` header, so that a foreign page cannot reach the server under its own domain name (DNS
rebinding). Its path must hold a secret, so that other users of the machine cannot read the pages.
The pages' policy allows requests to this server only.
"""

import hashlib
import hmac
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from pipeline.base.errors import TemperError
from pipeline.base.redaction import shown
from pipeline.base.text import clean

ADDRESS = "127.0.0.1"
FRESH_SECONDS = 1.0
"""For so long the server answers with the same page before it makes the page anew."""
_PATH = re.compile(r"/([\w-]+)/([\w+-]*)", re.ASCII)
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

MakePage = Callable[[str], str | None]
"""Makes the page of a run, by its name, or of several, by their names with ``+`` between; the empty
name means the page of all runs. ``None`` if there is no such run."""


class Server(ThreadingHTTPServer):
    """Serves pages until it is shut down.

    Args:
        port: 0 for any free port.

    Raises:
        OSError: the port is taken or not permitted.
    """

    daemon_threads = True

    def __init__(self, make_page: MakePage, port: int = 0):
        self.secret = secrets.token_urlsafe(16)
        self._make_page = make_page
        self._made: dict[str, tuple[float, str | None]] = {}
        self._making = threading.Lock()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a reader that disconnects before the answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def is_own(self, host: str) -> bool:
        """Whether a request's ``Host`` header names this server."""
        return host in (f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    def page(self, path: str) -> str | None:
        """The page at a path; ``None`` if there is none. The server makes one page at a time."""
        asked = _PATH.fullmatch(path)
        if asked is None or not hmac.compare_digest(asked[1], self.secret):
            return None
        with self._making:
            made_at, page = self._made.get(asked[2], (0.0, None))
            if page is None or time.monotonic() - made_at > FRESH_SECONDS:
                page = self._make_page(asked[2])
                self._made = {asked[2]: (time.monotonic(), page)}
            return page


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "temper", ""
    timeout = 60
    """Seconds after which the server closes an idle connection."""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        server = cast(Server, self.server)
        if len(hosts) != 1 or not server.is_own(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN, "this server is for the machine that it runs on")
            return
        try:
            page = server.page(self.path)
        except (TemperError, OSError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, clean(shown(str(error))))
            return
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self._answer(HTTPStatus.OK, page)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode(errors="replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        for name, value in _HEADERS.items():
            is_error = status >= HTTPStatus.BAD_REQUEST and name == "Content-Type"
            self.send_header(name, "text/plain; charset=utf-8" if is_error else value)
        self.send_header("ETag", tag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the path holds the secret."""
