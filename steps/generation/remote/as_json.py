"""Reads requests and completions of other processes, which send them as dictionaries in JSON.

A completion must answer one of the requests, end as its finish reason says, and have a finite logp
for each token. Floats keep every bit.
"""

import math
from collections.abc import Mapping
from typing import Any

from steps.generation.engine import Finish, Finished, Request

_ROUNDING = 1e-5
"""By how much a log-probability may exceed zero."""


def request_from_json(value: Any) -> Request:
    """A request that was sent as a dictionary. Raises ValueError for any other content."""
    try:
        values = dict(value)
        for name in ("prompt_ids", "stop_ids", "seed"):
            values[name] = tuple(map(int, values[name]))
        return Request(**values)
    except (TypeError, KeyError) as error:
        raise ValueError(f"this is no request: {error}") from error


def finished_from_json(value: Any, asked: Mapping[tuple[str, int], Request]) -> Finished:
    """A completion that an engine has returned.

    Args:
        asked: the requests by row and number.

    Raises:
        ValueError: it is no valid answer to one of the requests.
    """
    try:
        finished = Finished(
            value["row"],
            value["k"],
            tuple(value["ids"]),
            tuple(map(float, value["logps"])),
            Finish(value["finish"]),
            value["weights"],
        )
        request = asked.get((finished.row, finished.k))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"it is no completion ({type(error).__name__}: {error})") from error
    if request is None:
        raise ValueError(f"completion {finished.k} of row {finished.row!r} was not asked for")
    require_answer(finished, request)
    return finished


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
