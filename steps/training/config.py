"""What a training run is told: frozen data, importable without torch.

A field whose metadata says `identity: False` decides how a run is carried out and never what comes
out of it. Everything else bears on the result, the micro-batch size too: it changes rounding.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum


class Dtype(StrEnum):
    """The dtype of weights, activations and gradients; a log-softmax is never below float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class Schedule(StrEnum):
    """What the learning rate does once it is warm: stay, or fall towards zero."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019). Biases and norm weights are not decayed."""

    learning_rate: float = 5e-6
    schedule: Schedule = Schedule.linear
    warmup_steps: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        rate, beta1, beta2 = self.learning_rate, self.adam_beta1, self.adam_beta2
        _require(0 < rate < math.inf, "learning_rate must be above 0", rate)
        _require(0 <= beta1 < 1, "adam_beta1 must be in [0, 1)", beta1)
        _require(0 <= beta2 < 1, "adam_beta2 must be in [0, 1)", beta2)
        _require(0 < self.adam_epsilon < 1, "adam_epsilon must be in (0, 1)", self.adam_epsilon)
        decay = self.weight_decay
        _require(0 <= decay < math.inf, "weight_decay must not be negative", decay)
        _require(self.warmup_steps >= 0, "warmup_steps must not be negative", self.warmup_steps)
        if self.max_grad_norm is not None:
            _require(self.max_grad_norm > 0, "max_grad_norm must be above 0", self.max_grad_norm)


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation loop: `epochs` passes over the examples, cut short after `max_steps`.

    `batch_size` counts the examples of one optimiser step, `micro_batch_size` those of one forward.
    A checkpoint is written when either interval has passed since the last one; null switches an
    interval off.
    """

    epochs: float = 1.0
    max_steps: int | None = None
    batch_size: int = 8
    micro_batch_size: int = 1
    seed: int = 0
    dtype: Dtype = Dtype.float32
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint_every_steps: int | None = field(default=None, metadata={"identity": False})
    checkpoint_every_seconds: float | None = field(default=300.0, metadata={"identity": False})

    def __post_init__(self) -> None:
        _require(
            0 < self.epochs <= 1e6, "epochs must be above 0, and a million at most", self.epochs
        )
        _require(self.batch_size >= 1, "batch_size must be at least 1", self.batch_size)
        _require(
            self.micro_batch_size >= 1, "micro_batch_size must be at least 1", self.micro_batch_size
        )
        _require(self.seed >= 0, "seed must not be negative", self.seed)
        if self.max_steps is not None:
            _require(self.max_steps >= 1, "max_steps must be at least 1 or null", self.max_steps)
        for name in ("checkpoint_every_steps", "checkpoint_every_seconds"):
            interval = getattr(self, name)
            if interval is not None:
                _require(interval > 0, f"{name} must be above 0 or null", interval)


@dataclass(frozen=True)
class DpoLoss:
    """`beta` scales the implicit reward; `label_smoothing`: the share of labels taken as wrong."""

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _require(0 < self.beta < math.inf, "beta must be above 0", self.beta)
        _require(
            0 <= self.label_smoothing < 0.5,
            "label_smoothing must be in [0, 0.5)",
            self.label_smoothing,
        )


@dataclass(frozen=True)
class DpoConfig(DpoLoss, TrainConfig):
    """A DPO run: the loop's settings and the loss's, side by side."""

    def __post_init__(self) -> None:
        DpoLoss.__post_init__(self)
        TrainConfig.__post_init__(self)


@dataclass(frozen=True)
class ReferenceConfig:
    """Reference logps; `dtype` must be the one the policy is trained in.

    A shard is what is kept when the computation is interrupted.
    """

    dtype: Dtype = Dtype.float32
    micro_batch_size: int = 1
    micro_batches_per_shard: int = field(default=32, metadata={"identity": False})

    def __post_init__(self) -> None:
        _require(
            self.micro_batch_size >= 1, "micro_batch_size must be at least 1", self.micro_batch_size
        )
        _require(
            self.micro_batches_per_shard >= 1,
            "micro_batches_per_shard must be at least 1",
            self.micro_batches_per_shard,
        )


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")
