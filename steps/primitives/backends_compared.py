"""Compare two backends on a batch of one's own: log-probabilities, loss, and gradients by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from steps.models.ranks import ALONE
from steps.scoring.examples import TokenGroup
from steps.training.config import Algorithm, OptimizerConfig, Schedule, TrainConfig
from steps.training.objectives import Objective, sft_objective
from steps.training.policy import open_policy

_RATE = 2.0**20
"""At such a rate, a step of SGD leaves nothing of the weights but the gradient, up to rounding."""


@dataclass(frozen=True)
class Apart:
    """How far two backends are apart on one batch.

    losses: of each of them.
    logp: the largest difference of a token's log-probability, in nats; `row` has that token.
    gradients: by the name of a parameter, the norm of the difference of the two gradients as a
        part of the norm of the first one, the largest first.
    """

    losses: tuple[float, float]
    logp: float
    row: str
    gradients: dict[str, float]

    def __str__(self) -> str:
        head = f"loss {self.losses[0]:.9g} {self.losses[1]:.9g}, logps differ by {self.logp:.2g}"
        lines = [f"{off:10.2e}  {name}" for name, off in self.gradients.items()]
        return "\n".join([f"{head} at most (row {self.row})", *lines])


def compare_backends(
    folder: Path,
    groups: Sequence[TokenGroup],
    one: TrainConfig,
    other: TrainConfig,
    objective: Callable[[Sequence[TokenGroup]], Objective] = sft_objective,
) -> Apart:
    """What the model of `folder` gives for one batch by the backends of two configs, before any
    training. Of the configs, backend, dtype, attention, lora and the like count, and no optimiser.

    Args:
        groups: the batch, as `scoring.examples.read_demonstrations` or `read_pairs` reads it.
        objective: the loss; by default the mean of −log π over tokens of single responses.
    """
    found = [_of(folder, groups, config, objective(groups)) for config in (one, other)]
    (loss, logps, gradients), (its_loss, its_logps, its_gradients) = found
    offs = [(a - b).abs().max().item() for a, b in zip(logps, its_logps, strict=True)]
    worst = max(range(len(offs)), key=offs.__getitem__)
    norms = {
        name: ((g - its_gradients[name]).norm() / g.norm().clamp(min=1e-300)).item()
        for name, g in gradients.items()
    }
    ordered = dict(sorted(norms.items(), key=lambda item: -item[1]))
    return Apart((loss, its_loss), offs[worst], groups[worst].row, ordered)


def _of(
    folder: Path, groups: Sequence[TokenGroup], config: TrainConfig, objective: Objective
) -> tuple[float, list[Tensor], dict[str, Tensor]]:
    """Loss, logps of tokens for each group, and gradients; float64, on the host."""
    sgd = OptimizerConfig(
        learning_rate=_RATE,
        schedule=Schedule.constant,
        algorithm=Algorithm.sgd,
        momentum=0.0,
        max_grad_norm=None,
    )
    policy = open_policy(folder, replace(config, optimizer=sgd), ALONE)
    trainer = policy.trainer
    try:
        policy.make_ready(groups)
        batch = trainer.prepare(groups)
        scored = trainer.logps(batch).result().tokens
        before = trainer.get_weights().result()
        result = trainer.forward_backward(batch, objective.batch_loss(range(len(groups)), None))
        loss = result.result().losses.sum().item()
        trainer.optim_step(_RATE).result()
        after = trainer.get_weights().result()
    finally:
        trainer.close()
    gradients = {n: (w.double() - after[n].double()) / _RATE for n, w in before.items()}
    return loss, [torch.as_tensor(tokens).double().cpu() for tokens in scored], gradients
