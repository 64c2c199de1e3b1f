"""Another user of this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_as_root() -> Iterator[None]:
    """Without the right to read and write everywhere, where the tests run as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
