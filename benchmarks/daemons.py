"""Processes of a cluster on this machine, which are to end with who started them."""

import shutil
from collections.abc import Sequence


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command, told to end when the thread that starts it has, also when it was killed."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command]
