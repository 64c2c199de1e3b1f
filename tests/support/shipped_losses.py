"""The losses that Temper ships: tests in the same process may have defined others."""

from steps.losses.base import PreferenceLoss
from steps.losses.registry import losses_of


def shipped_losses() -> dict[str, type[PreferenceLoss]]:
    """Those over pairs, by name."""
    every = losses_of(PreferenceLoss)
    return {name: loss for name, loss in every.items() if loss.__module__.startswith("steps.")}
