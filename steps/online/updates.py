"""The optimiser steps of one iteration, and π_old: the policy before the first of them.

The logps of π_old are what ratios compare with. An iteration of one update takes them from the
forward that trains, where the method allows it: they are those of a scoring pass, to the bit on a
CPU, and the pass is saved.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from steps.distillation.online_teacher import OnlineTeacher
from steps.models.ranks import Ranks
from steps.online.config import RlConfig
from steps.online.methods.experience import Experience, apart, mismatch
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps
from steps.scoring.scorer import Scorer
from steps.training.loop import finite
from steps.training.metrics import StepMetrics, sum_shares
from steps.training.objectives import Objective
from steps.training.schedule import learning_rate, noise
from steps.training.trainer import BatchLoss, GroupLosses, Trainer


@dataclass(frozen=True)
class Learner:
    """The trainer, the settings, who else trains, and `reference` and `teacher`, if the method or
    `log_kl` needs them."""

    trainer: Trainer
    config: RlConfig
    ranks: Ranks
    reference: Scorer | None = None
    teacher: OnlineTeacher | None = None


def learn(
    learner: Learner, drawn: Experience, iteration: int, refuse: Callable[[], None]
) -> tuple[StepMetrics, tuple[Tensor, ...] | None]:
    """Update the policy with what was drawn for the 0-based `iteration`.

    Returns the number of `updates`, the means of the method's metrics over them, and
    `ratio/at_start`, the mean of |ratio − 1| in the first update, which is exactly 0 on a CPU, and
    everywhere if that update is the only one. An iteration without anything to learn has no
    updates. If the method uses the logps of π_old, also returns them, as `Experience` has them, and
    its `mismatch` with the sampler. With `log_kl`, π_old is `apart` from the reference.

    Args:
        refuse: called before the error if the mismatch is above `max_mismatch`.

    Raises:
        FloatingPointError: a loss or a gradient is not finite.
        ValueError: the mismatch is above `max_mismatch`.
    """
    trainer, config, groups = learner.trainer, learner.config, drawn.groups
    rate = learning_rate(config.optimizer, iteration, config.horizon or iteration + 1)
    done: StepMetrics = {"updates": 0, "learning_rate": rate}
    if not groups:
        return done, None
    # One after the other: of several ranks, all must communicate for the same scorer at a time.
    old = logps_of(trainer, groups) if scores_first(config, learner.ranks) else None
    reference = learner.reference and logps_of(learner.reference, groups)
    compared = reference if config.method.needs_reference else None
    objective = config.method.objective(replace(drawn, policy=old, reference=compared))
    lacks_old = config.method.weighs_by_policy and old is None
    if lacks_old and objective is None:
        old, lacks_old = logps_of(trainer, groups), False
    agreement = _agreement(config, old, drawn, iteration, refuse)
    is_asked = config.log_kl and not config.method.weighs_by_policy
    before = logps_of(trainer, groups) if is_asked else None
    updates: list[StepMetrics] = []
    for indices in _batches(config, objective, iteration):
        assert objective is not None
        taken = [objective.groups[index] for index in indices]
        batch = trainer.prepare(taken, noise(config.seed, iteration))
        loss = _Watched(objective.batch_loss(indices, None))
        result = trainer.forward_backward(batch, loss if lacks_old else loss.loss)
        if lacks_old:  # this is the only update
            result.result()
            found = loss.by_row(taken)
            rest = [group for group in groups if group.row not in found]
            found |= zip((group.row for group in rest), logps_of(trainer, rest), strict=True)
            old = tuple(found[group.row] for group in groups)
            agreement = _agreement(config, old, drawn, iteration, refuse)
        norm = trainer.optim_step(rate)
        shares = finite(result, iteration)
        values = sum_shares({"loss": shares.losses, **shares.metrics})
        updates.append({**values, "grad_norm": finite(norm, iteration)})
    names = updates[0] if updates else ()
    means = {name: math.fsum(u[name] for u in updates) / len(updates) for name in names}
    if "ratio/deviation" in means:
        done["ratio/at_start"] = updates[0]["ratio/deviation"]
    if config.log_kl and reference is not None and (start := before or old) is not None:
        means |= apart(start, reference)
    return {**agreement, **means, **done, "updates": len(updates)}, old


def scores_first(config: RlConfig, ranks: Ranks) -> bool:
    """Whether the trainer scores all completions before it trains, if the method needs π_old. Of
    several ranks, each trains on a part only."""
    several = config.inner_epochs * config.minibatches > 1 or ranks.count > 1
    return config.method.weighs_by_policy and (several or config.method.needs_scores_first)


def logps_of(scorer: Trainer | Scorer, groups: Sequence[TokenGroup]) -> tuple[Tensor, ...]:
    """The logps of the prompts' completions, as `Experience` has them."""
    found = scorer.logps(scorer.prepare(groups)).result().tokens if groups else ()
    tokens = iter(each if each.ndim == 1 else each[:, 0] for each in found)
    return tuple(torch.cat([next(tokens) for _ in g.responses]).double() for g in groups)


def _agreement(
    config: RlConfig,
    old: tuple[Tensor, ...] | None,
    drawn: Experience,
    iteration: int,
    refuse: Callable[[], None],
) -> StepMetrics:
    if old is None:
        return {}
    found = mismatch(old, drawn.sampler)
    if config.max_mismatch is not None and not found["mismatch/k3"] <= config.max_mismatch:
        refuse()
        raise ValueError(
            f"iteration {iteration + 1}: log-probabilities of trainer and sampler differ by "
            f"{found['mismatch/k3']:.3g} nats a token, and max_mismatch is "
            f"{config.max_mismatch:g}; look at the sampler's weights, or use off_policy=truncate"
        )
    return found


def _batches(config: RlConfig, objective: Objective | None, iteration: int) -> Iterator[list[int]]:
    """The examples of each update: every inner epoch shuffles them, and cuts them into parts of
    nearly equal length, of which none is empty."""
    for epoch in range(config.inner_epochs if objective else 0):
        count = len(objective.groups) if objective else 0
        draws = np.random.default_rng([config.seed, iteration, epoch])
        order = draws.permutation(count).tolist()
        edges = [count * part // config.minibatches for part in range(config.minibatches + 1)]
        yield from (order[a:b] for a, b in pairwise(edges) if a < b)


@dataclass(frozen=True)
class _Watched:
    """A batch's loss that keeps the logps that it is given, and to which members they belong."""

    loss: BatchLoss
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        self.seen.append((members, logps.tokens.detach()))
        return self.loss(logps, members)

    def to(self, device: torch.device) -> Self:
        return replace(self, loss=self.loss.to(device))

    def by_row(self, groups: Sequence[TokenGroup]) -> dict[str, Tensor]:
        """The logps of each of the batch's groups, on the host."""
        found = {}
        for members, tokens in self.seen:
            own = [groups[member] for member in members.tolist()]
            counts = [sum(response.num_scored for response in group.responses) for group in own]
            rows = (group.row for group in own)
            found |= dict(zip(rows, tokens.cpu().split(counts), strict=True))
        return found
