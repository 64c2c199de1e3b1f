"""Which process shows a step in a sink: where two drivers wait for one step, each has a mirror, and
of files that both wrote a sink would show every point twice.

A claim is a lock on a file. It ends with its process, so another one can take over, unless the step
was shown to its end: that leaves a mark in the file.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pipeline.show.sinks import Watched


def claimed(folder: Path, kind: str, watched: Watched) -> IO[str] | None:
    """An open file that claims a step in a sink until it is closed; ``None`` while another has the
    claim, or if another has shown all of the step since this process first asked.

    Marks of before are of the same key's earlier artifacts: a step whose files have changed is
    shown anew. Where a file system has no locks, nothing is in the way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"{kind}-{watched.key}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError as error:
        is_free = not isinstance(error, BlockingIOError)
    marks = os.fstat(file.fileno()).st_size
    if marks <= watched.marks.setdefault(kind, marks) and is_free:
        return file
    file.close()
    return None


@contextlib.contextmanager
def ended(claim: IO[str], is_whole: bool) -> Iterator[None]:
    """End a claim after the block, with a mark if it has shown all of the step."""
    with claim:
        yield
        claim.write("whole\n" if is_whole else "")
