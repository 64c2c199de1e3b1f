"""Tells the files of the interpreter and of installed packages from those of a project."""

import os
import sysconfig
from functools import cache, lru_cache
from pathlib import Path, PurePath

FOLDERS = ("site-packages", "dist-packages")
"""The names of folders that hold installed packages; Debian uses the second."""
SHIPPED_STEPS = str(Path(__file__).parents[1] / "steps")
"""The package of the shipped steps, which is installed or checked out together with the core."""


@lru_cache(maxsize=4096)
def in_library(file: str) -> bool:
    """Whether a file belongs to the interpreter or to an installed package."""
    if file.startswith(f"{SHIPPED_STEPS}{os.sep}"):
        return False
    path = PurePath(file)
    return not set(FOLDERS).isdisjoint(path.parts) or any(
        path.is_relative_to(folder) for folder in _of_interpreter()
    )


@cache
def _of_interpreter() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name) for name in names)


_of_interpreter()  # now: inside the import hook, sysconfig would import its data half-initialised
