"""What a run minimises: its examples, and the loss of any batch of them, for each family of losses.

A batch's loss holds what belongs to its examples (reference logps, counts, weights, labels), so it
can be asked for the losses of any few of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from steps.training.backends.protocol import BatchLoss, GroupLosses
from steps.training.examples import TokenGroup
from steps.training.losses.base import (
    PairLogps,
    PreferenceLoss,
    Shares,
    Totals,
    UnpairedLogps,
    UnpairedLoss,
)
from steps.training.losses.sft import Sft


@dataclass(frozen=True)
class Objective:
    """What is trained on, or evaluated, and the loss.

    groups: the examples.
    batch_loss: the loss of the examples with these indices as one batch; given the logps of their
        baseline groups, float64 [n], where there are any.
    baseline_groups: one for each example, scored without gradients just before its batch.
    """

    groups: Sequence[TokenGroup]
    batch_loss: Callable[[Sequence[int], Tensor | None], BatchLoss]
    baseline_groups: Sequence[TokenGroup] | None = None


def sft_objective(groups: Sequence[TokenGroup]) -> Objective:
    """The mean over response tokens of their negative log-likelihood."""
    tokens = _scored(groups)
    weights = _weights(groups)

    def batch_loss(indices: Sequence[int], _: Tensor | None) -> "_SftBatch":
        chosen = list(indices)
        return _SftBatch(_totals(tokens[chosen]), weights[chosen])

    return Objective(groups, batch_loss)


def preference_objective(
    groups: Sequence[TokenGroup], loss: PreferenceLoss, reference: Tensor | None = None
) -> Objective:
    """The mean of `loss` over pairs; `reference` has its logps, float64 [n, 2], in their order."""
    tokens = _scored(groups)
    weights = _weights(groups)

    def batch_loss(indices: Sequence[int], _: Tensor | None) -> "_PairBatch":
        chosen = list(indices)
        return _PairBatch(
            loss,
            _totals(tokens[chosen]),
            weights[chosen],
            tokens[chosen],
            None if reference is None else reference[chosen],
        )

    return Objective(groups, batch_loss)


def unpaired_objective(
    groups: Sequence[TokenGroup],
    loss: UnpairedLoss,
    reference: Tensor,
    baseline_groups: Sequence[TokenGroup],
    baseline_reference: Tensor,
) -> Objective:
    """The mean of `loss` over single responses.

    Args:
        reference: the reference's logps of them, float64 [n].
        baseline_groups: what the loss's baseline is found on, one for each response.
        baseline_reference: the reference's logps of those, float64 [n].
    """
    tokens = _scored(groups)[:, 0]
    weights = _weights(groups)
    desirable = torch.tensor([bool(group.label) for group in groups])

    def batch_loss(indices: Sequence[int], logps: Tensor | None) -> "_UnpairedBatch":
        chosen = list(indices)
        baseline = None
        if logps is not None:
            baseline = loss.baseline(logps - baseline_reference[chosen])
        totals = _totals(tokens[chosen])
        return _UnpairedBatch(
            loss,
            replace(totals, desirable=int(desirable[chosen].sum())),
            weights[chosen],
            tokens[chosen],
            desirable[chosen],
            reference[chosen],
            baseline,
        )

    return Objective(groups, batch_loss, baseline_groups if loss.needs_baseline else None)


class _OnDevice:
    """A dataclass of tensors and of what is no tensor."""

    def to(self, device: torch.device) -> Self:
        tensors = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)  # pyright: ignore[reportArgumentType]
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)  # pyright: ignore[reportArgumentType, reportReturnType]


@dataclass(frozen=True)
class _SftBatch(_OnDevice):
    totals: Totals
    weights: Tensor

    def __call__(self, logps: Tensor, members: Tensor) -> GroupLosses:
        return _of(Sft().shares(logps[:, 0], self.totals, self.weights[members]))


@dataclass(frozen=True)
class _PairBatch(_OnDevice):
    loss: PreferenceLoss
    totals: Totals
    weights: Tensor
    tokens: Tensor
    reference: Tensor | None

    def __call__(self, logps: Tensor, members: Tensor) -> GroupLosses:
        policy, tokens = logps.unbind(1), self.tokens[members].unbind(1)
        reference = () if self.reference is None else self.reference[members].unbind(1)
        pairs = PairLogps(*policy, *tokens, *reference)
        return _of(self.loss.shares(pairs, self.totals, self.weights[members]))


@dataclass(frozen=True)
class _UnpairedBatch(_OnDevice):
    loss: UnpairedLoss
    totals: Totals
    weights: Tensor
    tokens: Tensor
    desirable: Tensor
    reference: Tensor
    baseline: Tensor | None

    def __call__(self, logps: Tensor, members: Tensor) -> GroupLosses:
        responses = UnpairedLogps(
            logps[:, 0], self.tokens[members], self.reference[members], self.desirable[members]
        )
        weights = self.weights[members]
        return _of(self.loss.shares(responses, self.totals, self.baseline, weights))


def _of(shares: Shares) -> GroupLosses:
    return shares.losses, dict(shares.metrics)


def _scored(groups: Sequence[TokenGroup]) -> Tensor:
    """How many tokens of each response are scored, int64 [n, k]."""
    return torch.tensor([[r.num_scored for r in group.responses] for group in groups])


def _weights(groups: Sequence[TokenGroup]) -> Tensor:
    return torch.tensor([group.weight for group in groups], dtype=torch.float64)


def _totals(tokens: Tensor) -> Totals:
    """Of a batch whose responses have so many scored tokens, [n] or [n, k], the chosen first."""
    chosen = tokens if tokens.ndim == 1 else tokens[:, 0]
    return Totals(examples=len(tokens), tokens=int(chosen.sum()))
