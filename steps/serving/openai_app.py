"""OpenAI's HTTP interface for one model: chat completions, completions, and the list of models.

Refusals are OpenAI's object `{"error": …}` with its status, so official clients raise their own
exceptions. ``engine_app`` may lie beside it: it is for runs that own the model.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from steps.serving.openai_requests import Asked, ChatAsked, CompletionAsked
from steps.serving.replies import Speaker, TooLong
from steps.serving.served_answers import Piece, Token, Turns, joined, write_answers

_LOG = logging.getLogger(__name__)

AnyAsked = TypeVar("AnyAsked", bound=Asked)


def app_of(
    speaker: Speaker,
    served: str,
    hosts: Collection[str] = ("*",),
    turns: Turns | None = None,
    others: Collection[BaseRoute] = (),
) -> Starlette:
    """The interface of a model that clients call ``served``.

    Args:
        hosts: the names by which clients may address this server: a page of a browser could
            reach it by a name of its own (DNS rebinding).
        turns: those of the model, if others use it, too.
        others: further routes.
    """
    own = _Interface(speaker, served, turns or Turns(), ThreadPoolExecutor(1, "reading"))
    routes = [
        Route("/v1/models", own.models),
        Route("/v1/models/{name:path}", own.model),
        Route("/v1/chat/completions", own.chat, methods=["POST"]),
        Route("/v1/completions", own.complete, methods=["POST"]),
        *others,
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    handlers: Any = {HTTPException: _refused, Exception: _failed}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


class _Refused(HTTPException):
    """Answered with a status and OpenAI's object."""

    def __init__(self, status: int, told: str, param: str | None = None, code: str = "") -> None:
        super().__init__(status, told)
        self.param, self.code = param, code


@dataclass(frozen=True)
class _Interface:
    speaker: Speaker
    served: str
    turns: Turns
    reading: ThreadPoolExecutor

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        self._require_served(request.path_params["name"])
        return JSONResponse(self._described())

    async def chat(self, request: Request) -> Response:
        asked = await self._asked(request, ChatAsked)
        if not self.speaker.has_template:
            told = "the model has no chat template; it continues texts: POST /v1/completions"
            raise _Refused(400, told)
        messages = [turn.message() for turn in asked.messages]
        prompts = await self._read(lambda: [self.speaker.prompt_of(messages)], asked, "messages")
        return await self._answer(request, asked, prompts)

    async def complete(self, request: Request) -> Response:
        asked = await self._asked(request, CompletionAsked)
        tokens_of = self.speaker.tokens_of
        prompts = await self._read(lambda: [*map(tokens_of, asked.prompts)], asked, "prompt")
        return await self._answer(request, asked, prompts)

    def _described(self) -> dict[str, Any]:
        return {"id": self.served, "object": "model", "created": 0, "owned_by": "temper"}

    def _require_served(self, name: str) -> None:
        if name != self.served:
            told = f"there is no model {name!r}; this server has {self.served!r}"
            raise _Refused(404, told, "model", "model_not_found")

    async def _asked(self, request: Request, kind: type[AnyAsked]) -> AnyAsked:
        """The request in a body, checked."""
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise _Refused(403, f"no pages of {origin} are answered")
        try:
            asked = kind.model_validate_json(await request.body())
        except ValidationError as error:
            raise _refusal_of(error) from None
        self._require_served(asked.model)
        return asked

    async def _read(
        self, prompts: Callable[[], list[list[int]]], asked: Asked, param: str
    ) -> list[list[int]]:
        """The tokens of prompts, each of which leaves room for an answer."""
        try:
            read = await asyncio.get_running_loop().run_in_executor(self.reading, prompts)
            for ids in read:
                self.speaker.room_after(ids, min(1, asked.most_tokens))
            return read
        except ValueError as error:
            code = "context_length_exceeded" if isinstance(error, TooLong) else ""
            raise _Refused(400, str(error), param, code) from error

    async def _answer(self, request: Request, asked: Asked, prompts: list[list[int]]) -> Response:
        is_chat = isinstance(asked, ChatAsked)
        named = "chat.completion" if is_chat else "text_completion"
        head: dict[str, Any] = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{named}.chunk" if is_chat and asked.stream else named,
            "created": int(time.time()),
            "model": self.served,
        }
        if is_chat and asked.return_token_ids:
            head["prompt_token_ids"] = prompts[0]
        pieces = self.turns.each(partial(write_answers, self.speaker, prompts, asked))
        if asked.stream:
            events = _events(pieces, head, asked, prompts)
            return StreamingResponse(events, media_type="text/event-stream")
        told: dict[int, list[Piece]] = {}
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    told.setdefault(piece.choice, []).append(piece)
                    if await request.is_disconnected():
                        return Response()
        except asyncio.CancelledError:
            raise _Refused(503, "the server ends before the answer does; ask again later") from None
        whole = [*map(joined, told.values())]
        choices = [_choice(answer, asked, prompts, True) for answer in whole]
        usage = _usage(prompts, sum(len(answer.ids) for answer in whole))
        return JSONResponse({**head, "choices": choices, "usage": usage})


