"""OpenAI's HTTP interface for one model: chat completions, completions, and the list of models.

Every refusal is OpenAI's object `{"error": …}` with its status, so official clients raise their own
exceptions.
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from steps.serving.openai_answers import Answers, Piece
from steps.serving.openai_requests import Asked, ChatAsked, CompletionAsked
from steps.serving.replies import Speaker

LARGEST_BODY = 2**23
"""In bytes. A request with more cannot fit into a model's positions."""

AnyAsked = TypeVar("AnyAsked", bound=Asked)
ToChoice = Callable[[str, bool], dict[str, Any]]
"""The text of a choice in an answer; of a piece of it, if the second argument is true."""


def app_of(speaker: Speaker, served: str) -> Starlette:
    """The interface of a model that clients call ``served``."""
    own = _Interface(Answers(speaker), served)
    routes = [
        Route("/health", own.health),
        Route("/v1/models", own.models),
        Route("/v1/models/{name:path}", own.model),
        Route("/v1/chat/completions", own.chat, methods=["POST"]),
        Route("/v1/completions", own.complete, methods=["POST"]),
    ]
    handlers: Mapping[Any, Any] = {
        HTTPException: _refused,
        ClientDisconnect: _unheard,
        Exception: _failed,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Refused(HTTPException):
    """Answered with a status and OpenAI's object."""

    def __init__(self, status: int, told: str, param: str | None = None, code: str = "") -> None:
        super().__init__(status, told)
        self.param, self.code = param, code


@dataclass(frozen=True)
class _Interface:
    answers: Answers
    served: str

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        self._require_served(request.path_params["name"])
        return JSONResponse(self._described())

    async def chat(self, request: Request) -> Response:
        asked = await _asked(request, ChatAsked)
        self._require_served(asked.model)
        speaker = self.answers.speaker
        if not speaker.has_template:
            told = "the model has no chat template; it continues texts: POST /v1/completions"
            raise _Refused(400, told)
        messages = [turn.message() for turn in asked.messages]
        prompts = await self._read(lambda: [speaker.prompt_of(messages)], "messages")
        return await self._answer(request, asked, prompts, _Form("chat.completion", _message))

    async def complete(self, request: Request) -> Response:
        asked = await _asked(request, CompletionAsked)
        self._require_served(asked.model)
        tokens_of = self.answers.speaker.tokens_of
        prompts = await self._read(lambda: [tokens_of(text) for text in asked.prompts], "prompt")
        return await self._answer(request, asked, prompts, _Form("text_completion", _text))

    def _described(self) -> dict[str, Any]:
        return {"id": self.served, "object": "model", "created": 0, "owned_by": "temper"}

    def _require_served(self, name: str) -> None:
        if name != self.served:
            told = f"there is no model {name!r}; this server has {self.served!r}"
            raise _Refused(404, told, "model", "model_not_found")

    async def _read(self, prompts: Callable[[], list[list[int]]], param: str) -> list[list[int]]:
        try:
            return await self.answers.read(prompts)
        except ValueError as error:
            raise _Refused(400, str(error), param) from error

    async def _answer(
        self, request: Request, asked: Asked, prompts: list[list[int]], form: "_Form"
    ) -> Response:
        head = {
            "id": f"{'chatcmpl' if form.name.startswith('chat') else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.served,
        }
        pieces = self.answers.write(prompts, asked)
        read = sum(map(len, prompts))
        if asked.stream:
            counted = bool((asked.stream_options or {}).get("include_usage"))
            events = _events(pieces, head, form, read, counted)
            return StreamingResponse(events, media_type="text/event-stream")
        texts: dict[int, str] = {}
        ends: list[Piece] = []
        async with aclosing(pieces):
            async for piece in pieces:
                texts[piece.choice] = texts.get(piece.choice, "") + piece.text
                ends += [piece] if piece.finish else []
                if await request.is_disconnected():
                    raise ClientDisconnect
        choices = [form.choice(end, texts[end.choice], False) for end in ends]
        usage = _usage(read, sum(end.tokens for end in ends))
        return JSONResponse({**head, "object": form.name, "choices": choices, "usage": usage})


@dataclass(frozen=True)
class _Form:
    """How answers of a path look."""

    name: str
    content: ToChoice

    def choice(self, piece: Piece, text: str, part: bool) -> dict[str, Any]:
        rest = {"index": piece.choice, "logprobs": None, "finish_reason": piece.finish}
        return {**self.content(text, part), **rest}

    @property
    def chunk(self) -> str:
        return f"{self.name}.chunk" if self.name.startswith("chat") else self.name


def _message(text: str, part: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"delta": message} if part else {"message": {**message, "refusal": None}}


def _text(text: str, part: bool) -> dict[str, Any]:
    return {"text": text}


async def _events(
    pieces: AsyncGenerator[Piece], head: dict[str, Any], form: _Form, read: int, counted: bool
) -> AsyncIterator[str]:
    """An answer as server-sent events; its usage is the last one, if it is asked for."""
    head = {**head, "object": form.chunk}
    written = 0
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                written += piece.tokens
                yield _event({**head, "choices": [form.choice(piece, piece.text, True)]})
    except Exception as error:
        yield _event(_error(f"the answer failed: {error}", "server_error"))
        raise
    if counted:
        yield _event({**head, "choices": [], "usage": _usage(read, written)})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _usage(read: int, written: int) -> dict[str, int]:
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


async def _asked(request: Request, kind: type[AnyAsked]) -> AnyAsked:
    """The request in a body, checked."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise _Refused(413, f"the request has more than {LARGEST_BODY} bytes")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        found = max(error.errors(include_url=False), key=lambda fault: len(fault["loc"]))
        param = ".".join(str(name) for name in found["loc"] if _is_of_request(name)) or None
        told = found["msg"].removeprefix("Value error, ")
        raise _Refused(400, f"{param}: {told}" if param else told, param) from None


def _is_of_request(name: int | str) -> bool:
    """Whether a part of a fault's place is in the request, and no type of ours."""
    return isinstance(name, int) or (name.isidentifier() and name != "str")


async def _refused(request: Request, error: HTTPException) -> Response:
    told = error.detail
    if error.status_code in (404, 405) and not isinstance(error, _Refused):
        told = f"{told}: {request.method} {request.url.path}; see GET /v1/models, POST "
        told += "/v1/chat/completions, POST /v1/completions"
    content = _error(told, "invalid_request_error", error)
    return JSONResponse(content, error.status_code, error.headers)


async def _unheard(request: Request, error: Exception) -> Response:
    """Nobody is left to read it."""
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(_error(f"{type(error).__name__}: {error}", "server_error"), 500)


def _error(told: str, kind: str, error: HTTPException | None = None) -> dict[str, Any]:
    param, code = getattr(error, "param", None), getattr(error, "code", "") or None
    return {"error": {"message": told, "type": kind, "param": param, "code": code}}
