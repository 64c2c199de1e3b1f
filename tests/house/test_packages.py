"""The shape of packages: how many modules each has, and that its docstring names them."""

import ast
from pathlib import Path

import pytest
from places import REPOSITORY

STEPS = REPOSITORY / "steps"

MOST_MODULES = 14
REPEATED = {"__init__", "config"}
"""File names that many packages have."""
FOLDERS = sorted(
    file.parent for top in ("pipeline", "steps") for file in (REPOSITORY / top).rglob("__init__.py")
)


def modules(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")


def of_repository(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("folder", FOLDERS, ids=of_repository)
def test_a_package_can_be_taken_in_and_its_docstring_names_its_modules(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    if folder != STEPS:
        assert len(modules(folder)) <= MOST_MODULES
    if "ne module a " not in said and "ne file a " not in said:
        assert not [name for name in modules(folder) if f"``{name}``" not in said]
    packages = [below.parent.name for below in folder.glob("*/__init__.py")]
    assert not [name for name in packages if f"``{name}``" not in said]


@pytest.mark.parametrize("top", ["pipeline", "steps"])
def test_no_two_files_have_one_name(top: str) -> None:
    found = [file.stem for file in (REPOSITORY / top).rglob("*.py") if file.stem not in REPEATED]
    assert not [name for name in set(found) if found.count(name) > 1]
