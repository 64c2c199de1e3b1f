"""``temper serve``: a model behind an OpenAI-compatible HTTP interface.

vLLM's server runs if vLLM is installed, as a child of this process that ends with it. Else the
model answers in this process, through transformers (:mod:`steps.serving.openai_app`). By default a
server listens only on this machine, because neither server authenticates its clients.
"""

import asyncio
import errno
import json
import logging
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
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pipeline import TemperError
from pipeline.extras import how_to_install
from pipeline.store.stored import is_file
from steps.serving.named_models import ModelName, NamedModel, StoreUrl, opened, told_as_errors

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


_NEEDED = {Server.vllm: ("vllm",), Server.transformers: ("starlette", "uvicorn", "pydantic")}
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
    through = through or (Server.transformers if _missing(Server.vllm) else Server.vllm)
    _require_installed(through)
    with _listening(host, port) as taken, opened(name, store) as model, _ended_by_sigterm():
        model.require_whole()
        served = model_id(model)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        ready = (
            f"{name} at {url}/v1, through {through}; Ctrl-C ends it. Try:\n"
            f"{example(f'{url}/v1', served)}"
        )
        if through is Server.vllm:
            taken.close()
            _serve_through_vllm(model, served, host, port, ready)
        else:
            _serve_here(model, served, taken, ready)


def _serve_here(model: NamedModel, served: str, taken: socket.socket, ready: str) -> None:
    import uvicorn

    from steps.serving.openai_app import app_of  # torch is slow to import
    from steps.serving.replies import Speaker

    with told_as_errors():
        speaker = Speaker(model.folder)
    app = app_of(speaker, served, _names_of(taken))
    settings = uvicorn.Config(
        app, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=3
    )
    server = uvicorn.Server(settings)
    logging.getLogger("uvicorn.error").addFilter(_is_no_end)
    taken.listen()  # from here on clients wait until they are answered
    print(ready, flush=True)
    try:
        server.run(sockets=[taken])
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _names_of(taken: socket.socket) -> list[str]:
    """The names of this machine if only it reaches the address; none for other addresses."""
    address = taken.getsockname()[0]
    if not ip_address(address).is_loopback:
        return []
    return list(dict.fromkeys([address, LOOPBACK, "localhost", "::1"]))


def _is_no_end(record: logging.LogRecord) -> bool:
    """Whether a log's record is no traceback of an answer that the end of the server cuts off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _serve_through_vllm(model: NamedModel, served: str, host: str, port: int, ready: str) -> None:
    with TemporaryDirectory(prefix="temper-serve-") as place:
        link = Path(place, served)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(model.folder.absolute())
        with _running(vllm_command(served, host, port), place) as server:
            _wait_until_ready(server, host, port)
            print(ready, flush=True)
            raise typer.Exit(abs(server.wait()))


def vllm_command(served: str, host: str, port: int) -> Sequence[str]:
    """The command line of a server for this model only, to be run in the folder that holds it."""
    module = "vllm.entrypoints.cli.main"
    return sys.executable, "-m", module, "serve", served, "--host", host, "--port", str(port)


def model_id(model: NamedModel) -> str:
    """The model's name for clients. vLLM uses the model's path as its name. So the path must be
    short, and must contain nothing that it interprets as a revision or a file."""
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


def _missing(server: Server) -> list[str]:
    return [module for module in _NEEDED[server] if find_spec(module) is None]


def _require_installed(server: Server) -> None:
    if missing := _missing(server):
        raise TemperError(
            f"the server of {server} needs {', '.join(missing)}: {how_to_install(missing[0])}"
        )


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has the address. With a port that another server has, this one would seem to
    be ready when the other is."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, port))
        except OSError as error:
            is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            raise TemperError(
                f"cannot listen on {host}:{port} ({error.strerror or error}); choose another "
                f"{'--host' if is_host else '--port'}"
            ) from error
        yield taken


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as an exception, so that what it has started ends too."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _running(command: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server, and end it at the end of the block."""
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
