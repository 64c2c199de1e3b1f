"""``temper engine``: the server of ``temper serve``, for a training run on this machine.

A run that is told its address hands its weights over and has completions drawn there. The process
listens on this machine alone, and takes weights from nobody without its token.
"""

import os
import secrets
from typing import Annotated

import typer

from steps.models.config import Dtype
from steps.serving.named_models import ModelName, StoreUrl
from steps.serving.serve import LOOPBACK, Port, Server, opened_to_serve, serve_here


def engine(
    name: ModelName,
    port: Port = 8471,
    dtype: Annotated[Dtype, typer.Option(help="That of the runs that use it.")] = Dtype.float32,
    slots: Annotated[int, typer.Option(min=1, help="Completions written side by side.")] = 64,
    store: StoreUrl = "store",
) -> None:
    """Draw completions for runs on this machine, with the weights that they hand over.

    Prints the address and the token, which runs take from TEMPER_ENGINE_TOKEN. OpenAI clients are
    answered, too, with the weights of the moment. Ctrl-C ends it.
    """
    from steps.generation.remote.own_engine import TOKEN  # torch is slow to import

    with opened_to_serve(name, store, LOOPBACK, port, Server.transformers) as (model, taken):
        if not (token := os.environ.get(TOKEN)):
            token = secrets.token_hex()
            print(f"export {TOKEN}={token}")
        serve_here(model, taken, token, dtype, slots)
