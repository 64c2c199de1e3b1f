"""Servers of this machine, for tests and benchmarks: their ports, and their end."""

import shutil
import socket
from collections.abc import Sequence


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command with a wrapper that ends it when its starting thread ends, even by a kill."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]
