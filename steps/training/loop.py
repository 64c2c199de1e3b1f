"""The optimisation loop, written once for every loss.

A loss is an `Objective`: how much each example weighs, and the summed loss of any few of them. The
loop divides by the weight of the whole batch, known before the step, so the gradient is that of the
batch's mean however it is cut into micro-batches: a preference loss is a mean over pairs (weight 1
each), a likelihood is a mean over response tokens (weight = their number).

Every step is a function of the weights, the optimiser state and its own number: the examples, the
rate and the dropout noise all follow from (seed, step). That is what makes a resumed run end with
the bits of an uninterrupted one.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from steps.training.batches import batch_indices, steps_per_epoch, total_steps
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig
from steps.training.metrics import OnProgress, StepMetrics, ignore_progress
from steps.training.optimization import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    set_learning_rate,
)


@dataclass(frozen=True)
class Objective:
    """What is trained on, and the loss.

    rows: a label for each example, used in errors.
    tokens: what each example adds to `num_tokens`.
    weights: what each example contributes to the denominator of the batch's mean.
    sums: of the examples with these indices, the summed loss (a scalar with a gradient) and the
        sums of what is logged beside it.
    """

    rows: Sequence[str]
    tokens: Sequence[int]
    weights: Sequence[int]
    sums: Callable[[Sequence[int]], tuple[Tensor, dict[str, Tensor]]]


def train(
    model: PreTrainedModel,
    objective: Objective,
    config: TrainConfig,
    checkpoints: Checkpoints,
    on_progress: OnProgress = ignore_progress,
) -> list[StepMetrics]:
    """Trains `model` in place, from the latest checkpoint if there is one; returns all steps' log.

    Each step logs `step` (1-based), `epoch`, `loss`, `grad_norm` (before clipping),
    `learning_rate`, `num_tokens` (so far) and what the objective adds. Dropout is on if the model
    is in training mode. Seeds torch's global generators. Raises FloatingPointError, naming the
    step, if a loss or a gradient is not finite.
    """
    _require_full_precision(model)
    num_examples = len(objective.rows)
    optimizer = build_optimizer(model, config.optimizer)
    log = checkpoints.restore(model, optimizer)
    total = total_steps(num_examples, config.batch_size, config.epochs, config.max_steps)
    saved_at, saved_step = time.monotonic(), len(log)
    for step in range(len(log), total):
        indices = batch_indices(num_examples, config.batch_size, step, config.seed)
        _seed_noise(config.seed, step)
        set_learning_rate(optimizer, learning_rate(config.optimizer, step, total))
        metrics = _update(model, optimizer, objective, indices, config, step)
        log.append(
            {
                "step": step + 1,
                "epoch": (step + 1) / steps_per_epoch(num_examples, config.batch_size),
                **metrics,
                "learning_rate": learning_rate(config.optimizer, step, total),
                "num_tokens": (log[-1]["num_tokens"] if log else 0)
                + sum(objective.tokens[i] for i in indices),
            }
        )
        done = step + 1
        # The last state becomes the model folder; a checkpoint of it would only be thrown away.
        if done < total and _is_due(config, done - saved_step, time.monotonic() - saved_at):
            checkpoints.save(done, model, optimizer, log)
            saved_at, saved_step = time.monotonic(), done
        on_progress(done, total, log[-1])
    return log


def _update(
    model: PreTrainedModel,
    optimizer: Optimizer,
    objective: Objective,
    indices: Sequence[int],
    config: TrainConfig,
    step: int,
) -> StepMetrics:
    """One optimiser step on the examples `indices`; returns the batch's means."""
    optimizer.zero_grad(set_to_none=True)
    weight = sum(objective.weights[i] for i in indices)
    sums: dict[str, float] = {"loss": 0.0}
    for start in range(0, len(indices), config.micro_batch_size):
        micro_batch = indices[start : start + config.micro_batch_size]
        loss, others = objective.sums(micro_batch)
        rows = [objective.rows[i] for i in micro_batch]
        _require_finite(loss.item(), f"the loss of {rows}", step)
        (loss / weight).backward()
        for name, value in {"loss": loss.detach(), **others}.items():
            sums[name] = sums.get(name, 0.0) + value.item()
    grad_norm = clip_gradients(model.parameters(), config.optimizer.max_grad_norm)
    _require_finite(grad_norm, "the gradient norm", step)
    optimizer.step()
    means = {name: value / weight for name, value in sums.items()}
    return {"loss": means.pop("loss"), "grad_norm": grad_norm, **means}


def _require_full_precision(model: PreTrainedModel) -> None:
    """At the rates of preference training, updates of bfloat16 weights round to nothing."""
    if any(p.dtype == torch.bfloat16 for p in model.parameters() if p.requires_grad):
        raise ValueError(
            "training bfloat16 weights loses most updates to rounding, and float32 master weights "
            "are not there yet; set dtype=float32"
        )


def _require_finite(value: float, what: str, step: int) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(
            f"step {step + 1}: {what} is {value}. Lower the learning rate, or look at these rows "
            "if it is the first step; no weights were changed by this step."
        )


def _is_due(config: TrainConfig, steps: int, seconds: float) -> bool:
    every_steps, every_seconds = config.checkpoint_every_steps, config.checkpoint_every_seconds
    return (every_steps is not None and steps >= every_steps) or (
        every_seconds is not None and seconds >= every_seconds
    )


def _seed_noise(seed: int, step: int) -> None:
    state = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))
