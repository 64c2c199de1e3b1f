"""What a loss is: frozen settings, and a pure function from log-probabilities to losses.

    logps of a few pairs → per_pair → one loss and two rewards a pair → shares of the batch's mean

A loss knows no model, no batch size and no micro-batch: `per_pair` reduces nothing. What turns its
values into the mean over a *global* batch is here, once for every loss. The counts that are divided
by are known before the step, so each value comes out as its *share*: the sum of the shares over all
micro-batches and ranks is the value of the batch, whatever it was cut into.

    loss = 1/pairs Σ weight · per_pair  +  nll_weight · 1/tokens Σ weight · −log π(chosen)

A preference is a mean over pairs and a likelihood a mean over tokens. A mean of micro-batch means
would weight tokens by their neighbours.

Most losses are functions of a pair's own sums. A loss may also look at single tokens
(`needs_tokens`) or at the whole global batch as it was before the step (`needs_batch`); what it
looks at comes with the logps, so that it still is a function of each pair.

There are three families, told apart by type, because they need different steps before them:

    ReferenceLoss       pairs, and what a frozen reference gives to them
    ReferenceFreeLoss   pairs alone
    UnpairedLoss        single responses marked good or bad, and what a reference gives to them

A loss is one file of this folder or of one below; `name` is its name in a config. Torch is imported
inside functions: a loss's settings are read where an experiment is composed, which must start at
once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar

from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PairLogps:
    """Log-probabilities of n pairs: float64 [n] each, on one device, the policy's with gradients.

    chosen, rejected: sums of the policy's log p(token | what is before it) over scored tokens.
    chosen_tokens, rejected_tokens: how many those are.
    reference_chosen, reference_rejected: the same sums by the reference, where there is one.
    tokens, reference_tokens: token by token, float64 [S], the chosen and then the rejected response
        of each pair; for a loss that `needs_tokens`.
    batch: all pairs of the global batch, without gradients; for a loss that `needs_batch`.
    places: which of them these are, int64 [n].
    last: what was logged of the step before, for a loss that goes on from it; empty where there was
        none.
    """

    chosen: "Tensor"
    rejected: "Tensor"
    chosen_tokens: "Tensor"
    rejected_tokens: "Tensor"
    reference_chosen: "Tensor | None" = None
    reference_rejected: "Tensor | None" = None
    tokens: "Tensor | None" = None
    reference_tokens: "Tensor | None" = None
    batch: "PairLogps | None" = None
    places: "Tensor | None" = None
    last: Mapping[str, float] = field(default_factory=dict)

    def as_batch(self) -> "PairLogps":
        """The same pairs, taken for the whole batch."""
        import torch

        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        known = {name: value.detach() for name, value in values if isinstance(value, torch.Tensor)}
        places = torch.arange(len(self.chosen), device=self.chosen.device)
        return replace(self, batch=replace(self, **known, batch=None), places=places)

    def required_reference(self) -> tuple["Tensor", "Tensor"]:
        """The reference's logps; ValueError where there is none."""
        if self.reference_chosen is None or self.reference_rejected is None:
            raise ValueError(_NO_REFERENCE)
        return self.reference_chosen, self.reference_rejected

    def required_tokens(self) -> tuple["Tensor", "Tensor"]:
        """The tokens' logps by the policy and by the reference; ValueError where there are none."""
        if self.reference_chosen is None:
            raise ValueError(_NO_REFERENCE)
        if self.tokens is None or self.reference_tokens is None:
            raise ValueError("this loss looks at single tokens, and was given whole responses")
        return self.tokens, self.reference_tokens

    def required_batch(self) -> tuple["PairLogps", "Tensor"]:
        """The batch, and which of it these pairs are; ValueError where it is not known."""
        if self.batch is None or self.places is None:
            raise ValueError("this loss looks at the whole batch, and was given some pairs of it")
        return self.batch, self.places

    @property
    def lengths(self) -> "Tensor":
        """How many tokens the chosen and the rejected response of each pair have, int64 [n, 2]."""
        import torch

        return torch.stack([self.chosen_tokens, self.rejected_tokens], dim=1)

    @property
    def chosen_ratios(self) -> "Tensor":
        """log π(chosen) − log π_ref(chosen)."""
        return _ratios(self.chosen, self.reference_chosen)

    @property
    def rejected_ratios(self) -> "Tensor":
        """log π(rejected) − log π_ref(rejected)."""
        return _ratios(self.rejected, self.reference_rejected)


