"""A server of this machine that answers as a test wants, in place of other people's servers."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Asked(BaseHTTPRequestHandler):
    """A request, which can be answered."""

    def say(self, body: Any, status: int = 200, missing: int = 0, **headers: str) -> None:
        """Answers with JSON, or with bytes; `missing` bytes of it never come."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent) + missing))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(sent)

    def content(self) -> Any:
        """The JSON that came with it; None if nothing did."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(body) if body else None

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def answering(answer: Callable[[Asked, Any], None]) -> Iterator[str]:
    """The address of a server that lets `answer` answer each request, with its content."""

    class Handler(Asked):
        def do_POST(self) -> None:
            answer(self, self.content())

        do_GET = do_POST

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """The port at which an ASGI app answers in a thread of this process."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield taken.getsockname()[1]
        finally:
            server.force_exit = server.should_exit = True
            thread.join()
