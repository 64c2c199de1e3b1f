"""Drivers in processes and sessions of their own, for tests that kill or stop them."""

import os
import subprocess
import sys
from pathlib import Path

from places import SUPPORT


def start_driver(code: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Begins a script with these arguments, which finds what tests find; it prints into a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
