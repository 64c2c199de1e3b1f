"""What a model is loaded and adapted as: data that is importable without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from steps.shared.checks import require, require_count


class Dtype(StrEnum):
    """The dtype of weights, activations and gradients; a log-softmax is never below float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class ActivationCheckpointing(StrEnum):
    """What a layer computes again in the backward, so as not to keep it from the forward.

    selective: all but matrix products and attention, which costs little and halves what is kept;
        of models that are packed.
    full: everything, from the layer's input; a third more arithmetic.
    """

    none = "none"
    selective = "selective"
    full = "full"


@dataclass  # not frozen: OmegaConf could not put one where there was none
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) in place of all weights.

    An adapter adds `alpha / r · B A` to a matrix.

    Args:
        r: the rank.
        alpha: the scale: an adapter counts alpha / r.
        dropout: of an adapter's input, in training.
        target_modules: the matrices that are adapted, as in ``[q_proj, v_proj]``; none means every
            linear layer but the head.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_count(self, "r")
        require(0 < self.alpha < math.inf, "alpha must be above 0", self.alpha)
        require(0 <= self.dropout < 1, "dropout must be in [0, 1)", self.dropout)


ADAPTERS: Mapping[str, type] = {"lora": LoraConfig}
"""Kinds of adapters by the names that a config gives them; an experiment hands them to ``main``."""
