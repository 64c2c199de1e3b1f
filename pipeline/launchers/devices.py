"""Assigns the CUDA devices of this machine to steps, so that no two steps ever share one.

An exclusive lock on a file reserves a device. The worker inherits the open file, so the lock lasts
as long as any process of the worker lives, even if the driver dies; then the kernel releases it.
All drivers of a machine share the same files. These are named by the devices' identifiers, since an
index means different devices to two drivers that can see only some of them.
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
"""The order in which ``nvidia-smi`` numbers devices; workers use it too."""
FOLDER = Path("/tmp/temper-devices")
"""The folder of the locks. It does not depend on ``TMPDIR``, which may differ between drivers."""
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Devices:
    """The devices of a worker.

    Attributes:
        names: as ``CUDA_VISIBLE_DEVICES`` lists them.
        files: descriptors for the worker to inherit.
    """

    names: tuple[str, ...] = ()
    files: tuple[int, ...] = ()


def present(kind: str | None = None) -> tuple[str, ...]:
    """The devices that this process may use, by index, or by identifier if ``CUDA_VISIBLE_DEVICES``
    contains identifiers.

    Args:
        kind: only devices whose model name contains this text.
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
    """The models of the devices, as the driver names them; empty if the driver does not answer."""
    return ", ".join(sorted({model for _, _, model, _ in _described()}))


def cards() -> tuple[tuple[str, int], ...]:
    """Model and bytes of memory of each device; empty if the driver does not answer."""
    rows = _described()
    return tuple((model, int(size) * 2**20) for *_, model, size in rows if size.isdecimal())


@cache
def _described() -> tuple[tuple[str, ...], ...]:
    """Index, identifier, model and memory of each device; empty if the driver does not answer. It
    is asked once, since each call takes up to a second, and a driver that hangs much longer."""
    fields = "--query-gpu=index,uuid,name,memory.total"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = answer.stdout.decode(errors="replace").splitlines()
    rows = (tuple(part.strip() for part in line.split(",")) for line in lines)
    return tuple(row for row in rows if len(row) == fields.count(",") + 1)


def _description(name: str) -> tuple[str, str]:
    """Identifier and model of a device, which is named by its index or by a beginning of its
    identifier."""
    for index, identifier, model, _ in _described():
        if name == index or (not name.isdecimal() and identifier.startswith(name)):
            return identifier, model
    return name, ""


@contextlib.contextmanager
def taken(
    count: int, wait: Callable[[float], bool], kind: str | None = None
) -> Iterator[Devices | None]:
    """Reserve so many devices as soon as they are free. They are taken all at once, so that two
    processes that wait for several devices never wait for each other.

    Args:
        wait: waits so many seconds; if it returns true, the wait ends and the result is ``None``.
        kind: as in :func:`present`.
    """
    if not count:
        yield Devices()
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user owns the folder and has done this
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
    """An open file with a device's lock; ``None`` if another process holds the lock."""
    path = FOLDER / "".join(c if c.isalnum() else "_" for c in _description(name)[0])
    try:
        file = os.open(path, os.O_RDWR)  # without O_CREAT: Linux refuses it on another user's file
    except FileNotFoundError:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
