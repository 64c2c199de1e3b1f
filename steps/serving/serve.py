"""``temper serve``: a model behind an OpenAI-compatible HTTP interface.

The server is vLLM's if vLLM is installed, else that of transformers. It runs as a child of this
process and ends with it. By default it listens only on this machine, because neither server
authenticates its clients.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pipeline import TemperError
from pipeline.store.stored import is_file
from steps.serving.named_models import ModelName, NamedModel, StoreUrl, opened

LOOPBACK = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.5
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Requests to this machine go to no proxy, whatever the environment says."""
_STANDARD_ERROR = 2
"""The server's log goes to standard error; standard output has the address and the example."""


class Server(StrEnum):
    """Which server runs."""

    vllm = "vllm"
    transformers = "transformers"


_MODULES = {
    Server.vllm: "vllm.entrypoints.cli.main",
    Server.transformers: "transformers.cli.transformers",
}
_NEEDED = {
    Server.vllm: ("vllm",),
    Server.transformers: ("transformers", "fastapi", "uvicorn", "openai"),
}
"""The modules that each server needs."""


def serve(
    name: ModelName,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    through: Annotated[
        Server | None, typer.Option(help="vLLM where it is installed, else transformers.")
    ] = None,
    store: StoreUrl = "store",
) -> None:
    """Serve a model to OpenAI clients, on this machine alone unless --host says otherwise.

    Prints where, and an example, when the server is ready. Ctrl-C ends it.
    """
    through = through or _installed()
    _require_installed(through)
    _require_free(host, port)
    with opened(name, store) as model, TemporaryDirectory(prefix="temper-serve-") as place:
        model.require_whole()
        served = model_id(model)
        link = Path(place, served)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(model.folder.absolute())
        with _running(server_command(through, served, host, port), place) as server:
            _wait_until_ready(server, host, port)
            url = f"http://{host}:{port}/v1"
            print(
                f"{name} at {url}, through {through}; Ctrl-C ends it. Try:\n{example(url, served)}"
            )
            sys.stdout.flush()
            raise typer.Exit(abs(server.wait()))


def server_command(through: Server, served: str, host: str, port: int) -> Sequence[str]:
    """The command line of a server for this model only, to be run in the folder that holds it."""
    module = _MODULES[through]
    return sys.executable, "-m", module, "serve", served, "--host", host, "--port", str(port)


def model_id(model: NamedModel) -> str:
    """The model's name for clients. Both servers use the model's path as its name. So the path must
    be short, and must contain nothing that they interpret as a revision or a file."""
    name = model.name if model.is_artifact else model.folder.resolve().name
    plain = re.sub(r"[^\w./-]", "-", name)
    return plain if is_file(plain) else "model"


def example(url: str, served: str) -> str:
    """A complete example request."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": served, "messages": question, "max_tokens": 64}
    return (
        f"curl {shlex.quote(f'{url}/chat/completions')} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


def _installed() -> Server:
    return Server.vllm if not _missing(Server.vllm) else Server.transformers


def _missing(server: Server) -> list[str]:
    return [module for module in _NEEDED[server] if find_spec(module) is None]


def _require_installed(server: Server) -> None:
    if missing := _missing(server):
        extra = "vllm" if server is Server.vllm else "transformers[serving]"
        raise TemperError(
            f"the server of {server} needs {', '.join(missing)}: pip install {shlex.quote(extra)}"
        )


def _require_free(host: str, port: int) -> None:
    """Require a free port. Otherwise another server's health check would count as this one's."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise TemperError(
                f"cannot listen on {host}:{port} ({error.strerror or error}); choose another --port"
            ) from error


@contextmanager
def _running(command: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server, and end it at the end of the block, also after SIGTERM."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(command, cwd=folder, env=offline, stdout=_STANDARD_ERROR)
    try:
        yield server
    except KeyboardInterrupt:  # the server has received it too
        raise typer.Exit(130) from None
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
        signal.signal(signal.SIGTERM, before)


def _wait_until_ready(server: subprocess.Popen[bytes], host: str, port: int) -> None:
    """Wait until the server's health check succeeds.

    Raises:
        TemperError: the server ended instead; its log has the reason.
    """
    while server.poll() is None:
        try:
            with _DIRECTLY.open(f"http://{host}:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise TemperError(f"the server ended with status {server.returncode}; its reason is above")
