"""Finds steps that may have been renamed: earlier steps with the same code and arguments."""

import contextlib
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.dag.canonical import Json, same
from pipeline.dag.step import Step, StepFunction
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

_MOST_NAMES = 30
_ENDS_OF_MODULES = (".py", "/__init__.py")


def made_under_another_name(
    step: Step, recipe: Json, catalog: Catalog, names: Collection[str]
) -> str | None:
    """The name in ``names`` of a former step that made the artifact this step would make.

    It is only used for a hint, so a store with very many step names is not searched.

    Args:
        recipe: the step's recipe, with the digests of its inputs.
    """
    if len(names) > _MOST_NAMES:
        return None
    for name in names:
        for made in reversed(catalog.history(name)):
            if _is_alike(made, step, recipe) and not _is_still_a_step(made):
                return name
    return None


def _is_alike(made: Manifest, step: Step, recipe: Any) -> bool:
    theirs: Any = made.recipe
    if not same(theirs.get("arguments", {}), recipe["arguments"]):
        return False
    if made.made_by == step.made_by:
        return True
    own = _helpers(step.code, step.function.reference)
    return "version" not in made.made_by and own != [] and own == _helpers(made.code, made.function)


def _helpers(code: Mapping[str, str], function: str) -> Iterable[tuple[str, str]]:
    """The digests of all code that a step function reaches except itself, without module names."""
    return sorted((unit.partition(":")[2], code[unit]) for unit in code if unit != function)


def _is_still_a_step(made: Manifest) -> bool:
    module, _, name = made.function.partition(":")
    if module not in sys.modules:
        return _defines(module, name)
    found = getattr(sys.modules[module], name, None)
    return isinstance(found, StepFunction) and found.name == made.step


def _defines(module: str, name: str) -> bool:
    """Whether a module that this experiment does not import has the function, by its source."""
    path, defines = (
        module.replace(".", "/"),
        re.compile(rf"^\s*def {re.escape(name)}\b", re.MULTILINE),
    )
    for place in (f"{folder}/{path}{end}" for folder in sys.path for end in _ENDS_OF_MODULES):
        with contextlib.suppress(OSError):  # most are not there
            if defines.search(Path(place).read_text("utf-8", "replace")):
                return True
    return False
