"""Sends one HTTP request to an engine, checks its answer, and reports a failure in one sentence.

An engine may be down, hang, end in the middle of a reply, or send something else. Each of these is
an `EngineError` that names the address and the remedy. Requests are not repeated here: the caller
keeps the completions that it has, and a run that goes on requests the rest.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests

from steps.generation.engine import Finish, Finished, Request, StaleWeightsError

_ROUNDING = 1e-5
"""By how much a log-probability may exceed zero."""
_STALE = 409
_UNSUITABLE = 422
_LONGEST_TOLD = 400
_PIECE = 2**16
"""The most bytes that are waited for; an engine of ours sends each line as a piece of its own."""


class EngineError(RuntimeError):
    """An engine in another process did not do what it was asked to do."""


@dataclass(frozen=True)
class Caller:
    """Sends requests to one address.

    address: for example ``http://127.0.0.1:8471``.
    token: the secret by which the engine knows its clients. It is sent, and never stored.
    patience: the most seconds between two pieces of a reply.
    needs_proxy: whether the environment's proxies are used; they never are for this machine.
    """

    address: str
    token: str | None = None
    patience: float = 600.0
    needs_proxy: bool = False

    def ask(self, method: str, path: str, **content: Any) -> Any:
        """The JSON value of the engine's reply; None for an empty reply.

        Args:
            content: the keyword arguments of `requests.request`.

        Raises:
            EngineError: there is no valid reply.
            StaleWeightsError: the engine has other weights.
            ValueError: the engine refuses the content.
        """
        with self._answering(method, path, content) as answer:
            body = answer.content
        try:
            return json.loads(body) if body.strip() else None
        except ValueError as error:
            raise self.fault(f"answers {path} with what is no JSON") from error

    def lines(self, path: str, content: Mapping[str, Any]) -> Iterator[Any]:
        """The JSON values of a reply with one per line, as they arrive. Raises as `ask`."""
        with self._answering("POST", path, {"json": content}, stream=True) as answer:
            for line in answer.iter_lines(_PIECE):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise self.fault("answers with a line that is no JSON") from error

    def fault(self, what: str) -> EngineError:
        """An error of this engine; the caller raises it."""
        return EngineError(
            f"the engine at {self.address} {what}; start it again, and then this run: finished "
            "completions are kept"
        )

    @contextmanager
    def _answering(
        self, method: str, path: str, content: Mapping[str, Any], stream: bool = False
    ) -> Iterator[requests.Response]:
        url = self.address.rstrip("/") + path
        with requests.Session() as session:
            session.trust_env = self.needs_proxy
            try:
                with session.request(
                    method,
                    url,
                    auth=self._sign,
                    timeout=self.patience,
                    stream=stream,
                    allow_redirects=False,  # the token is for this address
                    **content,
                ) as answer:
                    self._require_success(path, answer)
                    yield answer
            except requests.RequestException as error:
                raise self.fault(self._told(error)) from error

    def _told(self, error: requests.RequestException) -> str:
        said = str(error).lower()
        if isinstance(error, requests.Timeout) or "timed out" in said:
            return f"has said nothing for {self.patience:g} s"
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return "ended in the middle of an answer"
        if "refused" in said:
            return "is not there (nothing listens)"
        if isinstance(error, requests.exceptions.ConnectionError):
            return "has broken the connection"
        return f"cannot be asked ({error})"

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _require_success(self, path: str, answer: requests.Response) -> None:
        if answer.status_code == 200:
            return
        told = " ".join(answer.text.split())[:_LONGEST_TOLD]
        if answer.status_code == _STALE:
            raise StaleWeightsError(f"the engine at {self.address} refuses: {told}")
        if answer.status_code == _UNSUITABLE:
            raise ValueError(f"the engine at {self.address} refuses: {told}")
        if answer.status_code in (401, 403):
            raise EngineError(
                f"the engine at {self.address} does not know this token; set the one that it was "
                "started with"
                if answer.status_code == 401
                else f"the engine at {self.address} forbids {path}: {told}"
            )
        raise self.fault(f"answers {path} with status {answer.status_code}: {told}")


def require_answer(finished: Finished, request: Request) -> None:
    """Raise ValueError, which names the row, unless a completion can be an answer to `request`."""
    ids, logps = finished.ids, finished.logps
    where = f"row {finished.row!r}, completion {finished.k}"
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError(f"{where} has no tokens, or what is no token")
    if len(ids) != len(logps):
        raise ValueError(f"{where} has {len(logps)} logps for {len(ids)} tokens")
    if not all(math.isfinite(logp) and logp <= _ROUNDING for logp in logps):
        raise ValueError(f"{where} has a logp that is no log-probability")
    stops = [place for place, token in enumerate(ids) if token in request.stop_ids]
    stopped = bool(stops) and stops[0] == len(ids) - 1
    whole = len(ids) == request.max_new_tokens and not stops
    if not (stopped if finished.finish is Finish.stop else whole):
        raise ValueError(
            f"{where} says that it ended by {finished.finish}, and its {len(ids)} tokens say "
            "otherwise"
        )
