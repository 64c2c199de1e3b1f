"""Whether anything answers at an address, before a client of it tries for long.

Clients of buckets repeat a request for half a minute. That is right for a network that fails for a
moment, and too long for an address that is wrong, or a machine without a network.
"""

import functools
import socket
import time
from urllib.parse import urlsplit

PATIENCE_SECONDS = 3.0
"""How long an address may give no answer; a network that is slow has no such limit."""
_CONNECT_SECONDS = 3.0
_PAUSE_SECONDS = 0.5
_PORTS = {"http": 80, "https": 443}


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
