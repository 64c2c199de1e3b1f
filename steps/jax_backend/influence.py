"""The influence of training rows on the loss of held-out rows.

A gradient step on row z at rate η changes the loss of held-out rows by −η ∇ℓ(z) · ∇L to first order
(TracIn at one checkpoint: Pruthi et al. 2020, https://arxiv.org/abs/2002.08484). This product is
the derivative of ℓ(z) along the direction ∇L. So the gradient of a row need never be computed or
projected: with v = ∇L, computed once for all rows,

    ∇ℓ(z) · v  =  Σ over scored tokens s of  dℓ/d logp_s · (d/dε logp_s(w + ε v) at ε = 0)

where one forward-mode pass (`jax.jvp`) gives the second factor for all rows of a pack.

A projection instead computes the gradient of each row and keeps d numbers of it, so that gradients
can be compared with each other, and with those of other held-out rows, later (as LESS does: Xia et
al. 2024, https://arxiv.org/abs/2402.04333). Their products are those of the gradients in
expectation, with a standard deviation of at most √(2 / d) of the product of the two lengths.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from steps.jax_backend.architecture import read_architecture
from steps.jax_backend.config import InfluenceConfig
from steps.jax_backend.devices import accurate, on_host
from steps.jax_backend.jax_scorer import JaxScorer, make_ready, of_packs
from steps.jax_backend.jax_trainer import JaxTrainer, losses_of
from steps.jax_backend.param_tree import Tree
from steps.jax_backend.static_batches import RoundsBatch
from steps.losses.base import PreferenceLoss, ReferenceLoss
from steps.models.workplace import OnProgress, ignore_progress
from steps.scoring.examples import TokenGroup, read_pairs
from steps.scoring.logps import TokenLogps
from steps.training.config import OptimizerConfig
from steps.training.objectives import Objective, preference_objective
from steps.training.trainer import BatchLoss, GroupLosses

_ROWS_AT_A_TIME = 256


def score_rows(
    folder: Path,
    rows: Sequence[TokenGroup],
    held_out: Sequence[TokenGroup],
    config: InfluenceConfig,
    on_progress: OnProgress = ignore_progress,
) -> Tensor:
    """The influence of each pair of `rows` on the mean loss of `held_out`, for the weights of a
    model folder: float64 [n], positive if a step on the row lowers that loss.

    If the loss uses a reference, the model itself is the reference, as at the start of training.
    """
    with _opened(folder, [*rows, *held_out], config) as trainer:
        direction = gradient_of(trainer, _objective(trainer, held_out, config.loss))
        parts = []
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            some = rows[start : start + _ROWS_AT_A_TIME]
            parts.append(along(trainer, direction, _objective(trainer, some, config.loss)))
            on_progress(start + len(some), len(rows), {})
        return torch.cat(parts)


def project_rows(
    folder: Path,
    rows: Sequence[TokenGroup],
    config: InfluenceConfig,
    on_progress: OnProgress = ignore_progress,
) -> Tensor:
    """The gradient of each pair's loss, projected to `config.projection` numbers: [n, d]."""
    project = jax.jit(partial(projected, size=config.projection, seed=config.seed))
    found = []
    with _opened(folder, rows, config) as trainer:
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            objective = _objective(trainer, rows[start : start + _ROWS_AT_A_TIME], config.loss)
            for number, group in enumerate(objective.groups):
                loss = objective.batch_loss([number], None)
                trainer.forward_backward(trainer.prepare([group]), loss).result()
                found.append(np.asarray(project(trainer.take_gradient())))
                on_progress(len(found), len(rows), {})
    return torch.from_numpy(np.stack(found))


def projected(gradient: Tree, size: int, seed: int | Array) -> Array:
    """A count sketch (Weinberger et al. 2009, https://arxiv.org/abs/0902.2206): each number of a
    gradient is added, with a random sign, to a random one of `size` sums, whatever its dtype."""
    leaves = jax.tree.leaves(gradient)
    sums = jnp.zeros(size, accurate(leaves[0].dtype))
    for number, leaf in enumerate(leaves):
        of_place, of_sign = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
        place = jax.random.randint(of_place, leaf.shape, 0, size, jnp.int32)
        is_negative = jax.random.bits(of_sign, leaf.shape, jnp.uint8) & 1
        sums = sums.at[place].add(jnp.where(is_negative, -leaf, leaf))
    return sums


@contextmanager
def _opened(
    folder: Path, groups: Sequence[TokenGroup], config: InfluenceConfig
) -> Iterator[JaxTrainer]:
    scorer = JaxScorer(folder, config.dtype, config.tokens_per_forward, config.devices)
    trainer = JaxTrainer(scorer, OptimizerConfig())
    make_ready(scorer, folder, config.dtype, groups, config.check)
    try:
        yield trainer
    finally:
        trainer.close()


def read_rows_of(folder: Path, records: Iterable[Mapping[str, Any]]) -> Sequence[TokenGroup]:
    """Pairs of token ids that the model of a folder can read."""
    return read_pairs(records, read_architecture(folder).vocabulary)


def gradient_of(trainer: JaxTrainer, objective: Objective) -> Tree:
    """The gradient of the mean loss of all of an objective's examples."""
    batch = trainer.prepare(objective.groups)
    trainer.forward_backward(batch, _OneByOne.of(objective)).result()
    return trainer.take_gradient()


def along(trainer: JaxTrainer, direction: Tree, objective: Objective) -> Tensor:
    """The derivative of each example's loss along a direction, float64 [n]."""
    batch = trainer.prepare(objective.groups)
    assert isinstance(batch, RoundsBatch)
    loss = _OneByOne.of(objective)
    found = torch.zeros(len(objective.groups), dtype=torch.float64)
    for one in batch.rounds:
        arrays = trainer.scorer.on_devices(one.arrays)
        values, moved = map(on_host, trainer.scorer.derivative(direction, arrays))
        changes = of_packs(moved, one, batch.packs)
        scored = losses_of(values, one, batch, loss)
        for number, change, (_, of_logps) in zip(one.numbers, changes, scored, strict=True):
            spans = batch.packs[number].groups
            products = (of_logps * change.double()).split(
                [group.scored_stop - group.scored_start for group in spans]
            )
            found[batch.members[number]] = torch.stack([product.sum() for product in products])
    return found * len(objective.groups)  # their loss is a mean


@dataclass(frozen=True)
class _OneByOne:
    """The mean loss of pairs, each of which is a batch of its own. A likelihood term is a mean over
    the tokens of a batch, so within a larger one a pair's loss would depend on the others."""

    losses: Sequence[BatchLoss]

    @classmethod
    def of(cls, objective: Objective) -> Self:
        return cls([objective.batch_loss([n], None) for n in range(len(objective.groups))])

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        only = torch.zeros(1, dtype=torch.int64)
        found = [
            self.losses[member](logps.of(torch.tensor([place])), only)[0]
            for place, member in enumerate(members.tolist())
        ]
        return torch.cat(found) / len(self.losses), {}

    def to(self, device: torch.device) -> Self:
        return replace(self, losses=[loss.to(device) for loss in self.losses])


def _objective(
    trainer: JaxTrainer, groups: Sequence[TokenGroup], loss: PreferenceLoss
) -> Objective:
    alike = [replace(group, weight=1.0) for group in groups]
    if not isinstance(loss, ReferenceLoss):
        return preference_objective(alike, loss)
    own = trainer.logps(trainer.prepare(alike)).result().sequences
    return preference_objective(alike, loss, own.view(len(alike), -1))
