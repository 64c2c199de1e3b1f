"""``module:qualname``: the name under which another process imports a function or class."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.base import cells
from pipeline.base.errors import TemperError

LISTENERS: list[Callable[[str, str], None]] = []
"""Told the module and the name of all that is resolved: code that uses it need not mention it."""


def reference_to(definition: Any) -> str:
    """The ``module:qualname`` of a function or class, with a module name that a worker can import.

    Raises:
        TemperError: it is defined inside a function or in a session that keeps no source text.
    """
    module, qualname = definition.__module__, definition.__qualname__
    if "<" in qualname:
        raise TemperError(
            f"{module}.{qualname} is defined inside a function, where a worker cannot import it; "
            "move it to the top level of its module (in a decorator, functools.wraps gives it the "
            "name of what is decorated)"
        )
    if module == "__main__":
        module = _script_module(qualname)
    return f"{module}:{qualname}"


def resolve_reference(reference: str) -> Any:
    """The function or class with this ``module:qualname``."""
    module, _, qualname = reference.partition(":")
    found: Any = importlib.import_module(module)
    for listener in LISTENERS:
        listener(module, qualname.partition(".")[0])
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _script_module(qualname: str) -> str:
    """The module name with which a worker, with the script's folder in its path, imports
    ``__main__``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return spec.name
    if cells.are_known():
        return cells.MODULE
    file = getattr(main, "__file__", None)
    if spec is None and (file is None or not Path(file).is_file()):  # a prompt, or standard input
        raise interactive(qualname)
    return _importable(Path(str(file)), qualname)


def _importable(script: Path, qualname: str) -> str:
    """The name by which a script's file is imported. Raise `TemperError` if there is none."""
    if script.suffix == ".py" and "." not in script.stem and script.stem != "__main__":
        return script.stem
    name = qualname.partition(".")[0]
    raise TemperError(
        f"{name} is defined in {script.name}, which no worker can import under that name; give the "
        f"file a name such as my_steps.py, or put {name} into one and import it from there"
    )


def interactive(name: str) -> TemperError:
    """The error for a function or class that is in no file, so that a worker cannot import it."""
    name = name.partition(".")[0]
    return TemperError(
        f"{name} is defined interactively, where no worker can import it; put it in a file, "
        f"such as my_steps.py, and import it from there: from my_steps import {name} (in a "
        "notebook or in IPython, a cell will do)"
    )
