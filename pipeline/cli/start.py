"""``temper init``: a project to begin from, copied from ``experiments/template``.

The template is a project that runs: its experiment trains, its tests pass. Only the name differs in
a copy.
"""

import re
import shutil
from pathlib import Path

from pipeline.configs.shipped import EXPERIMENTS
from pipeline.errors import TemperError

TEMPLATE = EXPERIMENTS / "template"
_RENAMED = {"gitignore": ".gitignore", "github": ".github"}
"""Names in the template, where a leading dot would act on this repository."""
_NAME = "my-project"
"""What a project is called in the template."""


def make_project(folder: Path) -> list[Path]:
    """Write a project into a folder; the files that it has, relative to it.

    Raises:
        TemperError: the folder holds something, or its name is none that a package can have.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", name):
        raise TemperError(f"{name!r} is no name for a project: use letters, digits and - _ .")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TemperError(f"{folder} is there already, and is not empty; name another folder")
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
