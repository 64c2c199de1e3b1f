"""Losses by name, for configs; an experiment passes them to ``main``.

The registry finds the losses in all files of this folder and of the folders below it
(:mod:`steps.shared.named`). Steps do not import the registry. They get one loss as an argument, so
they depend on the code of that loss only.
"""

from collections.abc import Mapping
from typing import TypeVar

from steps import losses
from steps.losses.base import Loss, PreferenceLoss, SftLoss, UnpairedLoss
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.shared.named import members_of

Family = TypeVar("Family", bound=Loss)


def losses_of(family: type[Family]) -> dict[str, type[Family]]:
    """The losses of a `family` (such as `PreferenceLoss`), sorted by name."""
    return members_of(family, losses)


PAIR_LOSSES: Mapping[str, type] = losses_of(PreferenceLoss)
UNPAIRED_LOSSES: Mapping[str, type] = losses_of(UnpairedLoss)
SFT_LOSSES: Mapping[str, type] = losses_of(SftLoss)
DISTILLATION_LOSSES: Mapping[str, type] = losses_of(DistillationLoss)
