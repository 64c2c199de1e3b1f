"""The model of a server for the training run that owns it: it knows the token.

    GET  /engine/weights   the digest of its weights, and all that affects the bits of its samples
    POST /engine/weights   a safetensors file; X-Weights names it, X-Digest is its SHA-256
    POST /engine/sample    {"weights", "requests"}; a line of JSON for each completion, as it
                           finishes, and {"done": count} at the end

New weights are loaded as a whole or not at all: a file that does not have its digest is refused
(422). A request for completions with other weights than the engine has is refused (409). The client
(``steps.generation.remote``) believes none of it, and probes each update.
"""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from steps.generation.engine import Request, StaleWeightsError, require_weights
from steps.generation.remote.own_engine import bears_on_bits
from steps.generation.slots import SlotEngine
from steps.serving.served_answers import Tell, Turns


class _Asked(BaseModel):
    weights: str
    requests: list[Request]


def engine_app(engine: SlotEngine, token: str, turns: Turns) -> Mount:
    """The routes of an engine, for those who know the token.

    Args:
        turns: those of the engine's model.
    """
    if not token:
        raise ValueError("the engine's token must not be empty")
    own, expected = _Owned(engine, turns), f"Bearer {token}".encode()
    routes = [
        Route("/weights", own.describe),
        Route("/weights", own.take_weights, methods=["POST"]),
        Route("/sample", own.sample, methods=["POST"]),
    ]
    app = Starlette(routes=routes)

    async def for_owner(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        refusal = PlainTextResponse("the token is another one", 401)
        is_owner = hmac.compare_digest(given, expected)
        await (app if is_owner else refusal)(scope, receive, send)

    return Mount("/engine", for_owner)


@dataclass(frozen=True)
class _Owned:
    engine: SlotEngine
    turns: Turns

    async def describe(self, request: HttpRequest) -> Response:
        return JSONResponse({"weights": self.engine.weights, **bears_on_bits(self.engine.model)})

    async def take_weights(self, request: HttpRequest) -> Response:
        name, hashed = request.headers.get("x-weights", ""), hashlib.sha256()
        with TemporaryDirectory(prefix="temper-weights-") as folder:
            file = Path(folder, "weights.safetensors")
            with file.open("wb") as target:
                async for piece in request.stream():
                    hashed.update(piece)
                    target.write(piece)
            if not name or hashed.hexdigest() != request.headers.get("x-digest"):
                told = "the weights have arrived torn: the file is not its digest"
                raise HTTPException(422, told)
            try:
                await self.turns.do(lambda: self.engine.update_weights(load_file(file), name))
            except (SafetensorError, ValueError) as error:
                raise HTTPException(422, str(error)) from error
        return JSONResponse({"weights": name})

    async def sample(self, request: HttpRequest) -> Response:
        try:
            asked = _Asked.model_validate_json(await request.body())
            await self.turns.do(lambda: require_weights(self.engine, asked.weights))
        except ValidationError as error:
            raise HTTPException(400, f"this is no request: {error}") from error
        except StaleWeightsError as error:
            raise HTTPException(409, str(error)) from error
        return StreamingResponse(self._lines(asked), media_type="application/x-ndjson")

    async def _lines(self, asked: _Asked) -> AsyncIterator[bytes]:
        def draw(tell: Tell[Any]) -> None:
            try:
                drawn = cast(Any, self.engine.sample(asked.requests, asked.weights))
                with closing(drawn):
                    for finished in drawn:
                        tell(asdict(finished))
                tell({"done": len(asked.requests)})
            except (ValueError, ArithmeticError, RuntimeError) as error:
                tell({"error": f"{type(error).__name__}: {error}"})

        async with aclosing(self.turns.each(draw)) as told:
            async for line in told:
                yield json.dumps(line).encode() + b"\n"
