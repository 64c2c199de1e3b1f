"""The parts of a training config of which there are several, by the names that a config gives them.

An experiment hands these to ``main``; steps do not come here.
"""

from collections.abc import Mapping

from steps.training.config import LoraConfig
from steps.training.losses.base import PreferenceLoss, UnpairedLoss
from steps.training.losses.registry import losses_of

ADAPTERS: Mapping[str, type] = {"lora": LoraConfig}
PAIR_LOSSES: Mapping[str, type] = losses_of(PreferenceLoss)
UNPAIRED_LOSSES: Mapping[str, type] = losses_of(UnpairedLoss)
