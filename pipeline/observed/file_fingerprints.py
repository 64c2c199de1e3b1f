"""What stands for the state and the content of a file, a folder or a link."""

import os
import stat
from collections.abc import Iterable

import blake3

ABSENT = "absent"
"""Stands for the digest of a file or folder that the step looked for and that did not exist."""
UNSTEADY = "changed while the step ran"
"""Stands for the digest of a file that changed during the step; it is equal to no digest."""
LINK = "link to"
"""Begins what stands for the digest of a symbolic link."""
_BLOCK_BYTES = 4 * 2**20


def state_of(path: str) -> list[int] | None:
    """Numbers that change with a file's content; ``None`` without a file, empty for a folder."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):  # a manifest may name what no file system can
        return None
    if not stat.S_ISREG(now.st_mode):
        return []
    return [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns]


def target_of(link: str) -> str:
    """Stands for the digest of a symbolic link of which the step asked where it points."""
    try:
        return f"{LINK} {os.readlink(link)}"
    except (OSError, ValueError):
        return ABSENT


def file_digest(path: str) -> str:
    hasher = blake3.blake3()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def folder_digest(folder: str) -> str:
    """The digest of the names in a folder; :data:`ABSENT` if there is none."""
    try:
        return names_digest(os.listdir(folder))
    except (OSError, ValueError):
        return ABSENT


def names_digest(found: Iterable[str]) -> str:
    """The digest of the names in a folder."""
    names = sorted(name for name in found if name != "__pycache__")
    return blake3.blake3("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
