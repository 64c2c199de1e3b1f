"""How a model is loaded and adapted: types that are importable without torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from steps.shared.checks import require, require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field


class Dtype(StrEnum):
    """The dtype of weights, activations and gradients; a log-softmax is never below float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class ActivationCheckpointing(StrEnum):
    """Which activations a layer recomputes in the backward instead of keeping them.

    selective: all but the outputs of matrix products and attention; this costs little time and
        halves the memory of activations. Only for packed models.
    full: all activations, from the layer's input; this takes a third more arithmetic.
    """

    none = "none"
    selective = "selective"
    full = "full"


LEAST_INPUT = 2**20
"""The bytes of a layer's input below which selective checkpointing keeps everything: its overhead
would exceed the benefit."""


class Quantization(StrEnum):
    """The rounding of frozen weights to 4 bits (Dettmers et al. 2023, QLoRA,
    https://arxiv.org/abs/2305.14314), by bitsandbytes.

    nf4: one of 16 quantiles of the normal distribution, times the largest number of its block of 64
        weights, in float32; 4.5 bits a weight.
    nf4_double: the scales of the blocks are rounded to 8 bits, too; 4.13 bits a weight.
    """

    nf4 = "nf4"
    nf4_double = "nf4_double"


DEQUANTISED = ("mxfp4", "fp8")
"""Published quantisations whose weights transformers turns into floats."""

ADAPTER_FILE = "adapter_config.json"
"""The file of an adapter. Where it lies beside a whole model, transformers loads both."""
ADAPTER_ALONE = (
    "holds an adapter without its base; merge them with peft (PeftModel.from_pretrained(BASE, "
    "FOLDER).merge_and_unload()), save that with the base's tokenizer, and name the folder with "
    "model.path"
)
"""What is wrong with a model that has the file of an adapter and no config, and what to do."""


ADAPTED = "adapted.json"
"""The file of a model folder that has adapters in place of weights: it names their base."""


def has_adapters_alone(files: Iterable[str]) -> bool:
    """Whether a model folder with these files at its top has adapters in place of weights."""
    names = {*files}
    return ADAPTED in names and not any(name.endswith(".safetensors") for name in names)


@dataclass(frozen=True)
class Published:
    """What a model is called, and its license, for the cards of models that are made from it."""

    name: str | None = detail_field(None)
    license: str | None = detail_field(None)


@dataclass  # not frozen: OmegaConf could not put one where there was none
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), trained in place of all
    weights. An adapter adds `alpha / r · B A` to a weight matrix.

    Args:
        r: the rank.
        alpha: the scale; an adapter's product is multiplied by alpha / r.
        rslora: multiply it by alpha / sqrt(r) instead, so that a higher rank does not learn slower
            (rsLoRA, Kalajdzievski 2023, https://arxiv.org/abs/2312.03732).
        dora: train the norms of the rows of adapted matrices, too, and with the adapter only their
            directions (DoRA, Liu et al. 2024, https://arxiv.org/abs/2402.09353). For linear layers.
        dropout: the dropout probability of an adapter's input in training.
        target_modules: the names of the adapted matrices, as in ``[q_proj, v_proj]``; an empty list
            means every linear layer except the head.
        modules_to_save: the names of modules whose own weights are trained, too, as in
            ``[embed_tokens, lm_head]`` if tokens were added; the folder of the adapters holds them.
        quantization: round the weights of linear layers, except the head, to 4 bits (QLoRA); the
            reference of preference training is then the rounded model. null: as they are.
        merged: write all weights, with the adapters in them. False: write the adapters, and the
            digest of the model that they were trained on; steps and commands merge the two when
            they read them. Weights rounded to 4 bits are always written merged.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=list)
    quantization: Quantization | None = added_field(None, before=None)
    rslora: bool = added_field(False, before=False)
    dora: bool = added_field(False, before=False)
    modules_to_save: list[str] = field(default_factory=list, metadata={"before": []})
    merged: bool = added_field(False, before=True)

    def __post_init__(self) -> None:
        if self.quantization is not None:
            set_choice(self, "quantization", Quantization)
        require_count(self, "r")
        require(0 < self.alpha < math.inf, "alpha must be above 0", self.alpha)
        require(0 <= self.dropout < 1, "dropout must be in [0, 1)", self.dropout)
        for name in ("target_modules", "modules_to_save"):
            value = getattr(self, name)
            require(not isinstance(value, str), f"{name} must be a list of names", value)

    @property
    def is_alone(self) -> bool:
        """Whether adapters are written without their base."""
        return not self.merged and self.quantization is None

    @property
    def scale(self) -> float:
        """What an adapter's product is multiplied by."""
        return self.alpha / (math.sqrt(self.r) if self.rslora else self.r)


ADAPTERS: Mapping[str, type] = {"lora": LoraConfig}
"""Kinds of adapters by their names in a config; an experiment passes them to ``main``."""
