"""Settings of training runs: frozen dataclasses, importable without torch.

A `detail_field` never changes the result of a run, only how the run is carried out. Every other
setting can change the result, also `tokens_per_forward`: it changes rounding.
"""

import math
import re
from collections.abc import Mapping
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
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.scoring.config import (
    Attention,
    ReferenceConfig,
    ScoringBackend,
    require_torch_below_float64,
)
from steps.shared.checks import holding, require, require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from steps.models.ranks import Ranks
    from steps.training.policy import Policy, Role


class Schedule(StrEnum):
    """How the learning rate changes after the warm-up: it stays constant, or falls towards zero.

    wsd: constant at first, then linear over the last `decay_fraction` of the steps (warm-up,
    stable, decay; Hu et al. 2024, https://arxiv.org/abs/2404.06395).
    """

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    wsd = "wsd"


class Algorithm(StrEnum):
    """How a gradient changes weights.

    adamw: Loshchilov and Hutter 2019.
    muon: Jordan 2024, https://kellerjordan.github.io/posts/muon, for matrices of numbered layers,
        and AdamW for the rest (embeddings, head, vectors). A matrix [A, B] moves by 0.2 √max(A, B)
        of the rate, about as far as with AdamW (Liu et al. 2025, https://arxiv.org/abs/2502.16982).
    lion: Chen et al. 2023, https://arxiv.org/abs/2302.06675; it wants 3 to 10 times lower rates.
    adafactor: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, as in PyTorch.
    sgd: stochastic gradient descent with momentum; weight decay is a part of the gradient.
    """

    adamw = "adamw"
    muon = "muon"
    lion = "lion"
    adafactor = "adafactor"
    sgd = "sgd"


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimiser and its rates. Biases and norm weights have no weight decay.

    A subclass with a `build` of its own is an optimiser of your own, for torch.

    Args:
        learning_rate: the highest learning rate.
        schedule: how the learning rate falls after the warm-up.
        warmup_steps: the number of steps over which the learning rate rises from 0.
        warmup_fraction: if above 0, the share of all steps, rounded up, over which the learning
            rate rises; warmup_steps then does not count.
        final_fraction: the share of the learning rate to which the schedule falls.
        decay_fraction: the share of steps, at the end, over which the schedule `wsd` falls.
        weight_decay: the weight decay of matrices.
        adam_beta1: the decay of the running mean of gradients.
        adam_beta2: the decay of the running mean of squared gradients.
        adam_epsilon: added to the square root of the mean of squared gradients.
        max_grad_norm: gradients with a larger norm are scaled down to this norm; null: never.
        eight_bit: keep the running means of a parameter of at least 4,096 numbers in 8 bits each,
            in place of 32, except those of embeddings; of AdamW and Lion, by bitsandbytes, on one
            device.
        algorithm: how a gradient changes weights; the betas are those of AdamW and Lion.
        momentum: the decay of the running mean of gradients in Muon and SGD.
        rates: parts of the learning rate, by regular expressions that are searched for in the names
            of parameters, as in {lora_B: 16, embed_tokens: 0.1}; the last that is found counts.
            Parameters with 0 are frozen.
        warmup_from_zero: of w warm-up steps, step s (from 0) has s / w of the rate, as in
            transformers and TRL: the first step changes nothing. By default, (s + 1) / (w + 1).
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
    eight_bit: bool = added_field(False, before=False)
    warmup_fraction: float = added_field(0.0, before=0.0)
    final_fraction: float = added_field(0.0, before=0.0)
    algorithm: Algorithm = added_field(Algorithm.adamw, before=Algorithm.adamw)
    momentum: float = added_field(0.95, before=0.95)
    rates: dict[str, float] = field(default_factory=dict, metadata={"before": {}})
    warmup_from_zero: bool = added_field(False, before=False)

    def __post_init__(self) -> None:
        set_choice(self, "schedule", Schedule)
        set_choice(self, "algorithm", Algorithm)
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)
        for pattern, part in self.rates.items():
            require(0 <= part < math.inf, f"rates.{pattern} must not be negative", part)
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"rates.{pattern} is no regular expression: {error}") from error
        few = self.algorithm in (Algorithm.adamw, Algorithm.lion) or not self.eight_bit
        require(few, "eight_bit is for adamw and lion", str(self.algorithm))
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
        for name in ("warmup_fraction", "final_fraction"):
            share = getattr(self, name)
            require(0 <= share < 1, f"{name} must be in [0, 1)", share)
        if self.schedule is Schedule.constant:
            rule = "final_fraction needs a schedule that falls, and schedule is constant"
            require(self.final_fraction == 0, rule, self.final_fraction)
        if self.max_grad_norm is not None:
            require(self.max_grad_norm > 0, "max_grad_norm must be above 0", self.max_grad_norm)

    @property
    def means(self) -> int:
        """How many numbers the optimiser keeps for a parameter, about."""
        few = {Algorithm.lion: 1, Algorithm.sgd: 1, Algorithm.adafactor: 0}
        return few.get(self.algorithm, 2)

    def build(self, parameters: "Mapping[str, nn.Parameter]") -> "list[Optimizer]":
        """Optimisers of torch, which together update all parameters. The rate of a group of theirs
        is multiplied by its `part`, 1 by default."""
        from steps.training.optimizer import build_optimizers

        return build_optimizers(parameters, self)

    def part_of(self, name: str) -> float:
        """The part of the learning rate with which the parameter `name` is updated."""
        found = [part for pattern, part in self.rates.items() if re.search(pattern, name)]
        return found[-1] if found else 1.0


