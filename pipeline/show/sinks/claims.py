"""Which process shows a step in a sink: where two drivers wait for one step, each has a mirror, and
of files that both wrote a sink would show every point twice.

A claim is a lock on a file. It ends with its process, so another one can take over.
"""

import fcntl
from pathlib import Path
from typing import IO


def claimed(folder: Path, name: str) -> IO[str] | None:
    """An open file that claims `name` until it is closed; ``None`` while another has the claim.

    Where a file system has no locks, nothing is in the way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"{name}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        pass
    return file
