"""Losses by name, for those who choose one in a config.

Whatever file of this folder defines a loss, it is known: nothing is to be added elsewhere. Steps do
not come through here. They are given a loss, and so depend on the code of that one only.
"""

import importlib
import pkgutil
from typing import TypeVar

from steps.training import losses
from steps.training.losses.base import Loss

Family = TypeVar("Family", bound=Loss)


def losses_of(family: type[Family]) -> dict[str, type[Family]]:
    """The losses that are a `family` (such as `PreferenceLoss`), in the order of their names."""
    for module in pkgutil.iter_modules(losses.__path__):
        importlib.import_module(f"{losses.__name__}.{module.name}")
    named = {loss.name: loss for loss in _below(family) if "name" in vars(loss)}
    return dict(sorted(named.items()))


def _below(family: type[Family]) -> list[type[Family]]:
    children = family.__subclasses__()
    return [*children, *(loss for child in children for loss in _below(child))]
