"""Whether a process of this machine exists."""

import os


def exists(pid: int) -> bool:
    """Whether a process has this id now; it may be another user's, or a later one."""
    if pid <= 0:  # these address groups of processes
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # a process of another user
    return True
