"""Processes of this machine, and this one."""

import os
from collections.abc import MutableMapping
from pathlib import Path


def exists(pid: int) -> bool:
    """Whether a process with this id works now; it may be another user's, or a later one. A process
    that has ended counts as gone though its parent has not waited for it, which in a container
    may be never."""
    if pid <= 0:  # these address groups of processes
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # a process of another user
    return not has_ended(status(pid))


def status(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state, parent and so on; empty if there is
    no such process, and on other systems than Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def has_ended(found: list[str]) -> bool:
    """Whether the `status` of a process is that of one which only waits for its parent."""
    return found[:1] in (["Z"], ["X"])


def working_folder() -> str:
    """This process's working folder; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _at_start() -> MutableMapping[str, str]:
    """The environment with which this process was started. Code that it has run since may have
    changed ``os.environ``; on other systems than Linux, that counts which ran before this import.
    """
    try:
        entries = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)
    except (OSError, ValueError):  # a program that changes its title may write over it
        return dict(os.environ)


STARTED_WITH = _at_start()
"""The environment with which this process was started."""
