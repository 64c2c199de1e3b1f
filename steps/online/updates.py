"""The optimiser steps of one iteration.

The logps of the policy before the first update are what its ratios compare with. An iteration of
one update takes them from the forward that trains, where the method allows it: they are those of a
scoring pass, to the bit on a CPU, and the pass is saved.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from steps.models.ranks import Ranks
from steps.online.config import RlConfig
from steps.online.methods.experience import Experience
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps
from steps.scoring.scorer import Scorer
from steps.training.loop import finite
from steps.training.metrics import StepMetrics, sum_shares
from steps.training.schedule import learning_rate, noise
from steps.training.trainer import BatchLoss, GroupLosses, Trainer


def scores_first(config: RlConfig, ranks: Ranks) -> bool:
    """Whether the trainer scores all completions before it trains; otherwise `learn` adds the logps
    of the policy, if the method uses them. Of several ranks, each trains on a part only."""
    several = config.inner_epochs * config.minibatches > 1 or ranks.count > 1
    return config.method.weighs_by_policy and (several or config.method.needs_scores_first)


def logps_by_prompt(scorer: Trainer | Scorer, groups: Sequence[TokenGroup]) -> tuple[Tensor, ...]:
    """The logps of the prompts' completions, as `Experience` has them."""
    tokens = iter(scorer.logps(scorer.prepare(groups)).result().tokens)
    return tuple(torch.cat([next(tokens) for _ in g.responses]).double() for g in groups)


def learn(
    trainer: Trainer, config: RlConfig, experience: Experience, iteration: int
) -> tuple[StepMetrics, Experience]:
    """Update the policy with the experience of the 0-based `iteration`.

    Returns the number of `updates`, the means of the method's metrics over them, and
    `ratio/at_start`, the mean of |ratio − 1| in the first update, which is exactly 0 on a CPU, and
    everywhere if that update is the only one. An iteration without anything to learn has no
    updates. Also returns the experience, with the policy's logps before the first update if the
    method uses them. Raises FloatingPointError if a loss or a gradient is not finite.
    """
    rate = learning_rate(config.optimizer, iteration, config.horizon or iteration + 1)
    done: StepMetrics = {"updates": 0, "learning_rate": rate}
    if not experience.groups:
        return done, experience
    objective = config.method.objective(experience)
    lacks_logps = config.method.weighs_by_policy and experience.policy is None
    if objective is None:
        return done, _with_policy(trainer, experience, {}) if lacks_logps else experience
    updates: list[StepMetrics] = []
    for epoch in range(config.inner_epochs):
        draws = np.random.default_rng([config.seed, iteration, epoch])
        order = draws.permutation(len(objective.groups)).tolist()
        for indices in _cut(order, config.minibatches):
            groups = [objective.groups[index] for index in indices]
            batch = trainer.prepare(groups, noise(config.seed, iteration))
            loss = _Watched(objective.batch_loss(indices, None))
            result = trainer.forward_backward(batch, loss if lacks_logps else loss.loss)
            if lacks_logps:
                result.result()
                experience = _with_policy(trainer, experience, loss.by_row(groups))
            norm = trainer.optim_step(rate)
            shares = finite(result, iteration)
            values = sum_shares({"loss": shares.losses, **shares.metrics})
            updates.append({**values, "grad_norm": finite(norm, iteration)})
    means = {name: math.fsum(u[name] for u in updates) / len(updates) for name in updates[0]}
    if "ratio/deviation" in means:
        done["ratio/at_start"] = updates[0]["ratio/deviation"]
    return {**means, **done, "updates": len(updates)}, experience


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


def _with_policy(
    trainer: Trainer, experience: Experience, found: Mapping[str, Tensor]
) -> Experience:
    """The experience with the policy's logps: those found, and of other prompts by scoring them."""
    rest = [group for group in experience.groups if group.row not in found]
    scored = logps_by_prompt(trainer, rest) if rest else ()
    every = {**found, **{group.row: own for group, own in zip(rest, scored, strict=True)}}
    policy = tuple(every[group.row] for group in experience.groups)
    return experience.scored_by(policy, experience.reference)


def _cut(items: Sequence[int], parts: int) -> list[list[int]]:
    """Into `parts` of nearly equal length, of which none is empty."""
    edges = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[a:b]) for a, b in pairwise(edges) if a < b]
