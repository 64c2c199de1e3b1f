"""Requests to an OpenAI-compatible address, repeated where another try may be answered.

A reason has neither the address nor the key, so that it can be stored.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import PreparedRequest
    from tenacity import RetryCallState

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which another try may be answered."""
_LONGEST_PAUSE = 3600.0
"""Seconds for which an address may ask."""


class NoReplyError(Exception):
    """There is no reply; the text has the reason, without the address and the key."""


class _PassingError(NoReplyError):
    """There is no reply to this try; the next one should come after `wait` seconds or more."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def reply_to(
    content: Mapping[str, Any],
    address: str,
    key_variable: str,
    timeout: float,
    tries: int,
    who: str = "the model",
) -> Any:
    """The JSON value with which ``/chat/completions`` replies to a request.

    Args:
        address: for example https://api.openai.com/v1.
        key_variable: the environment variable with the API key, if one is needed.
        timeout: the seconds without a byte after which a try has failed.
        tries: the most tries.
        who: what is asked, for the reason.

    Raises:
        NoReplyError: there is no reply.
    """
    # here: every plan of an experiment that offers judges reads this module
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        wait_random_exponential,
    )

    growing = wait_random_exponential(multiplier=0.5, max=20)
    retrying = Retrying(
        stop=stop_after_attempt(tries),
        wait=lambda state: max(_asked_to_wait(state), growing(state)),
        retry=retry_if_exception_type(_PassingError),
        reraise=True,
    )
    url = f"{address.rstrip('/')}/chat/completions"
    return retrying(_ask, content, url, partial(_sign, key_variable), timeout, who)


def _ask(content: Mapping[str, Any], url: str, sign: Any, timeout: float, who: str) -> Any:
    import requests

    try:
        answer = requests.post(
            url,
            json=content,
            auth=sign,
            timeout=timeout,
            allow_redirects=False,  # the key is for this address
        )
    except requests.RequestException as error:
        raise _PassingError(f"{who} cannot be asked ({type(error).__name__})") from error
    if answer.status_code in _PASSING:
        asked_to_wait = _seconds(answer.headers.get("Retry-After", ""))
        raise _PassingError(f"{who} answers with status {answer.status_code}", asked_to_wait)
    if answer.status_code != 200:
        raise NoReplyError(f"{who} refuses, with status {answer.status_code}")
    try:
        return answer.json()
    except ValueError as error:
        raise _PassingError(f"{who} answers with what is no JSON") from error


def _sign(key_variable: str, request: "PreparedRequest") -> "PreparedRequest":
    if key := os.environ.get(key_variable):
        request.headers["Authorization"] = f"Bearer {key}"
    return request


def _asked_to_wait(state: "RetryCallState") -> float:
    """The seconds for which the address has asked before the next try."""
    error = state.outcome and state.outcome.exception()
    return error.wait if isinstance(error, _PassingError) else 0.0


def _seconds(retry_after: str) -> float:
    """What a header ``Retry-After`` asks for, which is a number of seconds or a date; 0 if it is
    neither (RFC 9110, section 10.2.3)."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
        except ValueError:
            return 0.0
        date = date.replace(tzinfo=date.tzinfo or UTC)
        seconds = (date - datetime.now(UTC)).total_seconds()
    return min(seconds, _LONGEST_PAUSE) if seconds > 0 else 0.0
