"""``temper init``: copies ``experiments/template`` to a new project.

The template is itself a working project: its experiment trains and its tests pass. A copy differs
only in its name.
"""

import re
import shutil
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.configs.shipped import EXPERIMENTS
from pipeline.uncaught.user_errors import SHIPPED

TEMPLATE = EXPERIMENTS / "template"
_RENAMED = {"gitignore": ".gitignore", "github": ".github"}
"""Files whose leading dot is left out in the template, where it would affect this repository."""
_NAME = "my-project"
"""The name of the project in the template."""


def make_project(folder: Path) -> list[Path]:
    """Write a project into a folder and return its files, relative to the folder.

    Raises:
        TemperError: the folder is not empty, or its name is no valid package name.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", name):
        raise TemperError(f"{name!r} is no name for a project: use letters, digits and - _ .")
    if name in (*SHIPPED, EXPERIMENTS.name):
        raise TemperError(f"Temper has a package {name}, too; name the project otherwise")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TemperError(f"{folder} is there already, and is not empty; name another folder")
    try:
        return _copied(folder, name)
    except OSError:  # a disk may be full: what is half there would be in the way of another try
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _copied(folder: Path, name: str) -> list[Path]:
    """Copy the template into a folder; return the files' places there."""
    made: list[Path] = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        first, *rest = source.relative_to(TEMPLATE).parts
        place = Path(_RENAMED.get(first, first), *rest)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in (".md", ".toml"):
            text = source.read_text("utf-8").replace(_NAME, name)
            (folder / place).write_text(text, "utf-8")
        else:
            shutil.copyfile(source, folder / place)
        made.append(place)
    return made
