"""Steps that may have been renamed: the same code and arguments under a name that is none now."""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipeline.dag.canonical import Json, same
from pipeline.dag.step import Step, StepFunction
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

_MOST_NAMES = 30


def made_under_another_name(
    step: Step, recipe: Json, catalog: Catalog, names: Collection[str]
) -> str | None:
    """The name, among ``names``, of a step that is none any more and made what this one stands for.

    It is for a hint: a store with very many names is not searched.

    Args:
        recipe: of the step, with its inputs' digests.
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
    """All that a step function reaches and what that says, wherever it lies, less itself."""
    others = ((unit.partition(":")[2], code[unit]) for unit in code if unit != function)
    return sorted(others)


def _is_still_a_step(made: Manifest) -> bool:
    module, _, name = made.function.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, StepFunction) and found.name == made.step
