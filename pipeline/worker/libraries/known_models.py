"""Spares transformers its search for models, a sixth of the time to import it and torch.

Transformers reads the source of all its models, 2,500 files, to learn which names each of them
exports. It does so twice, for ``transformers`` and for ``transformers.models``: it caches what it
finds in 128 folders, and it has 550. The result depends on these files only, and on the code that
reads them. So it is kept among the caches of the user, for as long as no file has changed.

In case of doubt transformers searches as usual. Its own function is put back in the end, so a
worker finds transformers as a fresh interpreter does.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.code import shelf
from pipeline.observed.states import state_of

_MODULE, _FUNCTION = "transformers.utils.import_utils", "create_import_structure_from_path"


@contextmanager
def models_known() -> Iterator[None]:
    """Let imports in the block use what an earlier search for models has found."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        finder.put_back()


class _Finder:
    """Finds the module with the function that searches, and replaces the function in it."""

    def __init__(self) -> None:
        self._replaced: tuple[ModuleType, Any] | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _MODULE else None
        loader: Any = spec and spec.loader
        if type(loader) is not SourceFileLoader:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if (search := getattr(module, _FUNCTION, None)) is not None and module.__file__:
                self._replaced = module, search
                setattr(module, _FUNCTION, _remembering(search, Path(module.__file__)))

        loader.exec_module = exec_module  # of this loader alone
        return spec

    def put_back(self) -> None:
        if self._replaced is not None:
            module, search = self._replaced
            setattr(module, _FUNCTION, search)


def _remembering(search: Callable[[Any], Any], file: Path) -> Callable[[Any], Any]:
    """The function ``search`` of a file of transformers, which looks first at what it found in the
    folder of models at another time."""
    models = file.parents[1] / "models"
    found: list[Any] = []

    def remembered(path: Any) -> Any:
        if Path(path) not in (models, models / "__init__.py"):
            return search(path)
        if not found:
            found.append(_found_before(search, file, models))
        return found[0]

    return remembered


def _found_before(search: Callable[[Any], Any], file: Path, models: Path) -> Any:
    place = None
    with suppress(OSError, ValueError, TypeError, KeyError):
        states = [state_of(str(file)), *_states(str(models))]
        place = shelf.place("models", json.dumps([sys.version, str(models), states]).encode())
        return _from_json(shelf.load(place))
    found = search(models)
    with suppress(ValueError, TypeError):
        if place is not None and _from_json(kept := _to_json(found)) == found:
            shelf.save(place, kept)
    return found


def _states(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Numbers that change with the files in a folder and below it; the order is the search's."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _states(entry.path)
            else:
                now = entry.stat()
                yield entry.path, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _to_json(found: Any) -> Any:
    """Nested dicts of sets, whose keys may be frozensets, as JSON."""
    if isinstance(found, dict):
        keys = (sorted(key) if isinstance(key, frozenset) else key for key in found)
        return [[key, _to_json(value)] for key, value in zip(keys, found.values(), strict=True)]
    return {"names": sorted(found)}


def _from_json(kept: Any) -> Any:
    if isinstance(kept, dict):
        return {*kept["names"]}
    return {frozenset(k) if isinstance(k, list) else k: _from_json(value) for k, value in kept}
