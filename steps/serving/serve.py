"""``temper serve``: a model behind an OpenAI-compatible HTTP interface.

vLLM's server runs if vLLM is installed, as a child of this process that ends with it. Else the
model answers in this process (:mod:`steps.serving.openai_app`). By default a server listens only on
this machine, because neither server authenticates its clients.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from pipeline import TemperError
from pipeline.base.extras import require_installed
from steps.models.config import Dtype
from steps.serving.named_models import ModelName, NamedModel, StoreUrl, opened, told_as_errors

LOOPBACK = "127.0.0.1"
_STANDARD_ERROR = 2
"""The server's log goes to standard error; standard output has the address and the example."""


class Server(StrEnum):
    """Which server runs."""

    vllm = "vllm"
    transformers = "transformers"


_NEEDED = {Server.vllm: ("vllm",), Server.transformers: ("starlette", "uvicorn", "pydantic")}
"""The modules that each server needs."""

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]


def serve(
    name: ModelName,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = LOOPBACK,
    port: Port = 8000,
    through: Annotated[
        Server | None, typer.Option(help="vLLM where it is installed, else transformers.")
    ] = None,
    store: StoreUrl = "store",
) -> None:
    """Serve a model to OpenAI clients, on this machine alone unless --host says otherwise.

    Prints the address and an example. Ctrl-C ends it.
    """
    through = through or (Server.vllm if find_spec("vllm") else Server.transformers)
    with opened_to_serve(name, store, host, port, through) as (model, taken):
        if through is Server.transformers:
            serve_here(model, taken, None, None, 1)
            return
        port = taken.getsockname()[1]
        taken.close()
        print(f"When vLLM has started: {_ready(model, host, port, through)}", flush=True)
        command = vllm_command(model.folder, _served(model), host, port)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(command, env=offline, stdout=_STANDARD_ERROR)
        try:
            raise typer.Exit(abs(server.wait()))
        finally:
            server.terminate()
            server.wait()


def serve_here(
    model: NamedModel, taken: socket.socket, token: str | None, dtype: Dtype | None, slots: int
) -> None:
    """Serve a model in this process; to a run, too, if there is a token by which it is known."""
    import uvicorn

    from steps.generation.slots import SlotEngine
    from steps.scoring.scored_by import model_digest
    from steps.serving.engine_app import engine_app
    from steps.serving.openai_app import app_of
    from steps.serving.replies import Speaker
    from steps.serving.served_answers import Turns

    with told_as_errors():
        speaker, turns = Speaker(model.folder, dtype, alone=token is None), Turns()
    others = []
    if token is not None:
        drawing = SlotEngine(speaker.model, model_digest(model.folder), slots)
        others.append(engine_app(drawing, token, turns))
    host, port, *_ = taken.getsockname()
    own_names = [host, f"[{host}]", LOOPBACK, "localhost", "[::1]"]
    hosts = own_names if ip_address(host).is_loopback else ["*"]
    app = app_of(speaker, _served(model), hosts, turns, others)
    # what uvicorn itself would log as an error are the answers that the end of the server cuts off
    settings = uvicorn.Config(
        app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=3
    )
    print(_ready(model, host, port, Server.transformers), flush=True)
    uvicorn.Server(settings).run(sockets=[taken])


def vllm_command(folder: Path, served: str, host: str, port: int) -> Sequence[str]:
    """The command line of vLLM's server for a model that clients call ``served``."""
    start = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder.absolute()))
    return *start, "--served-model-name", served, "--host", host, "--port", str(port)


def _served(model: NamedModel) -> str:
    """The model's name for clients."""
    return model.name if model.committed is not None else model.folder.resolve().name or "model"


def _ready(model: NamedModel, host: str, port: int, through: Server) -> str:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": _served(model), "messages": question, "max_tokens": 64}
    return (
        f"{model.name} at {url}, through {through}; Ctrl-C ends it. Try:\n"
        f"curl {shlex.quote(f'{url}/chat/completions')} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


@contextmanager
def opened_to_serve(
    name: str, store: str, host: str, port: int, through: Server
) -> Iterator[tuple[NamedModel, socket.socket]]:
    """The model, and a socket that has the address: with a port that another server has, this one
    would seem to be ready when the other is. SIGTERM and Ctrl-C end the block as exceptions, so
    what it has started ends too."""
    require_installed(_NEEDED[through], f"the server of {through}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        taken = socket.create_server((host, port), family=family)
    except OSError as error:
        told = f"cannot listen on {host}:{port} ({error.strerror or error})"
        raise TemperError(f"{told}; choose another --host or --port") from error
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with taken, opened(name, store) as model:
            yield model, taken
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
