"""Serves our own engine over HTTP to clients of this machine that know its token.

    GET  /engine     the digest of its weights, and everything that affects the bits of its samples
    POST /weights    a safetensors file; X-Weights names the weights, X-Digest is the file's SHA-256
    POST /sample     {"weights", "requests"}; a line of JSON for each completion, as it finishes,
                     and {"done": count} at the end

One request uses the model at a time. New weights are loaded as a whole or not at all: a file that
does not have its digest is refused (422). A request for completions with other weights than the
engine has is refused (409).
"""

import contextlib
import hashlib
import hmac
import json
import tempfile
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from steps.generation.engine import StaleWeightsError, require_weights
from steps.generation.remote.as_json import request_from_json
from steps.generation.slots import SlotEngine

LOOPBACK = "127.0.0.1"
_PIECE = 2**20
_LARGEST_REQUEST = 2**30


def bears_on_bits(model: PreTrainedModel) -> dict[str, Any]:
    """Everything except the weights that affects the bits of the samples of a model in this
    process."""
    device = model.device
    return {
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


class EngineServer(ThreadingHTTPServer):
    """Serves one engine on this machine; `serve_forever` and `shutdown` are those of the base
    class.

    Args:
        engine: the server alone uses its model from now on.
        token: what clients must send.
        port: 0 chooses a free one; `address` has it.
    """

    daemon_threads = True

    def __init__(self, engine: SlotEngine, token: str, port: int = 0) -> None:
        if not token:
            raise ValueError("the engine's token must not be empty")
        self.engine, self.token = engine, token
        self.busy = threading.Lock()
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        """Where it is reached."""
        return f"http://{LOOPBACK}:{self.server_port}"


class _Refused(Exception):
    """What is answered to a request that cannot be met."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600  # seconds without a byte from a client

    @property
    def _own(self) -> EngineServer:
        return cast(EngineServer, self.server)

    def do_GET(self) -> None:
        self._answer({"/engine": self._describe})

    def do_POST(self) -> None:
        self._answer({"/weights": self._take_weights, "/sample": self._sample})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged for each request."""

    def _answer(self, known: dict[str, Any]) -> None:
        self.close_connection = True
        try:
            self._require_token()
            if self.path not in known:
                raise _Refused(404, "there is no such path")
            known[self.path]()
        except _Refused as refused:
            self._say(refused.status, str(refused))
        except StaleWeightsError as error:
            self._say(409, str(error))
        except ConnectionError:
            return  # nobody is left to be told

    def _require_token(self) -> None:
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._own.token}".encode()):
            raise _Refused(401, "the token is another one")

    def _describe(self) -> None:
        engine = self._own.engine
        self._say(200, json.dumps({"weights": engine.weights, **bears_on_bits(engine.model)}))

    def _take_weights(self) -> None:
        name, digest = self.headers.get("X-Weights", ""), self.headers.get("X-Digest", "")
        with tempfile.TemporaryDirectory(prefix="temper-weights-") as folder:
            file = Path(folder, "weights.safetensors")
            if not name or self._receive(file) != digest:
                raise _Refused(422, "the weights have arrived torn: the file is not its digest")
            try:
                with self._own.busy:
                    self._own.engine.update_weights(load_file(file), name)
            except (SafetensorError, ValueError) as error:
                raise _Refused(422, str(error)) from error
        self._say(200, json.dumps({"weights": name}))

    def _sample(self) -> None:
        if not 0 < self._length() <= _LARGEST_REQUEST:
            raise _Refused(400, "the request is empty or too large")
        try:
            asked = json.loads(self.rfile.read(self._length()))
            requests = [request_from_json(value) for value in asked["requests"]]
            weights = str(asked["weights"])
        except (ValueError, TypeError, KeyError) as error:
            raise _Refused(400, f"this is no request: {error}") from error
        with self._own.busy:
            require_weights(self._own.engine, weights)
            self._begin_lines()
            with contextlib.closing(cast(Any, self._own.engine.sample(requests, weights))) as drawn:
                try:
                    for finished in drawn:
                        self._line(asdict(finished))
                    self._line({"done": len(requests)})
                except (ValueError, ArithmeticError, RuntimeError) as error:
                    self._line({"error": f"{type(error).__name__}: {error}"})
        self.wfile.write(b"0\r\n\r\n")

    def _receive(self, file: Path) -> str:
        """Writes the body to a file; its digest."""
        digest, missing = hashlib.sha256(), self._length()
        with file.open("wb") as target:
            while missing and (piece := self.rfile.read(min(_PIECE, missing))):
                digest.update(piece)
                target.write(piece)
                missing -= len(piece)
        return digest.hexdigest() if not missing else "torn"

    def _length(self) -> int:
        given = self.headers.get("Content-Length", "")
        return int(given) if given.isascii() and given.isdigit() else 0

    def _say(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin_lines(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _line(self, value: Any) -> None:
        line = json.dumps(value).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()
