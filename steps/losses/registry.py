"""Losses by name, for those who choose one in a config: an experiment hands them to ``main``.

Whatever file of this folder or of a folder below it defines a loss, it is known
(:mod:`steps.shared.named`). Steps do not come through here. They are given a loss, and so depend on
the code of that one only.
"""

from collections.abc import Mapping
from typing import TypeVar

from steps import losses
from steps.losses.base import Loss, PreferenceLoss, UnpairedLoss
from steps.shared.named import members_of

Family = TypeVar("Family", bound=Loss)


def losses_of(family: type[Family]) -> dict[str, type[Family]]:
    """The losses that are a `family` (such as `PreferenceLoss`), in the order of their names."""
    return members_of(family, losses)


PAIR_LOSSES: Mapping[str, type] = losses_of(PreferenceLoss)
UNPAIRED_LOSSES: Mapping[str, type] = losses_of(UnpairedLoss)