@dataclass(frozen=True)
class PairLosses:
    """Of n pairs: losses with gradients, and the rewards that each response is given; [n] each.

    metrics: what else there is to log of each pair, [n] each.
    """

    losses: "Tensor"
    chosen_rewards: "Tensor"
    rejected_rewards: "Tensor"
    metrics: Mapping[str, "Tensor"] = field(default_factory=dict)


@dataclass(frozen=True)
class UnpairedLogps:
    """Log-probabilities of n single responses, as :class:`PairLogps` has them of two.

    desirable: bool [n]; which of them are good.
    """

    responses: "Tensor"
    tokens: "Tensor"
    reference: "Tensor"
    desirable: "Tensor"

    @property
    def ratios(self) -> "Tensor":
        """log π(response) − log π_ref(response)."""
        return _ratios(self.responses, self.reference)


@dataclass(frozen=True)
class UnpairedLosses:
    """Of n single responses: losses with gradients, and rewards; [n] each."""

    losses: "Tensor"
    rewards: "Tensor"


@dataclass(frozen=True)
class Totals:
    """What is divided by: counts over the global batch, all micro-batches and ranks together.

    examples: pairs, or single responses.
    tokens: the scored tokens of chosen responses, or of all where there are no pairs.
    desirable: how many single responses are good.
    """

    examples: int
    tokens: int
    desirable: int = 0


@dataclass(frozen=True)
class Shares:
    """Of n examples, each value divided by its total: [n] each; summed they are the batch's values.

    losses: with gradients.
    metrics: detached, under the names that TRL uses.
    """

    losses: "Tensor"
    metrics: Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Loss:
    """Anything that can be minimised; `name` is what a config calls it."""

    name: ClassVar[str]


def require_smoothing(label_smoothing: float) -> None:
    """The share of labels taken as wrong; from a half on, they would say the opposite."""
    holds = 0 <= label_smoothing < 0.5
    require(holds, "label_smoothing must be in [0, 0.5)", label_smoothing)


def logistic(margins: "Tensor", label_smoothing: float = 0.0) -> "Tensor":
    """−(1 − ε) log σ(m) − ε log σ(−m), the cross-entropy of a label that is wrong with rate ε."""
    from torch.nn.functional import logsigmoid

    losses = -(1 - label_smoothing) * logsigmoid(margins)
    return losses - label_smoothing * logsigmoid(-margins) if label_smoothing else losses


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """A loss over pairs.

    Args:
        nll_weight: how much the negative log-likelihood of the chosen responses counts besides, a
            mean over tokens. It keeps the chosen response likely where a loss only widens a gap
            (Pang et al. 2024, https://arxiv.org/abs/2404.19733, who take its mean within each
            response).
    """

    nll_weight: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        weight = self.nll_weight
        require(0 <= weight < math.inf, "nll_weight must not be negative", weight)

    @property
    def needs_tokens(self) -> bool:
        """Whether `per_pair` looks at single tokens, the policy's and the reference's."""
        return False

    @property
    def needs_batch(self) -> bool:
        """Whether `per_pair` looks at the whole global batch. A pass without gradients finds its
        logps before each step."""
        return False

    @property
    def total_nll_weight(self) -> float:
        """How much the likelihood term weighs, that of losses within this one included."""
        return self.nll_weight

    def per_pair(self, logps: PairLogps) -> PairLosses:
        """The losses of pairs without the likelihood term, each by itself: nothing is reduced."""
        raise NotImplementedError

    def shares(self, logps: PairLogps, totals: Totals, weights: "Tensor | None" = None) -> Shares:
        """The pairs' shares of the batch's loss and metrics.

        Args:
            weights: [n]; how many pairs each counts for, in the loss and not in the metrics. They
                are not divided by: twice the weight is twice the gradient.
        """
        pairs, nll_weight = self.per_pair(logps), self.total_nll_weight
        losses = pairs.losses / totals.examples
        metrics = {name: v / totals.examples for name, v in _pair_metrics(logps, pairs).items()}
        if nll_weight:
            losses = losses - nll_weight / totals.tokens * logps.chosen
            metrics["nll_loss"] = -logps.chosen.detach() / totals.tokens
        return Shares(losses if weights is None else weights * losses, metrics)


@dataclass(frozen=True)
class ReferenceLoss(PreferenceLoss):
    """A loss over pairs that compares the policy with a frozen reference."""


