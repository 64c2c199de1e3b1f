"""What a training run is told: frozen data, importable without torch.

A field whose metadata says `identity: False` decides how a run is carried out and never what comes
out of it. Everything else bears on the result, `tokens_per_forward` too: it changes rounding.
"""

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from steps.training.checks import require, require_count, set_choice
from steps.training.losses.base import (
    PreferenceLoss,
    ReferenceFreeLoss,
    ReferenceLoss,
    UnpairedLoss,
)
from steps.training.losses.dpo import Dpo
from steps.training.losses.kto import Kto
from steps.training.losses.simpo import Simpo


class Dtype(StrEnum):
    """The dtype of weights, activations and gradients; a log-softmax is never below float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class Schedule(StrEnum):
    """What the learning rate does once it is warm: stay, or fall towards zero.

    wsd: stay, and fall linearly over the last `decay_fraction` of the steps (warm-up, stable,
    decay; Hu et al. 2024, https://arxiv.org/abs/2404.06395).
    """

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    wsd = "wsd"


class Attention(StrEnum):
    """How examples are laid out for a forward.

    packed: one row without padding, the prompt of a pair once.
    padded: a row for each response; for models that read no packs.
    auto: packed where a check of the first examples finds that it gives what the model itself
        gives, padded otherwise; the run says which.
    """

    auto = "auto"
    packed = "packed"
    padded = "padded"


class ActivationCheckpointing(StrEnum):
    """What a layer computes again in the backward, so as not to keep it from the forward.

    selective: all but matrix products and attention, which costs little and halves what is kept;
        of models that are packed.
    full: everything, from the layer's input; a third more arithmetic.
    """

    none = "none"
    selective = "selective"
    full = "full"


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019). Biases and norm weights are not decayed.

    `decay_fraction`: the last share of all steps, over which the schedule `wsd` falls.
    """

    learning_rate: float = 5e-6
    schedule: Schedule = Schedule.linear
    warmup_steps: int = 0
    decay_fraction: float = 0.1
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        set_choice(self, "schedule", Schedule)
        rate, beta1, beta2 = self.learning_rate, self.adam_beta1, self.adam_beta2
        require(0 < rate < math.inf, "learning_rate must be above 0", rate)
        require(0 <= beta1 < 1, "adam_beta1 must be in [0, 1)", beta1)
        require(0 <= beta2 < 1, "adam_beta2 must be in [0, 1)", beta2)
        require(0 < self.adam_epsilon < 1, "adam_epsilon must be in (0, 1)", self.adam_epsilon)
        decay = self.weight_decay
        require(0 <= decay < math.inf, "weight_decay must not be negative", decay)
        require_count(self, "warmup_steps", least=0)
        fraction = self.decay_fraction
        require(0 < fraction <= 1, "decay_fraction must be in (0, 1]", fraction)
        if self.max_grad_norm is not None:
            require(self.max_grad_norm > 0, "max_grad_norm must be above 0", self.max_grad_norm)


@dataclass  # not frozen: OmegaConf could not put one where there was none
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) in place of all weights.

    An adapter adds `alpha / r · B A` to a matrix. `target_modules` names the matrices, as in
    ``[q_proj, v_proj]``; none means every linear layer but the head.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_count(self, "r")
        require(0 < self.alpha < math.inf, "alpha must be above 0", self.alpha)
        require(0 <= self.dropout < 1, "dropout must be in [0, 1)", self.dropout)


