"""How long to wait for a bucket that does not answer.

Clients of buckets repeat a request for some seconds, of some kinds for half a minute. That is right
for a network that fails for a moment. It is too long for an address that is wrong, or a machine
without a network. And it is too short for what a step has made in hours, which exists only in its
worker until the bucket has it. Of a host that takes a request and sends nothing, the clients say
nothing for minutes; so a user is told.
"""

import contextlib
import functools
import socket
import sys
import time
from collections.abc import Callable, Iterator
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pipeline.base.errors import TemperError
from pipeline.uncaught.user_errors import NO_ROOM

if TYPE_CHECKING:
    from pipeline.store.layout import Store

PATIENCE_SECONDS = 3.0
"""How long an address may give no answer; a network that is slow has no such limit."""
_CONNECT_SECONDS = 3.0
_PAUSE_SECONDS = 0.5
_PORTS = {"http": 80, "https": 443}
SILENCE_SECONDS = 15.0
"""After how long a user is told that a request is still waiting; no sooner is another one told."""
OUTAGE_SECONDS = 600.0
LONGEST_PAUSE_SECONDS = 20.0

T = TypeVar("T")
_told: float | None = None
"""When this process has last told of a request that waits, on the monotonic clock."""


@functools.cache
def require_answer(url: str) -> None:
    """Raise `OSError` if the host of a URL is not known, or refuses connections. A host that is
    merely slow passes. An address that has answered is not tried again."""
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or _PORTS.get(address.scheme, 443)
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except TimeoutError:
            return
        except OSError as error:
            if time.monotonic() > until:
                reason = error.strerror or error
                raise OSError(f"{host} does not answer ({reason})") from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return


@contextlib.contextmanager
def telling_of_silence(place: str) -> Iterator[None]:
    """Print a sentence on standard error if the block, one request for a place, takes longer than
    ``SILENCE_SECONDS``; of many requests that wait at once, the first prints it."""
    timer = Timer(SILENCE_SECONDS, _tell_of_silence, [place])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell_of_silence(place: str) -> None:
    global _told
    now = time.monotonic()
    if _told is not None and now - _told < SILENCE_SECONDS:
        return
    _told = now
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
        print(
            f"{place}: no answer for {SILENCE_SECONDS:.0f} s, still waiting; check that address, "
            "the network, and whether the service is up (Ctrl-C stops)",
            file=sys.stderr,
            flush=True,
        )


def despite_outages(
    store: "Store",
    ask: Callable[..., T],
    *arguments: Any,
    tell: Callable[[str], None] = lambda sentence: None,
) -> T:
    """Call a function that needs the store; while a bucket fails, again for ``OUTAGE_SECONDS``.

    Args:
        ask: may be called again after any part of its work.
        tell: called with a sentence before each pause.

    Raises:
        OSError, TemperError: what the function raised at last. An error that does not pass by
            itself, as without permission, is raised at once.
    """
    if store.is_local:
        return ask(*arguments)
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

    retrying = Retrying(
        retry=retry_if_exception(may_pass),
        stop=stop_after_delay(OUTAGE_SECONDS),
        wait=wait_exponential(1.0, max=LONGEST_PAUSE_SECONDS),
        before_sleep=lambda state: tell(
            f"the store does not answer ({state.outcome and state.outcome.exception()}); "
            "it is asked again"
        ),
        reraise=True,
    )
    return retrying(ask, *arguments)


def may_pass(error: BaseException) -> bool:
    """Whether an error of a store is of a kind that passes by itself, such as a failed network."""
    cause = error.__cause__ if isinstance(error, TemperError) else error
    return (
        isinstance(cause, OSError)
        and not isinstance(cause, PermissionError | FileNotFoundError)
        and cause.errno not in NO_ROOM
        and "forbidden" not in str(cause).lower()  # as gcsfs says it
    )