@dataclass  # not frozen: OmegaConf cannot replace None by a frozen dataclass
class TrainingBackend:
    """The engine that trains a model; `ScoringBackend` is its counterpart for scoring.

    is_of_torch: whether it trains a module of torch in place. Only then there are `lora.dora`,
        `lora.modules_to_save` and `ema_decay`.
    has_normalisers: whether there is `z_loss_coef`.
    is_recorded: whether what it makes is somebody else's, and not promised to come out again.
    """

    name: ClassVar[str]
    is_of_torch: ClassVar[bool] = False
    has_normalisers: ClassVar[bool] = False
    is_recorded: ClassVar[bool] = False

    @property
    def scoring(self) -> ScoringBackend:
        """The scoring backend for the reference of a model that this backend trains."""
        raise NotImplementedError

    def require_settings(self, config: "UpdateConfig") -> None:
        """Raise ValueError for settings that this backend lacks, such as an optimiser."""

    def open_policy(
        self, folder: Path, config: "TrainConfig", ranks: "Ranks", dropout: bool, role: "Role"
    ) -> "Policy":
        """Load the model of a folder for training. With `dropout`, the model's dropout is on."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """How a model is updated, in training on examples and in online training.

    A checkpoint is written when either of the two intervals has passed since the last checkpoint.

    Args:
        tokens_per_forward: the most tokens of one forward. Examples are packed up to this number; a
            longer example gets its own forward. A larger number takes more memory.
        seed: the seed of the order of examples and of dropout.
        dtype: the dtype of weights and activations.
        master_weights: update a bfloat16 model in float32; without this, rounding loses most
            updates.
        attention: how a forward lays out examples: packed without padding, padded, or packed only
            if the model supports it.
        activation_checkpointing: what a layer recomputes in the backward, to save memory.
        lora: train low-rank adapters in place of all weights.
        router_aux_loss_coef: the weight of the load-balancing loss of a mixture of experts; by
            default the coefficient in the model's own config; 0 switches the loss off.
        optimizer: how gradients update weights.
        gather_once: on several devices, gather weights and reduce gradients once a step, not for
            each forward, which takes the memory of the whole weights and gradients on every device;
            null: if that is at most a quarter of a device's memory.
        deterministic: on a GPU, use only operations that PyTorch calls deterministic, so that two
            runs on equal machines give equal bits; they are slower, and an operation that has no
            such form is an error. Processors always do.
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
    gather_once: bool | None = detail_field(None)
    deterministic: bool = detail_field(False)
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
        for name in self._bitsandbytes():
            require_torch_below_float64(name, self.dtype, getattr(self, "backend", None))

    def _bitsandbytes(self) -> list[str]:
        """The names of the settings in use that need bitsandbytes."""
        rounded, eight_bit = self.quantization is not None, self.optimizer.eight_bit
        return holding({"lora.quantization": rounded, "optimizer.eight_bit": eight_bit})

    def packages_in_use(self) -> tuple[str, ...]:
        """The optional packages that these settings need. A plan asks before anything runs."""
        return ("bitsandbytes",) if self._bitsandbytes() else ()

    def require_processes(self, count: int) -> None:
        """Raise ValueError if a run with these settings cannot be spread over `count` processes. A
        plan asks before anything runs."""
        if count > 1 and (reasons := self._for_one_process()):
            raise ValueError(f"{reasons[0]}; use one process")

    def _for_one_process(self) -> list[str]:
        """The reasons, if there are any, why a run with these settings takes one process."""
        reasons = {
            "weights of 4 bits are not shared by several processes": self.quantization is not None,
            "optimizer.eight_bit is for one device": self.optimizer.eight_bit,
            "optimizer.algorithm=adafactor is for one device": self.optimizer.algorithm
            is Algorithm.adafactor,
        }
        return holding(reasons)

    @property
    def quantization(self) -> Quantization | None:
        """How the weights under adapters are rounded; None if they are not."""
        return None if self.lora is None else self.lora.quantization

    def reference(self) -> ReferenceConfig:
        """The settings with which a reference must be computed for this policy."""
        settings = (self.dtype, self.tokens_per_forward, self.attention)
        return ReferenceConfig(*settings, quantization=self.quantization)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(UpdateConfig):
    """Training on a fixed set of examples.

    Args:
        epochs: the number of passes over the examples.
        max_steps: end the run after this many optimiser steps, even within an epoch.
        batch_size: the examples of one optimiser step, over all devices.
        batch_sizes: other sizes by the number of steps after which they begin, as in {500: 16}; the
            steps before have `batch_size`. A share of an epoch is then one of its examples, not of
            its steps.
        eval_every_steps: evaluate the held-out examples, if there are any, every this many steps.
        keep_best: the metric by which the best evaluated model is kept, such as ``eval_loss``; null
            keeps the last model.
        early_stop_patience: end the run after this many consecutive evaluations without an
            improvement of `keep_best` (or of `eval_loss`).
        snapshot_every_steps: also write the model as it is after every so many steps, in folders
            ``step-N``, which are parts of the artifact.
        ema_decay: the model, and what is evaluated and kept on the way, is the exponential moving
            average of the weights after each step, with this decay, such as 0.99; on torch and
            ``functional``.
        z_loss_coef: the coefficient of a further loss, the mean over scored tokens of the square of
            log Σ_v exp z_v, which holds the logits z near normalised ones (PaLM: Chowdhery et al.
            2022, https://arxiv.org/abs/2204.02311, takes 1e-4); 0: none.
        log_rows: also write ``rows.parquet``: loss, metrics and scored tokens of each row in each
            step, by row id. The state of checkpoints grows by them.
        profile_steps: write a Chrome trace of each of these steps (from 1), by torch.profiler,
            beside the log of the step's attempt; on torch and ``functional``.
        compile_layers: compile the layers of a packed model, and the softmax of its head, with
            torch.compile, on one device. A step is faster on a GPU, the first ones take a minute,
            and rounding differs.
        backend: the engine that trains; null: transformers' model on torch.
    """

    epochs: float = 1.0
    max_steps: int | None = None
    batch_size: int = 8
    eval_every_steps: int | None = None
    keep_best: str | None = None
    early_stop_patience: int | None = None
    compile_layers: bool = added_field(False, before=False)
    backend: TrainingBackend | None = added_field(None, before=None)
    snapshot_every_steps: int | None = added_field(None, before=None)
    ema_decay: float | None = added_field(None, before=None)
    z_loss_coef: float = added_field(0.0, before=0.0)
    log_rows: bool = added_field(False, before=False)
    profile_steps: list[int] = field(default_factory=list, metadata={"identity": False})
    batch_sizes: dict[int, int] = field(default_factory=dict, metadata={"before": {}})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.epochs <= 1e6, "epochs must be above 0, and a million at most", self.epochs
        )
        require_count(self, "batch_size")
        require_count(self, "max_steps", "eval_every_steps", "early_stop_patience", or_null=True)
        require_count(self, "snapshot_every_steps", or_null=True)
        if self.keep_best is not None:
            named = self.keep_best.startswith("eval_")
            require(named, "keep_best must be of an evaluation, as in eval_loss", self.keep_best)
        if self.ema_decay is not None:
            require(0 < self.ema_decay < 1, "ema_decay must be in (0, 1)", self.ema_decay)
            rule = "ema_decay needs backend=null (torch) or functional"
            require(self.backend is None or self.backend.is_of_torch, rule, self.backend)
        for begins, size in self.batch_sizes.items():
            rule = "batch_sizes must be whole numbers above 0, by whole numbers of steps above 0"
            whole = type(begins) is int and type(size) is int
            require(whole and min(begins, size) > 0, rule, f"{begins}: {size}")
        if self.profile_steps and self.backend is not None:
            rule = "profile_steps needs backend=null (torch) or functional"
            require(self.backend.is_of_torch, rule, self.backend)
        z_loss = self.z_loss_coef
        require(0 <= z_loss < math.inf, "z_loss_coef must not be negative", z_loss)
        if z_loss and self.backend is not None:
            rule = "z_loss_coef needs backend=null (torch), functional or jax"
            require(self.backend.has_normalisers, rule, self.backend)
        for name in ("keep_best", "early_stop_patience"):
            value = getattr(self, name)
            if self.eval_every_steps is None:
                require(value is None, f"{name} needs eval_every_steps", value)
        if self.compile_layers:
            self._require_compilable()
        if self.backend is not None:
            self.backend.require_settings(self)
        if self.lora is not None and self.backend is not None:
            more = {
                "lora.dora": self.lora.dora,
                "lora.modules_to_save": bool(self.lora.modules_to_save),
            }
            for name in holding(more):
                rule = f"{name} needs backend=null (torch) or functional"
                require(self.backend.is_of_torch, rule, self.backend)

    def _for_one_process(self) -> list[str]:
        compiled = ["compile_layers is for one device"] if self.compile_layers else []
        return [*super()._for_one_process(), *compiled]

    def _require_compilable(self) -> None:
        rule = "compile_layers needs backend=null (torch)"
        require(self.backend is None, rule, self.backend)
        rule = "compile_layers does not go with attention=padded; leave one of them out"
        require(self.attention is not Attention.padded, rule, True)
        rule = "compile_layers does not go with lora.quantization; leave one of them out"
        require(self.quantization is None, rule, True)
        rule = "compile_layers needs lora.dropout=0, as dropout by example is not compiled"
        require(self.lora is None or self.lora.dropout == 0, rule, self.lora and self.lora.dropout)

    def reference(self) -> ReferenceConfig:
        """The settings with which a reference must be computed for this policy."""
        backend = None if self.backend is None else self.backend.scoring
        return replace(super().reference(), backend=backend)


