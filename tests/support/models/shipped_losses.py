"""The losses that Temper ships: tests in the same process may have defined others."""

import inspect
from pathlib import Path

from places import REPOSITORY

from steps.losses.base import PreferenceLoss
from steps.losses.registry import losses_of


def shipped_losses() -> dict[str, type[PreferenceLoss]]:
    """Those over pairs, by name."""
    every = losses_of(PreferenceLoss)
    return {name: loss for name, loss in every.items() if is_shipped(loss)}


def is_shipped(loss: type) -> bool:
    """Whether a loss is defined in a file of the repository's ``steps``. A loss whose file has an
    error is defined in no file."""
    try:
        return Path(inspect.getfile(loss)).is_relative_to(REPOSITORY / "steps")
    except (OSError, TypeError):
        return False
