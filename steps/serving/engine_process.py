"""``temper engine``: an engine of our own in a process of its own, for runs on this machine.

A run that is told its address hands its weights over and has completions drawn there. The process
listens on this machine alone, and answers nobody without its token.
"""

import os
import secrets
import signal
from typing import Annotated

import typer

from pipeline import TemperError
from steps.models.config import Dtype
from steps.serving.named_models import ModelName, StoreUrl, opened, told_as_errors


def engine(
    name: ModelName,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8471,
    dtype: Annotated[Dtype, typer.Option(help="That of the runs that use it.")] = Dtype.float32,
    slots: Annotated[int, typer.Option(min=1, help="Completions written side by side.")] = 64,
    store: StoreUrl = "store",
) -> None:
    """Draw completions for runs on this machine, with the weights that they hand over.

    Prints the address and the token, which runs take from TEMPER_ENGINE_TOKEN. Ctrl-C ends it.
    """
    with opened(name, store) as model:
        model.require_whole()
        from steps.generation.remote.connecting import TOKEN  # torch is slow to import
        from steps.generation.remote.engine_server import EngineServer
        from steps.generation.slots import SlotEngine
        from steps.models.folders import load_model
        from steps.scoring.scored_by import model_digest

        given = os.environ.get(TOKEN)
        token = given or secrets.token_hex()
        with told_as_errors():
            loaded = load_model(model.folder, dtype)
        drawing = SlotEngine(loaded, model_digest(model.folder), slots)
    try:
        server = EngineServer(drawing, token, port)
    except OSError as error:
        raise TemperError(
            f"cannot listen on port {port} ({error.strerror or error}); choose another --port"
        ) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        if not given:
            print(f"export {TOKEN}={token}")
        print(
            f"an engine with the weights of {name} at {server.address}; Ctrl-C ends it", flush=True
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