@dataclass(frozen=True)
class PreferenceConfig(TrainConfig):
    """Training on pairs with any loss; `by_family` converts it to the config of the right step.

    Args:
        loss: the loss that training minimises.
        check_start: a policy that does not equal its reference before its first step is an error:
            then the two were computed from other tokens, from other models or in other ways.
        follow_every: after every so many steps the reference becomes the policy as it is then
            (TR-DPO's hard update, Gorbatovski et al. 2024, https://arxiv.org/abs/2404.09656);
            null: it stays what it was.
        follow_alpha: below 1, the reference becomes α · policy + (1 − α) · reference instead, for
            every weight (TR-DPO's soft update). The host then holds the reference's weights.
    """

    loss: PreferenceLoss = field(default_factory=Dpo)
    check_start: bool = detail_field(True)
    follow_every: int | None = added_field(None, before=None)
    follow_alpha: float = added_field(1.0, before=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_loss(self.loss, PreferenceLoss, "Dpo()")
        require_count(self, "follow_every", or_null=True)
        if self.loss.needs_alignment:
            _require_alignment(self)
        if self.loss.needs_divergence:
            _require_divergence(self)
        if self.follow_alpha != 1:
            _require_mixture(self)
        if self.follow_every is None:
            return
        if not isinstance(self.loss, ReferenceLoss):
            raise ValueError(f"follow_every is set, but the loss {self.loss.name} has no reference")
        if self.loss.needs_tokens:
            raise ValueError(
                f"the loss {self.loss.name} looks at single tokens, of which a reference that "
                "follows the policy keeps none; leave out follow_every"
            )

    def _for_one_process(self) -> list[str]:
        beside = f"the loss {self.loss.name} runs its reference beside the policy on one device"
        mixes = "follow_alpha below 1 mixes the weights of one device"
        reasons = {mixes: self.follow_alpha < 1, beside: self.loss.needs_divergence}
        return [*super()._for_one_process(), *holding(reasons)]


def _require_loss(loss: object, family: type, such_as: str) -> None:
    """Raise ValueError for another value than a loss of the `family`, as Python code may give."""
    require(isinstance(loss, family), f"loss must be a {family.__name__} such as {such_as}", loss)


def _require_mixture(config: PreferenceConfig) -> None:
    """Raise ValueError if a run cannot mix the weights of policy and reference."""
    alpha = config.follow_alpha
    require(0 < alpha <= 1, "follow_alpha must be above 0, and 1 at most", alpha)
    faults = {
        "needs follow_every": config.follow_every is None,
        "mixes whole weights; leave out lora": config.lora is not None,
        "needs backend=null": config.backend is not None,
        "mixes from the policy's own first weights, so it needs check_start=true": (
            not config.check_start
        ),
    }
    for fault in holding(faults):
        raise ValueError(f"follow_alpha={alpha:g} {fault}")


def _require_alignment(config: PreferenceConfig) -> None:
    """Raise ValueError if a run cannot compute what a loss with `needs_alignment` uses."""
    name = config.loss.name
    if config.backend is not None:
        raise ValueError(f"the loss {name} with align=true needs backend=null")
    if config.loss.needs_batch:
        raise ValueError(f"the loss {name} combines align=true with a loss over whole batches")


def _require_divergence(config: PreferenceConfig) -> None:
    """Raise ValueError if a run cannot have its reference beside the policy."""
    missing = {
        "backend=null": config.backend is not None,
        "compile_layers=false": config.compile_layers,
        "z_loss_coef=0": config.z_loss_coef > 0,
        "follow_every=null": config.follow_every is not None,
        "check_start=true, as the policy starts from it": not config.check_start,
    }
    for needed in holding(missing):
        raise ValueError(
            f"the loss {config.loss.name} runs a frozen reference beside the policy, so it needs "
            f"{needed}"
        )


@dataclass(frozen=True)
class DpoConfig(PreferenceConfig):
    """Training on pairs with a loss that compares the policy with a reference."""

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
    """Training on pairs with a loss without a reference."""

    loss: ReferenceFreeLoss = field(default_factory=Simpo)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_loss(self.loss, PreferenceLoss, "Simpo()")
        if not isinstance(self.loss, ReferenceFreeLoss):
            raise ValueError(
                f"the loss {self.loss.name} compares the policy with a reference, which is not "
                "there; compute one with reference_logprobs, and train with train_dpo"
            )


@dataclass(frozen=True)
class KtoConfig(TrainConfig):
    """Training on single responses that are labelled good or bad.

    Args:
        loss: the loss that training minimises.
        check_start: raise an error if policy and reference differ before the first step.
    """

    loss: UnpairedLoss = field(default_factory=Kto)
    check_start: bool = detail_field(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_loss(self.loss, UnpairedLoss, "Kto()")


def by_family(config: PreferenceConfig) -> DpoConfig | ReferenceFreeConfig:
    """The same settings as a `DpoConfig` if the loss has a reference, else a
    `ReferenceFreeConfig`."""
    kind = DpoConfig if isinstance(config.loss, ReferenceLoss) else ReferenceFreeConfig
    settings: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(kind)}
    return kind(**settings)