@dataclass(frozen=True)
class ImplicitRewardLoss(ReferenceLoss):
    """A loss over pairs in which a response's reward is β (log π − log π_ref).

    Args:
        beta: the strength β of the KL penalty: a smaller one lets the policy move further from its
            reference.
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)

    def rewards(self, logps: PairLogps) -> tuple["Tensor", "Tensor"]:
        """The rewards of the chosen and of the rejected responses, with gradients; [n] each."""
        return self.beta * logps.chosen_ratios, self.beta * logps.rejected_ratios


@dataclass(frozen=True)
class SmoothedLoss(ImplicitRewardLoss):
    """An :class:`ImplicitRewardLoss` that takes a share of the labels as wrong.

    Args:
        label_smoothing: the share of labels taken as wrong.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)


@dataclass(frozen=True)
class ReferenceFreeLoss(PreferenceLoss):
    """A loss over pairs that needs no reference: none is computed, and none is accepted."""


@dataclass(frozen=True)
class LikelihoodLoss(ReferenceFreeLoss):
    """A :class:`ReferenceFreeLoss` with a weight β and, by default, the likelihood term: CPO's
    kind.

    Args:
        beta: the weight β of log-probabilities in the margin.
        nll_weight: how much the negative log-likelihood of the chosen responses counts.
    """

    beta: float = 0.1
    nll_weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)


@dataclass(frozen=True)
class UnpairedLoss(Loss):
    """A loss over single responses marked good or bad, compared with a frozen reference.

    `needs_baseline`: whether `per_response` wants a baseline, one number for the whole global
    batch, which a pass without gradients must find before the step.
    """

    needs_baseline: ClassVar[bool] = False

    def baseline(self, ratios: "Tensor") -> "Tensor":
        """The baseline, a scalar, from ratios [batch] of the whole batch; see the loss."""
        raise NotImplementedError

    def per_response(self, logps: UnpairedLogps, baseline: "Tensor | None") -> UnpairedLosses:
        """The losses of responses, each by itself: nothing is reduced."""
        raise NotImplementedError

    def shares(
        self,
        logps: UnpairedLogps,
        totals: Totals,
        baseline: "Tensor | None" = None,
        weights: "Tensor | None" = None,
    ) -> Shares:
        """The responses' shares of the batch's loss and metrics, as `PreferenceLoss.shares`."""
        responses = self.per_response(logps, baseline)
        losses = responses.losses / totals.examples
        metrics = _unpaired_metrics(logps, responses.rewards, totals)
        if baseline is not None:
            metrics["kl"] = baseline.detach().expand_as(losses) / totals.examples
        return Shares(losses if weights is None else weights * losses, metrics)


@dataclass(frozen=True)
class WeightedUnpairedLoss(UnpairedLoss):
    """An :class:`UnpairedLoss` in which a response's reward is β (log π − log π_ref), and good and
    bad responses have weights of their own.

    Args:
        beta: the strength β of the KL penalty.
        desirable_weight: how much good responses count.
        undesirable_weight: how much bad responses count.
    """

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)
        for name in ("desirable_weight", "undesirable_weight"):
            weight = getattr(self, name)
            require(0 <= weight < math.inf, f"{name} must not be negative", weight)


_NO_REFERENCE = "this loss compares the policy with a reference, and there are no reference logps"


def _ratios(policy: "Tensor", reference: "Tensor | None") -> "Tensor":
    if reference is None:
        raise ValueError(_NO_REFERENCE)
    return policy - reference


def _pair_metrics(logps: PairLogps, pairs: PairLosses) -> dict[str, "Tensor"]:
    """What is logged of each pair, [n] each.

    A pair counts as accurate when its chosen reward is strictly the greater one, so a policy that
    equals its reference has an accuracy of 0.
    """
    chosen, rejected = pairs.chosen_rewards.detach(), pairs.rejected_rewards.detach()
    return {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": chosen - rejected,
        "rewards/accuracies": (chosen > rejected).to(chosen.dtype),
        "logps/chosen": logps.chosen.detach(),
        "logps/rejected": logps.rejected.detach(),
        **{name: values.detach() for name, values in pairs.metrics.items()},
    }


def _unpaired_metrics(
    logps: UnpairedLogps, rewards: "Tensor", totals: Totals
) -> dict[str, "Tensor"]:
    """Shares of the means over the good and over the bad responses, where the batch has such."""
    metrics: dict[str, Tensor] = {}
    rewards, responses = rewards.detach(), logps.responses.detach()
    counts = {"chosen": totals.desirable, "rejected": totals.examples - totals.desirable}
    for side, count in counts.items():
        if count:
            share = (logps.desirable == (side == "chosen")).to(rewards.dtype) / count
            metrics[f"rewards/{side}"] = share * rewards
            metrics[f"logps/{side}"] = share * responses
    if all(counts.values()):
        metrics["rewards/margins"] = metrics["rewards/chosen"] - metrics["rewards/rejected"]
    return metrics
