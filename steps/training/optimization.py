"""AdamW, its learning rate as a pure function of the step, and gradient clipping."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from steps.training.config import OptimizerConfig, Schedule


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate used at 0-based `step` of `total_steps`.

    Warm-up over w steps uses (step + 1) / (w + 1) of the full rate, which step w is the first to
    use. The schedules then fall from the full rate towards the zero that step `total_steps` would
    have. So no step, the first and the last included, is spent on a rate of zero.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    remaining = (total_steps - step) / (total_steps - config.warmup_steps)
    match config.schedule:
        case Schedule.constant:
            return config.learning_rate
        case Schedule.linear:
            return config.learning_rate * remaining
        case Schedule.cosine:
            return config.learning_rate * (1 - math.cos(math.pi * remaining)) / 2


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """Fused AdamW over all parameters; only matrices are decayed, not biases and norm weights."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2]},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Makes `rate` the rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scales the gradients down to a global 2-norm of `max_norm`; returns the norm they had."""
    limit = math.inf if max_norm is None else max_norm
    return torch.nn.utils.clip_grad_norm_(parameters, limit).item()
