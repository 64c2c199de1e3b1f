"""The CUDA devices of this machine, handed out so that no two steps ever share one.

A device is taken by an exclusive lock on a file of its own. The worker inherits the open file, so
the lock lasts as long as anything of the worker lives, whatever becomes of the driver, and the
kernel lets go of it then. All drivers of a machine share the same files, which are named by the
devices' identifiers: an index means one device to one driver and another to the next, if each has
some of them only.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
BY_BUS = "PCI_BUS_ID"
"""The order in which ``nvidia-smi`` counts, and workers are told to."""
FOLDER = Path("/tmp/temper-devices")
"""Of the locks. Not where ``TMPDIR`` says, which is another place for another driver."""
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


def present(kind: str | None = None) -> tuple[str, ...]:
    """The devices that this process may use, by index or, where that is how
    ``CUDA_VISIBLE_DEVICES`` names them, by identifier.

    Args:
        kind: those alone whose model has this in its name.
    """
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        names = [name for name in names if name and name != "-1"]
    else:
        found = len(list(Path("/dev").glob("nvidia[0-9]*")))
        names = list(map(str, range(found and (len(_described()) or found))))
    if kind is None:
        return tuple(names)
    return tuple(name for name in names if kind.lower() in _description(name)[1].lower())


def models() -> str:
    """What kinds of device there are, as the driver names them; empty if it cannot be asked."""
    return ", ".join(sorted({model for _, _, model in _described()}))


@cache
def cards() -> tuple[tuple[str, int], ...]:
    """Model and bytes of memory of each device; nothing if the driver cannot be asked."""
    rows = _asked("name,memory.total")
    return tuple((model, int(size) * 2**20) for model, size in rows if size.isdecimal())


@cache
def _described() -> tuple[tuple[str, str, str], ...]:
    """Index, identifier and model of each device; nothing if the driver cannot be asked."""
    return tuple(
        (index, identifier, model) for index, identifier, model in _asked("index,uuid,name")
    )


def _asked(fields: str) -> list[list[str]]:
    """What the driver says of each device; nothing if it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == fields.count(",") + 1]


def _description(name: str) -> tuple[str, str]:
    """Identifier and model of a device that is named by its index, or by how its identifier
    begins."""
    for index, identifier, model in _described():
        if name == index or (not name.isdecimal() and identifier.startswith(name)):
            return identifier, model
    return name, ""


@contextlib.contextmanager
def taken(
    count: int, wait: Callable[[float], bool], kind: str | None = None
) -> Iterator[Devices | None]:
    """Take so many devices, as soon as they are free; all at once, so that two who wait for several
    never wait for each other.

    Args:
        wait: waits so many seconds; true to give up, which yields ``None``.
        kind: as in :func:`present`.
    """
    if not count:
        yield Devices()
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user's, who has done it
        FOLDER.chmod(0o1777)
    while True:
        with contextlib.ExitStack() as locks:
            free: dict[str, int] = {}
            for name in present(kind):
                if len(free) < count and (file := _lock(name)) is not None:
                    free[name] = file
                    locks.callback(os.close, file)
            if len(free) == count:
                yield Devices(tuple(free), tuple(free.values()))
                return
        if wait(POLL_SECONDS):
            yield None
            return


def _lock(name: str) -> int | None:
    """An open file with a device's lock, or ``None`` if another has it."""
    path = FOLDER / "".join(c if c.isalnum() else "_" for c in _description(name)[0])
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