def _choice(piece: Piece, asked: Asked, prompts: list[list[int]], first: bool) -> dict[str, Any]:
    """In OpenAI's form, a piece, which may be the first one of its answer, or all of it."""
    content: dict[str, Any] = {"text": piece.text}
    if is_chat := isinstance(asked, ChatAsked):
        role = {"role": "assistant"} if first else {}  # clients join the roles of all pieces
        message = {**role, "content": piece.text}
        content = {"delta": message} if asked.stream else {"message": {**message, "refusal": None}}
    form = _chat_logprobs if is_chat else completion_logprobs
    content["logprobs"] = None if asked.likeliest is None else form(piece, asked)
    if asked.return_token_ids:
        content["token_ids"] = piece.ids
        if first and not is_chat:  # as at vLLM, which says those of a chat beside its choices
            content["prompt_token_ids"] = prompts[piece.choice // (asked.n or 1)]
    return {**content, "index": piece.choice, "finish_reason": piece.finish}


def _name(token: Token, asked: Asked) -> str:
    return f"token_id:{token.id}" if asked.return_tokens_as_token_ids else token.name


def _chat_logprobs(piece: Piece, asked: Asked) -> dict[str, Any]:
    def told(token: Token) -> dict[str, Any]:
        raw = list(token.share)
        return {"token": _name(token, asked), "logprob": token.logp, "bytes": raw}

    content = [{**told(t), "top_logprobs": [*map(told, t.likeliest)]} for t in piece.tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(piece: Piece, asked: Asked) -> dict[str, Any]:
    """The log-probabilities of a completion's tokens. Of tokens with equal names among the
    likeliest, the likeliest counts."""
    ranked = [[token, *reversed(token.likeliest)] for token in piece.tokens]
    named = [{_name(t, asked): t.logp for t in group} for group in ranked]
    tops = [None if t.logp is None else top for t, top in zip(piece.tokens, named, strict=True)]
    return {
        "tokens": [_name(token, asked) for token in piece.tokens],
        "token_logprobs": [token.logp for token in piece.tokens],
        "top_logprobs": tops if asked.likeliest else None,
    }


async def _events(
    pieces: AsyncGenerator[Piece], head: dict[str, Any], asked: Asked, prompts: list[list[int]]
) -> AsyncIterator[str]:
    """An answer as server-sent events; its usage is the last one, if it is asked for."""
    counted = bool(asked.stream_options and asked.stream_options.get("include_usage"))
    head |= {"usage": None} if counted else {}
    written, begun = 0, set[int]()
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                written += len(piece.ids)
                part = _choice(piece, asked, prompts, piece.choice not in begun)
                begun.add(piece.choice)
                yield _event({**head, "choices": [part]})
    except Exception as error:
        _LOG.exception("an answer failed")
        yield _event(_error(f"the answer failed: {error}", "server_error"))
        return
    if counted:
        yield _event({**head, "choices": [], "usage": _usage(prompts, written)})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n"


def _usage(prompts: list[list[int]], written: int) -> dict[str, int]:
    read = sum(map(len, prompts))
    every = read + written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": every}


def _refusal_of(error: ValidationError) -> _Refused:
    """Of what a value might have been, the deepest fault says most; that it is no text, least."""
    faults = error.errors(include_url=False)
    found = max(faults, key=lambda fault: (len(fault["loc"]), fault["type"] != "string_type"))
    told, param = found["msg"].removeprefix("Value error, "), ".".join(map(str, found["loc"]))
    return _Refused(400, f"{param}: {told}" if param else told, param or None)


async def _refused(request: Request, error: HTTPException) -> Response:
    content = _error(error.detail, "invalid_request_error", error)
    return JSONResponse(content, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(_error(f"{type(error).__name__}: {error}", "server_error"), 500)


def _error(told: str, kind: str, error: HTTPException | None = None) -> dict[str, Any]:
    param, code = getattr(error, "param", None), getattr(error, "code", "") or None
    return {"error": {"message": told, "type": kind, "param": param, "code": code}}
