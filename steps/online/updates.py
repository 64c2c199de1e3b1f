"""The optimiser steps of one iteration."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from steps.online.config import RlConfig
from steps.online.methods.experience import Experience
from steps.training.loop import finite
from steps.training.metrics import StepMetrics, sum_shares
from steps.training.schedule import learning_rate, noise
from steps.training.trainer import Trainer


def learn(
    trainer: Trainer, config: RlConfig, experience: Experience, iteration: int
) -> StepMetrics:
    """Update the policy with the experience of the 0-based `iteration`.

    Returns the number of `updates`, the means of the method's metrics over them, and
    `ratio/at_start`, the mean of |ratio − 1| in the first update, which is exactly 0 on a CPU. An
    iteration without anything to learn has no updates. Raises FloatingPointError if a loss or a
    gradient is not finite.
    """
    rate = learning_rate(config.optimizer, iteration, config.horizon or iteration + 1)
    done: StepMetrics = {"updates": 0, "learning_rate": rate}
    objective = config.method.objective(experience) if experience.groups else None
    if objective is None:
        return done
    updates: list[StepMetrics] = []
    for epoch in range(config.inner_epochs):
        draws = np.random.default_rng([config.seed, iteration, epoch])
        order = draws.permutation(len(objective.groups)).tolist()
        for indices in _cut(order, config.minibatches):
            groups = [objective.groups[index] for index in indices]
            batch = trainer.prepare(groups, noise(config.seed, iteration))
            result = trainer.forward_backward(batch, objective.batch_loss(indices, None))
            norm = trainer.optim_step(rate)
            shares = finite(result, iteration)
            values = sum_shares({"loss": shares.losses, **shares.metrics})
            updates.append({**values, "grad_norm": finite(norm, iteration)})
    means = {name: math.fsum(u[name] for u in updates) / len(updates) for name in updates[0]}
    if "ratio/deviation" in means:
        done["ratio/at_start"] = updates[0]["ratio/deviation"]
    return {**means, **done, "updates": len(updates)}


def _cut(items: Sequence[int], parts: int) -> list[list[int]]:
    """Into `parts` of nearly equal length, of which none is empty."""
    edges = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[a:b]) for a, b in pairwise(edges) if a < b]
