"""Processes of a local cluster that end together with the thread that started them."""

import shutil
from collections.abc import Sequence


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command with a wrapper that ends it when its starting thread ends, even by a kill."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command]