@dataclass(frozen=True)
class ReferenceConfig:
    """Reference logps. The first three must be those that the policy is trained with.

    A shard is what is kept when the computation is interrupted.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto
    groups_per_shard: int = field(default=256, metadata={"identity": False})

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "tokens_per_forward", "groups_per_shard")


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation loop: `epochs` passes over the examples, cut short after `max_steps`.

    `batch_size` counts the examples of one optimiser step, `tokens_per_forward` the tokens of one
    forward: examples are packed into so many, and a longer one is a forward by itself.

    With `master_weights`, a bfloat16 model is updated in float32; without, most updates are lost to
    rounding.

    Held-out examples, where there are any, are scored after every `eval_every_steps` steps.
    `keep_best` names what is the best model then, as in ``eval_loss``, and that is the one that is
    kept; otherwise it is the last. Training stops once `early_stop_patience` evaluations in a row
    have not bettered it (or `eval_loss`).

    A checkpoint is written when either interval has passed since the last one, and the newest
    `keep_last` are kept; null switches an interval off.
    """

    epochs: float = 1.0
    max_steps: int | None = None
    batch_size: int = 8
    tokens_per_forward: int = 1024
    seed: int = 0
    dtype: Dtype = Dtype.float32
    master_weights: bool = True
    attention: Attention = Attention.auto
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.selective
    lora: LoraConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval_every_steps: int | None = None
    keep_best: str | None = None
    early_stop_patience: int | None = None
    checkpoint_every_steps: int | None = field(default=None, metadata={"identity": False})
    checkpoint_every_seconds: float | None = field(default=300.0, metadata={"identity": False})
    keep_last: int = field(default=1, metadata={"identity": False})

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        set_choice(self, "activation_checkpointing", ActivationCheckpointing)
        require(
            0 < self.epochs <= 1e6, "epochs must be above 0, and a million at most", self.epochs
        )
        require_count(self, "seed", least=0)
        require_count(self, "batch_size", "tokens_per_forward", "keep_last")
        require_count(self, "max_steps", "eval_every_steps", "early_stop_patience", or_null=True)
        require_count(self, "checkpoint_every_steps", or_null=True)
        seconds = self.checkpoint_every_seconds
        if seconds is not None:
            require(seconds > 0, "checkpoint_every_seconds must be above 0 or null", seconds)
        if self.keep_best is not None:
            named = self.keep_best.startswith("eval_")
            require(named, "keep_best must be of an evaluation, as in eval_loss", self.keep_best)
        for name in ("keep_best", "early_stop_patience"):
            value = getattr(self, name)
            if self.eval_every_steps is None:
                require(value is None, f"{name} needs eval_every_steps", value)

    def reference(self) -> ReferenceConfig:
        """How the reference is computed so that it can be compared with the policy."""
        return ReferenceConfig(self.dtype, self.tokens_per_forward, self.attention)


@dataclass(frozen=True)
class PreferenceConfig(TrainConfig):
    """A run over pairs with any loss; `by_family` tells which steps that takes.

    With `check_start`, a policy that does not equal its reference before its first step is an
    error: then the two were computed from other tokens, from other models or in other ways.
    """

    loss: PreferenceLoss = field(default_factory=Dpo)
    check_start: bool = field(default=True, metadata={"identity": False})


@dataclass(frozen=True)
class DpoConfig(PreferenceConfig):
    """A run with a loss that compares the policy with a reference."""

    loss: ReferenceLoss = field(default_factory=Dpo)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.loss, ReferenceLoss):
            raise ValueError(
                f"the loss {self.loss.name} needs no reference, so it must not be given one; "
                "train it with train_reference_free and a ReferenceFreeConfig"
            )


@dataclass(frozen=True)
class ReferenceFreeConfig(PreferenceConfig):
    """A run over pairs with a loss that needs no reference."""

    loss: ReferenceFreeLoss = field(default_factory=Simpo)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.loss, ReferenceFreeLoss):
            raise ValueError(
                f"the loss {self.loss.name} compares the policy with a reference, which is not "
                "there; compute one with reference_logprobs, and train with train_dpo"
            )


@dataclass(frozen=True)
class KtoConfig(TrainConfig):
    """A run over single responses that are marked good or bad; `check_start` as for pairs."""

    loss: UnpairedLoss = field(default_factory=Kto)
    check_start: bool = field(default=True, metadata={"identity": False})


def by_family(config: PreferenceConfig) -> DpoConfig | ReferenceFreeConfig:
    """The same settings, of the type that says whether the loss wants a reference."""
    settings: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(PreferenceConfig)}
    if isinstance(config.loss, ReferenceLoss):
        return DpoConfig(**settings)
    return ReferenceFreeConfig(**settings)
