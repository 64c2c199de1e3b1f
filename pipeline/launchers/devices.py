"""The CUDA devices of this machine, handed out so that no two steps ever share one.

A device is taken by an exclusive lock on a file of its own. The worker inherits the open file, so
the lock lasts as long as anything of the worker lives, whatever becomes of the driver, and the
kernel lets go of it then. Several drivers on one machine share the same files.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Devices:
    """Devices that a worker has.

    Attributes:
        names: as ``CUDA_VISIBLE_DEVICES`` lists them.
        files: descriptors for the worker to inherit.
    """

    names: tuple[str, ...] = ()
    files: tuple[int, ...] = ()


@cache
def present() -> tuple[str, ...]:
    """The devices that this process may use, by index or, where that is how
    ``CUDA_VISIBLE_DEVICES`` names them, by identifier."""
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        return tuple(name for name in names if name and name != "-1")
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return tuple(map(str, range(found)))


@cache
def models() -> str:
    """What kinds of device there are, as the driver names them; empty if it cannot be asked."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(sorted(set(answer.stdout.split("\n")) - {""}))


@contextlib.contextmanager
def taken(
    count: int, wait: Callable[[float], bool], folder: Path | None = None
) -> Iterator[Devices | None]:
    """Take so many devices, as soon as they are free; all at once, so that two who wait for several
    never wait for each other.

    Args:
        wait: waits so many seconds; true to give up, which yields ``None``.
        folder: of the lock files; the same for all who share the devices.
    """
    if not count:
        yield Devices()
        return
    folder = folder or Path(tempfile.gettempdir()) / "temper-devices"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user's, who has done it
        folder.chmod(0o1777)
    while True:
        with contextlib.ExitStack() as locks:
            free: dict[str, int] = {}
            for name in present():
                if len(free) < count and (file := _lock(folder / _file_name(name))) is not None:
                    free[name] = file
                    locks.callback(os.close, file)
            if len(free) == count:
                yield Devices(tuple(free), tuple(free.values()))
                return
        if wait(POLL_SECONDS):
            yield None
            return


def _lock(path: Path) -> int | None:
    """An open file with its lock, or ``None`` if another has it."""
    try:
        file = os.open(path, os.O_RDWR)  # without O_CREAT, which Linux refuses on another user's
    except FileNotFoundError:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _file_name(device: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in device)
