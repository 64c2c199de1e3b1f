"""What a training run is told: frozen data, importable without torch.

A `detail_field` decides how a run is carried out and never what comes out of it. Everything else
bears on the result, `tokens_per_forward` too: it changes rounding.
"""

import math
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from steps.losses.base import (
    PreferenceLoss,
    ReferenceFreeLoss,
    ReferenceLoss,
    UnpairedLoss,
)
from steps.losses.dpo import Dpo
from steps.losses.kto import Kto
from steps.losses.simpo import Simpo
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig
from steps.scoring.config import Attention, ReferenceConfig, ScoringBackend
from steps.shared.checks import require, require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy


class Schedule(StrEnum):
    """What the learning rate does once it is warm: stay, or fall towards zero.

    wsd: stay, and fall linearly over the last `decay_fraction` of the steps (warm-up, stable,
    decay; Hu et al. 2024, https://arxiv.org/abs/2404.06395).
    """

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    wsd = "wsd"


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019). Biases and norm weights are not decayed.

    Args:
        learning_rate: the highest learning rate.
        schedule: how the learning rate falls after the warm-up.
        warmup_steps: steps over which the learning rate rises from 0.
        decay_fraction: the last share of all steps, over which the schedule `wsd` falls.
        weight_decay: of matrices.
        adam_beta1: the decay of the mean of gradients.
        adam_beta2: the decay of the mean of their squares.
        adam_epsilon: added to the root of the latter.
        max_grad_norm: gradients of a larger norm are scaled down to it; null: never.
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
class TrainingBackend:
    """What runs a model that is trained, as `ScoringBackend` one that is scored with."""

    name: ClassVar[str]

    @property
    def scoring(self) -> ScoringBackend:
        """The same, for what is compared with the model that is trained."""
        raise NotImplementedError

    def open_policy(
        self, folder: Path, config: "TrainConfig", ranks: "Ranks", dropout: bool
    ) -> "Policy":
        """The model of a folder, ready to be trained; with `dropout`, its own acts."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """How a model is updated, whatever it learns from.

    A checkpoint is written when either interval has passed since the last one.

    Args:
        tokens_per_forward: the most tokens of one forward; examples are packed into so many, and a
            longer one is a forward by itself. More takes more memory.
        seed: of the order of examples and of dropout.
        dtype: the dtype of weights and activations.
        master_weights: a bfloat16 model is updated in float32; without, most updates are lost to
            rounding.
        attention: how examples are laid out for a forward: packed without padding, padded, or
            whichever is right.
        activation_checkpointing: what a layer computes again in the backward, to save memory.
        lora: adapters in place of all weights.
        router_aux_loss_coef: what the load-balancing loss of a mixture of experts counts for: by
            default the coefficient of the model's own config; 0 switches it off.
        optimizer: the optimiser.
        checkpoint_every_steps: steps between checkpoints; null: no such interval.
        checkpoint_every_seconds: seconds between checkpoints; null: no such interval.
        keep_last: how many of the newest checkpoints are kept.
    """

    tokens_per_forward: int = 1024
    seed: int = 0
    dtype: Dtype = Dtype.float32
    master_weights: bool = True
    attention: Attention = Attention.auto
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.selective
    lora: LoraConfig | None = None
    router_aux_loss_coef: float | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint_every_steps: int | None = detail_field(None)
    checkpoint_every_seconds: float | None = detail_field(300.0)
    keep_last: int = detail_field(1)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        set_choice(self, "activation_checkpointing", ActivationCheckpointing)
        require_count(self, "seed", least=0)
        require_count(self, "tokens_per_forward", "keep_last")
        require_count(self, "checkpoint_every_steps", or_null=True)
        router = self.router_aux_loss_coef
        if router is not None:
            require(0 <= router < math.inf, "router_aux_loss_coef must not be negative", router)
        seconds = self.checkpoint_every_seconds
        if seconds is not None:
            require(seconds > 0, "checkpoint_every_seconds must be above 0 or null", seconds)

    def reference(self) -> ReferenceConfig:
        """How the reference is computed so that it can be compared with the policy."""
        return ReferenceConfig(self.dtype, self.tokens_per_forward, self.attention)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(UpdateConfig):
    """The optimisation loop over examples.

    Args:
        epochs: passes over the examples.
        max_steps: cuts the run short after so many optimiser steps.
        batch_size: the examples of one optimiser step, over all devices.
        eval_every_steps: held-out examples, where there are any, are scored after so many steps
            each.
        keep_best: the evaluation whose best model is kept, as in ``eval_loss``; otherwise the last
            model is.
        early_stop_patience: training stops once so many evaluations in a row have not bettered
            `keep_best` (or `eval_loss`).
        backend: what trains; without one, transformers' model on torch.
    """

    epochs: float = 1.0
    max_steps: int | None = None
    batch_size: int = 8
    eval_every_steps: int | None = None
    keep_best: str | None = None
    early_stop_patience: int | None = None
    backend: TrainingBackend | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.epochs <= 1e6, "epochs must be above 0, and a million at most", self.epochs
        )
        require_count(self, "batch_size")
        require_count(self, "max_steps", "eval_every_steps", "early_stop_patience", or_null=True)
        if self.keep_best is not None:
            named = self.keep_best.startswith("eval_")
            require(named, "keep_best must be of an evaluation, as in eval_loss", self.keep_best)
        for name in ("keep_best", "early_stop_patience"):
            value = getattr(self, name)
            if self.eval_every_steps is None:
                require(value is None, f"{name} needs eval_every_steps", value)

    def reference(self) -> ReferenceConfig:
        """How the reference is computed so that it can be compared with the policy."""
        backend = None if self.backend is None else self.backend.scoring
        return replace(super().reference(), backend=backend)


@dataclass(frozen=True)
class PreferenceConfig(TrainConfig):
    """A run over pairs with any loss; `by_family` tells which steps that takes.

    Args:
        loss: what is minimised.
        check_start: a policy that does not equal its reference before its first step is an error:
            then the two were computed from other tokens, from other models or in other ways.
        follow_every: after every so many steps the reference becomes the policy as it is then
            (TR-DPO's hard update, Gorbatovski et al. 2024, https://arxiv.org/abs/2404.09656);
            null: it stays what it was.
    """

    loss: PreferenceLoss = field(default_factory=Dpo)
    check_start: bool = detail_field(True)
    follow_every: int | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count(self, "follow_every", or_null=True)
        if self.follow_every is None:
            return
        if not isinstance(self.loss, ReferenceLoss):
            raise ValueError(f"follow_every is set, but the loss {self.loss.name} has no reference")
        if self.loss.needs_tokens:
            raise ValueError(
                f"the loss {self.loss.name} looks at single tokens, of which a reference that "
                "follows the policy keeps none; leave out follow_every"
            )


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
class ReferenceFreeConfig(TrainConfig):
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
    """A run over single responses that are marked good or bad.

    Args:
        loss: what is minimised.
        check_start: as for pairs: a policy that does not begin as its reference is an error.
    """

    loss: UnpairedLoss = field(default_factory=Kto)
    check_start: bool = detail_field(True)


def by_family(config: PreferenceConfig) -> DpoConfig | ReferenceFreeConfig:
    """The same settings, of the type that says whether the loss wants a reference."""
    settings: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(TrainConfig)}
    settings["loss"] = config.loss
    if isinstance(config.loss, ReferenceLoss):
        return DpoConfig(
            **settings, check_start=config.check_start, follow_every=config.follow_every
        )
    return ReferenceFreeConfig(**settings)
