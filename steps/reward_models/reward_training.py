"""Train a reward model: from token records of pairs to the folder of a sequence classifier.

The loop, trainer, checkpoints and ranks are the same as for a preference loss. Different are the
model's output (`head_scores`), the model itself (`classifier`) and the loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from steps.models.adapters import ALL_ARE_SAVED, add_adapter, takes_adapter
from steps.models.config import LoraConfig
from steps.models.value_head import value_head
from steps.models.workplace import Workplace
from steps.reward_models.bradley_terry import BradleyTerry
from steps.reward_models.classifier import padding_of, set_padding, start_reward_model
from steps.reward_models.config import RewardConfig
from steps.reward_models.head_scores import VALUES, backward_values
from steps.scoring.examples import TokenGroup, joined, read_pairs
from steps.scoring.logps import TokenLogps
from steps.training.objectives import Objective, weights_of
from steps.training.policy import Role, open_policy
from steps.training.run import Records, Run
from steps.training.trainer import GroupLosses, TrainedReadout

if TYPE_CHECKING:
    from peft import PeftModel

Pairs = tuple[Sequence[TokenGroup], Tensor]
"""Groups (chosen, rejected) of whole responses, and the margin of each, float64 [n]."""


def run_reward_training(
    init: Path,
    records: Records,
    config: RewardConfig,
    place: Workplace,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """Train a reward model from the folder `init`, a language model or a reward model.

    `records` are in the format of `examples.read_pairs`. Writes the model's folder and
    metrics.jsonl, resumes from the checkpoints in scratch, and returns `metrics.summarise` of the
    run. Dropout is off. Adapters are merged into the weights and not saved separately, because they
    do not include the head.

    Raises:
        ValueError: as in `read_pairs`, `start_reward_model` and `padding_of`.
    """
    policy = open_policy(init, config, place.ranks, role=REWARD_MODEL)
    pairs = read_reward_pairs(records, policy.vocabulary, config.loss)
    others = None
    if held_out is not None:
        others = read_reward_pairs(held_out, policy.vocabulary, config.loss)
    groups = joined(pairs[0], others[0] if others else ())
    ends = {response.ids[-1] for group in groups for response in group.responses}
    padding = padding_of(init, ends, config.pad_token)  # a token that is none is told before
    run = Run(init, policy, pairs[0], config, place, others=others[0] if others else ())
    summary = run.train(
        reward_objective(pairs, config.loss),
        None if others is None else reward_objective(others, config.loss),
        loss=config.loss.name,
    )
    if place.ranks.is_first and (told := set_padding(place.output, padding)):
        summary["notices"] = [*summary.get("notices", ()), told]
    return summary


def read_reward_pairs(records: Records, vocabulary: int, loss: BradleyTerry) -> Pairs:
    """The pairs of token records, with their margins under `loss`."""
    margins: list[float] = []

    def noted() -> Iterator[Mapping[str, Any]]:
        for record in records:
            margins.append(loss.margin(record))
            yield record

    groups = read_pairs(noted(), vocabulary, whole=True)
    return groups, torch.tensor(margins, dtype=torch.float64)


def reward_objective(pairs: Pairs, loss: BradleyTerry) -> Objective:
    """The mean of `loss` over pairs."""
    groups, margins = pairs
    weights = weights_of(groups)

    def batch_loss(indices: Sequence[int], _: TokenLogps | None) -> "_RewardBatch":
        chosen = list(indices)
        return _RewardBatch(loss, len(chosen), weights[chosen], margins[chosen])

    return Objective(groups, batch_loss)


def adapt(model: PreTrainedModel, lora: LoraConfig, seed: int) -> "PeftModel":
    """Add adapters to the linear layers of the model's body. The head is trained in full."""
    linear = [
        name
        for name, m in model.base_model.named_modules()
        if isinstance(m, nn.Linear | Conv1D) and takes_adapter(m)
    ]
    saved = [f".{name}." for name in lora.modules_to_save]
    targets = lora.target_modules or [n for n in linear if not any(s in f".{n}." for s in saved)]
    if not targets:
        raise ValueError(ALL_ARE_SAVED)
    adapted = add_adapter(model, replace(lora, target_modules=targets), seed, task=None)
    value_head(model).weight.requires_grad_(True)
    return adapted


REWARD_MODEL = Role(
    start_reward_model,
    AutoModelForSequenceClassification,
    adapt,
    TrainedReadout(VALUES.read, VALUES.recorded, VALUES.probe, backward_values),
    keeps_adapter=False,
)


@dataclass(frozen=True)
class _RewardBatch:
    """The loss of one batch of `pairs` pairs; a `trainer.BatchLoss` of scores."""

    loss: BradleyTerry
    pairs: int
    weights: Tensor
    margins: Tensor

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        """`logps` holds the score of each response, in place of one token's logp."""
        chosen, rejected = logps.sums().unbind(1)
        weights, margins = self.weights[members], self.margins[members]
        shares = self.loss.shares(chosen, rejected, margins, weights, self.pairs)
        return shares.losses, dict(shares.metrics)

    def to(self, device: torch.device) -> Self:
        """The same loss with its tensors on `device`."""
        weights, margins = (x.to(device, non_blocking=True) for x in (self.weights, self.margins))
        return replace(self, weights=weights, margins=margins)
