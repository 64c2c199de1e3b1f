"""The objective of a run: its examples and the loss of any batch, for each family of losses.

A batch's loss contains the data of its examples (reference logps, counts, weights, labels), so it
can compute the losses of any subset of the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from steps.losses.base import (
    Loss,
    PairLogps,
    PreferenceLoss,
    SftLoss,
    Shares,
    Totals,
    UnpairedLogps,
    UnpairedLoss,
)
from steps.losses.imitation.sft import Sft
from steps.models.sharded_tensors import below
from steps.scoring.examples import TokenGroup, facts_of
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of
from steps.training.trainer import BatchLoss, DivergentLogps, GroupLosses


@dataclass(frozen=True)
class Objective:
    """Examples for training or evaluation, and their loss.

    groups: the examples.
    batch_loss: the loss of the examples with these indices as one batch; given the logps of their
        baseline groups, where there are any.
    baseline_groups: one for each example, scored without gradients just before its batch.
    aligned: the scores of baseline groups are `scoring.logps.aligned_logps`.
    diverges: the loss is given `DivergentLogps`.
    continued: a batch's loss that knows what was logged of the step before.
    following: how the reference follows the policy, if it does.
    width: how many numbers the readout gives for a token.
    """

    groups: Sequence[TokenGroup]
    batch_loss: Callable[[Sequence[int], TokenLogps | None], BatchLoss]
    baseline_groups: Sequence[TokenGroup] | None = None
    continued: Callable[[BatchLoss, Mapping[str, float]], BatchLoss] | None = None
    following: "Following | None" = None
    aligned: bool = False
    diverges: bool = False
    width: int = 2


@dataclass(frozen=True)
class Following:
    """A reference that moves towards the policy after every `every` steps.

    referred: a batch's loss against other logps of its examples, float64 [n, responses].
    alpha: the weight of the policy in the mixture that the reference becomes; 1: it becomes the
        policy.
    """

    every: int
    referred: Callable[[BatchLoss, Tensor], BatchLoss]
    alpha: float = 1.0


Weights = dict[str, Tensor]
"""The trained parameters of a model by name, on the host."""


class MovingReference:
    """The logps of a :class:`Following` reference, step by step.

    Those of all batches of an interval are computed when it begins, by the weights that the
    reference has then. So no second model is on the device, and an interrupted run needs only
    `state`: a few numbers, and the reference's weights if these are a mixture.

    Args:
        steps: of the whole run.
        score: logps by the present weights of the examples of a 0-based step.
        policy: a copy of the present weights.
        put: gives the model other weights, without a change of what the optimiser updates.
        known: `state` of the run that is gone on from.
    """

    def __init__(
        self,
        following: Following,
        steps: int,
        score: Callable[[int], Tensor],
        policy: Callable[[], Weights],
        put: Callable[[Weights], None],
        known: Mapping[str, Tensor],
    ) -> None:
        self._every, self._alpha, self._steps = following.every, following.alpha, steps
        self._score, self._policy, self._put = score, policy, put
        self._mixture = below(known, _WEIGHT)
        self._logps = {name: known[name] for name in known if not name.startswith(_WEIGHT)}

    @property
    def state(self) -> Weights:
        """What a checkpoint must bring along."""
        return {**self._logps, **{f"{_WEIGHT}{n}": t for n, t in self._mixture.items()}}

    def of_step(self, step: int) -> Tensor | None:
        """Those of a 0-based step before its update; None as long as the reference has not moved.

        Raises ValueError where a checkpoint did not bring them along.
        """
        if step == 0 and self._alpha < 1:
            weights = self._policy()
            self._mixture = {n: w.to(_accurate(w), copy=True) for n, w in weights.items()}
        if step < self._every:
            return None
        if step % self._every == 0:
            self._move(range(step, min(step + self._every, self._steps)))
        if f"{step}" not in self._logps:
            raise ValueError(f"the checkpoint has no reference of step {step + 1}; delete it")
        return self._logps[f"{step}"]

    def _move(self, interval: range) -> None:
        """Move the reference, and score the steps of an interval by it."""
        if self._alpha == 1:
            self._logps = {f"{each}": self._score(each) for each in interval}
            return
        policy = self._policy()
        if policy.keys() != self._mixture.keys():
            raise ValueError("the checkpoint has not the weights of the reference; delete it")
        self._mixture = {
            name: (1 - self._alpha) * weight + self._alpha * policy[name].to(weight.dtype)
            for name, weight in self._mixture.items()
        }
        self._put(self._mixture)
        self._logps = {f"{each}": self._score(each) for each in interval}
        self._put(policy)


_WEIGHT = "weights/"


def _accurate(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def sft_objective(groups: Sequence[TokenGroup], loss: SftLoss = Sft()) -> Objective:
    """The mean of `loss` over response tokens."""
    tokens = lengths_of(groups)
    weights = weights_of(groups)

    def batch_loss(indices: Sequence[int], _: TokenLogps | None) -> "_SftBatch":
        chosen = list(indices)
        return _SftBatch(loss, _totals(tokens[chosen]), weights[chosen])

    return Objective(groups, batch_loss)


def preference_objective(
    groups: Sequence[TokenGroup],
    loss: PreferenceLoss,
    reference: Tensor | None = None,
    reference_tokens: TokenLogps | None = None,
    follow_every: int | None = None,
    follow_alpha: float = 1.0,
) -> Objective:
    """The mean of `loss` over pairs.

    Args:
        reference: the reference's logps of them, float64 [n, 2], in their order.
        reference_tokens: the same token by token, for a loss that `needs_tokens`.
        follow_every: the reference moves after every so many steps.
        follow_alpha: the weight of the policy in what it becomes.
    """
    lengths = lengths_of(groups)
    weights = weights_of(groups)

    def batch_loss(indices: Sequence[int], logps: TokenLogps | None) -> "_PairBatch":
        chosen = list(indices)
        return _PairBatch(
            loss,
            _totals(lengths[chosen]),
            weights[chosen],
            lengths[chosen],
            None if reference is None else reference[chosen],
            None if reference_tokens is None else reference_tokens.of(torch.tensor(chosen)).tokens,
            None if logps is None or loss.needs_alignment else logps.sums(),
            logps.sums() if logps is not None and loss.needs_alignment else None,
        )

    def continued(batch: BatchLoss, last: Mapping[str, float]) -> BatchLoss:
        assert isinstance(batch, _PairBatch)
        return replace(batch, last=last)

    def referred(batch: BatchLoss, reference: Tensor) -> BatchLoss:
        assert isinstance(batch, _PairBatch)
        return replace(batch, reference=reference)

    following = None
    if follow_every is not None:
        following = Following(follow_every, referred, follow_alpha)
    plain = Objective(groups, batch_loss, following=following, diverges=loss.needs_divergence)
    if loss.needs_alignment:
        return replace(plain, baseline_groups=groups, aligned=True)
    if not loss.needs_batch:
        return plain
    return replace(plain, baseline_groups=groups, continued=continued)


def unpaired_objective(
    groups: Sequence[TokenGroup],
    loss: UnpairedLoss,
    reference: Tensor,
    baseline_groups: Sequence[TokenGroup],
    baseline_reference: Tensor,
) -> Objective:
    """The mean of `loss` over single responses.

    Args:
        reference: the reference's logps of the responses, float64 [n].
        baseline_groups: the groups for the loss's baseline, one for each response.
        baseline_reference: the reference's logps of the baseline groups, float64 [n].
    """
    tokens = lengths_of(groups)[:, 0]
    weights = weights_of(groups)
    desirable = torch.from_numpy(facts_of(groups)["label"].copy())

    def batch_loss(indices: Sequence[int], logps: TokenLogps | None) -> "_UnpairedBatch":
        chosen = list(indices)
        baseline = None
        if logps is not None:
            baseline = loss.baseline(logps.sums()[:, 0] - baseline_reference[chosen])
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


class OnDevice:
    """A mixin for dataclasses that moves their tensors to a device."""

    def to(self, device: torch.device) -> Self:
        tensors = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)  # pyright: ignore[reportArgumentType]
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)  # pyright: ignore[reportArgumentType, reportReturnType]


def at_step(batch: BatchLoss, step: int, steps: int) -> BatchLoss:
    """The loss of a batch at a 0-based step of a run of so many, if it changes with time."""
    loss = getattr(batch, "loss", None)
    if not isinstance(batch, OnDevice) or not isinstance(loss, Loss):
        return batch
    now = loss.at(step, steps)
    return batch if now is loss else replace(batch, loss=now)  # pyright: ignore


@dataclass(frozen=True)
class NormalisedBatch(OnDevice):
    """A batch's loss + coefficient · 1/tokens Σ weight · (log Σ_v exp z_v)² over its scored tokens,
    z being the logits (Chowdhery et al. 2022, PaLM, section 5). It logs that mean, without weights,
    as `z_loss`.

    weights: of the batch's groups, float64 [n].
    """

    loss: BatchLoss
    coefficient: float
    tokens: int
    weights: Tensor

    @classmethod
    def of(cls, loss: BatchLoss, coefficient: float, groups: Sequence[TokenGroup]) -> Self:
        return cls(loss, coefficient, int(lengths_of(groups).sum()), weights_of(groups))

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        assert logps.others is not None
        losses, metrics = self.loss(logps, members)
        of_responses = TokenLogps(logps.others[:, 0].square(), logps.lengths).sums()
        means = of_responses.sum(dim=1) / self.tokens
        whole = losses + self.coefficient * self.weights[members] * means
        return whole, {**metrics, "z_loss": means.detach()}

    def to(self, device: torch.device) -> Self:
        return replace(super().to(device), loss=self.loss.to(device))


@dataclass(frozen=True)
class _SftBatch(OnDevice):
    loss: SftLoss
    totals: Totals
    weights: Tensor

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        def of_responses(values: Tensor) -> Tensor:
            return TokenLogps(values, logps.lengths).sums()[:, 0]

        losses = of_responses(self.loss.token_losses(logps.tokens))
        hits = None if logps.hits is None else of_responses(logps.hits)
        return _of(self.loss.shares(losses, self.totals, self.weights[members], hits))


@dataclass(frozen=True)
class _PairBatch(OnDevice):
    """The loss of a batch of pairs. `reference_tokens` [S], and `policy` [n, 2], the logps before
    the step, are set only for losses that need them."""

    loss: PreferenceLoss
    totals: Totals
    weights: Tensor
    lengths: Tensor
    reference: Tensor | None
    reference_tokens: Tensor | None = None
    policy: Tensor | None = None
    aligned: Tensor | None = None
    last: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        pairs = self._pairs(logps.sums(), members)
        if self.reference_tokens is not None:
            theirs = TokenLogps(self.reference_tokens, self.lengths).of(members, len(logps.tokens))
            pairs = replace(pairs, tokens=logps.tokens, reference_tokens=theirs.tokens)
        if self.policy is not None:
            everything = torch.arange(len(self.policy), device=members.device)
            batch = self._pairs(self.policy, everything)
            pairs = replace(pairs, batch=batch, places=members, last=self.last)
        if self.aligned is not None:
            chosen, rejected = self.aligned[members].unbind(1)
            pairs = replace(pairs, aligned_chosen=chosen, aligned_rejected=rejected)
        if isinstance(logps, DivergentLogps):
            chosen, rejected = logps.divergence_sums().unbind(1)
            pairs = replace(pairs, chosen_kl=chosen, rejected_kl=rejected)
        return _of(self.loss.shares(pairs, self.totals, self.weights[members]))

    def _pairs(self, logps: Tensor, members: Tensor) -> PairLogps:
        chosen, rejected = logps.unbind(1)
        chosen_tokens, rejected_tokens = self.lengths[members].unbind(1)
        pairs = PairLogps(chosen, rejected, chosen_tokens, rejected_tokens)
        if self.reference is None:
            return pairs
        chosen, rejected = self.reference[members].unbind(1)
        return replace(pairs, reference_chosen=chosen, reference_rejected=rejected)


@dataclass(frozen=True)
class _UnpairedBatch(OnDevice):
    loss: UnpairedLoss
    totals: Totals
    weights: Tensor
    tokens: Tensor
    desirable: Tensor
    reference: Tensor
    baseline: Tensor | None

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        responses = UnpairedLogps(
            logps.sums()[:, 0],
            self.tokens[members],
            self.reference[members],
            self.desirable[members],
        )
        weights = self.weights[members]
        return _of(self.loss.shares(responses, self.totals, self.baseline, weights))


def _of(shares: Shares) -> GroupLosses:
    return shares.losses, dict(shares.metrics)


def weights_of(groups: Sequence[TokenGroup]) -> Tensor:
    """The weight of each group, float64 [n]."""
    return torch.from_numpy(facts_of(groups)["weight"].copy())


def _totals(tokens: Tensor) -> Totals:
    """The totals of a batch, from the numbers of scored tokens of its responses, [n] or [n, k]."""
    chosen = tokens if tokens.ndim == 1 else tokens[:, 0]
    return Totals(examples=len(tokens), tokens=int(chosen.sum()))
