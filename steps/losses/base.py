"""The interface of losses: frozen settings, and a pure function from log-probabilities to losses.

    logps of a few pairs → per_pair → one loss and two rewards a pair → shares of the batch's mean

A loss does not depend on a model, a batch size or a micro-batch, and `per_pair` reduces nothing.
This module turns its values into the mean over a *global* batch, in the same way for all losses.
The denominators are known before the step, so each value becomes a *share*: it is divided by its
denominator. The sum of the shares over all micro-batches and ranks is the value of the batch,
however the batch was cut.

    loss = 1/pairs Σ weight · per_pair  +  nll_weight · 1/tokens Σ weight · −log π(chosen)

The preference term is a mean over pairs, the likelihood term a mean over tokens. A mean of
micro-batch means would give a token a weight that depends on the other tokens of its micro-batch.

Most losses are functions of a pair's own sums. A loss may also use single tokens (`needs_tokens`),
the whole global batch as it was before the step (`needs_batch`), or how far the reference's
distribution is from the policy's (`needs_divergence`). `PairLogps` carries these values, so that
the loss remains a function of each pair.

There are four families, each with its own type, because they need different steps before them:

    ReferenceLoss       pairs, with the logps of a frozen reference
    ReferenceFreeLoss   pairs only
    UnpairedLoss        single responses labelled good or bad, with the logps of a reference
    SftLoss             single responses that are imitated

A loss is one file in this folder or in a folder below; `name` is its name in a config. Functions
import torch in their bodies, because the composition of an experiment reads the settings of losses
and must start fast.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

from steps.shared.checks import ClassName, require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PairLogps:
    """Log-probabilities of n pairs: float64 [n] each, on one device, the policy's with gradients.

    chosen, rejected: sums of the policy's log p(token | tokens before it) over scored tokens.
    chosen_tokens, rejected_tokens: the numbers of scored tokens.
    reference_chosen, reference_rejected: the same sums under the reference, if there is one.
    tokens, reference_tokens: the logps of single tokens, float64 [S], for each pair the chosen and
        then the rejected response; for a loss that `needs_tokens`.
    batch: all pairs of the global batch, without gradients; for a loss that `needs_batch`.
    places: the indices of these pairs in `batch`, int64 [n].
    aligned_chosen, aligned_rejected: sums of log p(token) − log Σ_v p(v)² over the policy's scored
        tokens, without gradients; for a loss that `needs_alignment`.
    chosen_kl, rejected_kl: sums of KL(π_ref ‖ π) over the vocabulary at each scored token, with
        gradients; for a loss that `needs_divergence`.
    last: the logged metrics of the previous step, for a loss that continues them; empty in the
        first step.
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
    aligned_chosen: "Tensor | None" = None
    aligned_rejected: "Tensor | None" = None
    chosen_kl: "Tensor | None" = None
    rejected_kl: "Tensor | None" = None
    last: Mapping[str, float] = field(default_factory=dict)

    def as_batch(self) -> "PairLogps":
        """The same pairs, with themselves as the whole batch."""
        import torch

        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        known = {name: value.detach() for name, value in values if isinstance(value, torch.Tensor)}
        places = torch.arange(len(self.chosen), device=self.chosen.device)
        return replace(self, batch=replace(self, **known, batch=None), places=places)

    def required_reference(self) -> tuple["Tensor", "Tensor"]:
        """The reference's logps; raises ValueError if there is no reference."""
        if self.reference_chosen is None or self.reference_rejected is None:
            raise ValueError(_NO_REFERENCE)
        return self.reference_chosen, self.reference_rejected

    def required_tokens(self) -> tuple["Tensor", "Tensor"]:
        """The logps of tokens under policy and reference; raises ValueError if they are missing."""
        if self.reference_chosen is None:
            raise ValueError(_NO_REFERENCE)
        if self.tokens is None or self.reference_tokens is None:
            raise ValueError("this loss looks at single tokens, and was given whole responses")
        return self.tokens, self.reference_tokens

    def required_batch(self) -> tuple["PairLogps", "Tensor"]:
        """The batch and the indices of these pairs in it; raises ValueError if it is missing."""
        if self.batch is None or self.places is None:
            raise ValueError("this loss looks at the whole batch, and was given some pairs of it")
        return self.batch, self.places

    def required_alignment(self) -> tuple["Tensor", "Tensor"]:
        """The aligned logps of the responses; raises ValueError if they are missing."""
        if self.aligned_chosen is None or self.aligned_rejected is None:
            raise ValueError("this loss uses the probabilities of all tokens, which are missing")
        return self.aligned_chosen, self.aligned_rejected

    def required_divergence(self) -> tuple["Tensor", "Tensor"]:
        """The sequential KL of the responses; raises ValueError if they are missing."""
        if self.chosen_kl is None or self.rejected_kl is None:
            raise ValueError("this loss uses the reference's whole distribution, which is missing")
        return self.chosen_kl, self.rejected_kl

    @property
    def lengths(self) -> "Tensor":
        """The number of tokens of each pair's chosen and rejected response, int64 [n, 2]."""
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
    """The losses of n pairs, with gradients, and the rewards of their responses; [n] each.

    metrics: further values to log for each pair, [n] each.
    """

    losses: "Tensor"
    chosen_rewards: "Tensor"
    rejected_rewards: "Tensor"
    metrics: Mapping[str, "Tensor"] = field(default_factory=dict)


@dataclass(frozen=True)
class UnpairedLogps:
    """Log-probabilities of n single responses; the counterpart of :class:`PairLogps`.

    desirable: bool [n]; which responses are good.
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
    """The losses of n single responses, with gradients, and their rewards; [n] each."""

    losses: "Tensor"
    rewards: "Tensor"


@dataclass(frozen=True)
class Totals:
    """The denominators: counts over the global batch, that is all micro-batches and ranks.

    examples: the number of pairs, or of single responses.
    tokens: the number of scored tokens in chosen responses; without pairs, in all responses.
    desirable: the number of single responses that are good.
    """

    examples: int
    tokens: int
    desirable: int = 0


@dataclass(frozen=True)
class Shares:
    """The values of n examples, each divided by its denominator: [n] each. Their sum over the
    batch is the batch's value.

    losses: with gradients.
    metrics: detached, under the names that TRL uses.
    """

    losses: "Tensor"
    metrics: Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Loss:
    """The base class of all losses; `name` is the loss's name in a config."""

    name: ClassVar[str] = ClassName()  # type: ignore[assignment]

    def at(self, step: int, steps: int) -> Self:
        """The loss of a 0-based step of a run of so many. One of your own may change with time;
        held-out examples are evaluated with the loss as it was given."""
        return self


def require_smoothing(label_smoothing: float) -> None:
    """Require a label smoothing in [0, 0.5); from 0.5 on, the labels would be reversed."""
    holds = 0 <= label_smoothing < 0.5
    require(holds, "label_smoothing must be in [0, 0.5)", label_smoothing)


def logistic(margins: "Tensor", label_smoothing: float = 0.0) -> "Tensor":
    """−(1 − ε) log σ(m) − ε log σ(−m), the cross-entropy if labels are wrong with probability ε."""
    from torch.nn.functional import logsigmoid

    losses = -(1 - label_smoothing) * logsigmoid(margins)
    return losses - label_smoothing * logsigmoid(-margins) if label_smoothing else losses


def not_overflowing(rejected: "Tensor", chosen: "Tensor", slope: float) -> "Tensor":
    """The logarithms x of `rejected` responses, for a reward −exp(−slope · x) in a logistic loss
    without smoothing; raised to where `exp` can represent the reward, and below `chosen`.

    Where they are raised, the loss and its gradient are exactly 0 before and after. Without this,
    autograd would compute the gradient as 0 · ∞, which is NaN.
    """
    import torch

    lowest = -0.98 * math.log(torch.finfo(rejected.dtype).max) / slope
    return rejected.clamp(min=(chosen.detach() - 40 / slope).clamp(max=lowest))


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """A loss over pairs.

    Args:
        nll_weight: the weight of an additional term, the negative log-likelihood of the chosen
            responses as a mean over tokens. It keeps chosen responses likely, while many losses
            only widen a gap (Pang et al. 2024, https://arxiv.org/abs/2404.19733, who average within
            each response).
    """

    nll_weight: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        weight = self.nll_weight
        require(0 <= weight < math.inf, "nll_weight must not be negative", weight)

    @property
    def needs_tokens(self) -> bool:
        """Whether `per_pair` uses the logps of single tokens, of policy and reference."""
        return False

    @property
    def needs_batch(self) -> bool:
        """Whether `per_pair` uses the whole global batch. A pass without gradients then computes
        the batch's logps before each step."""
        return False

    @property
    def needs_alignment(self) -> bool:
        """Whether `per_pair` uses the policy's expected probabilities of sampled tokens. A pass
        without gradients then computes them before each step."""
        return False

    @property
    def needs_divergence(self) -> bool:
        """Whether `per_pair` uses KL(π_ref ‖ π) over the vocabulary. The reference's model then
        computes beside the policy in each step, as no cached number is enough. Rewards must not
        depend on it, because an evaluation has logps only."""
        return False

    @property
    def is_of_sums(self) -> bool:
        """Whether the four sums of a pair are all that `per_pair` uses."""
        needs = (self.needs_tokens, self.needs_batch, self.needs_alignment, self.needs_divergence)
        return not any(needs)

    @property
    def total_nll_weight(self) -> float:
        """The weight of the likelihood term, including those of losses within this one."""
        return self.nll_weight

    def per_pair(self, logps: PairLogps) -> PairLosses:
        """The loss of each pair, without the likelihood term and without any reduction."""
        raise NotImplementedError

    def shares(self, logps: PairLogps, totals: Totals, weights: "Tensor | None" = None) -> Shares:
        """The pairs' shares of the batch's loss and metrics.

        Args:
            weights: [n]; a factor of each pair's loss. Metrics are not weighted. The denominator
                does not contain the weights: twice the weight gives twice the gradient.
        """
        pairs, nll_weight = self.per_pair(logps), self.total_nll_weight
        _require_one_each(self, "per_pair", pairs, PairLosses, logps.chosen, "pair")
        losses = pairs.losses / totals.examples
        metrics = {name: v / totals.examples for name, v in _pair_metrics(logps, pairs).items()}
        if nll_weight:
            losses = losses - nll_weight / totals.tokens * logps.chosen
            metrics["nll_loss"] = -logps.chosen.detach() / totals.tokens
        _require_gradient(self, losses, logps.chosen)
        return Shares(losses if weights is None else weights * losses, metrics)


@dataclass(frozen=True)
class ReferenceLoss(PreferenceLoss):
    """A loss over pairs that compares the policy with a frozen reference."""


@dataclass(frozen=True)
class ImplicitRewardLoss(ReferenceLoss):
    """A loss over pairs in which a response's reward is β (log π − log π_ref).

    Args:
        beta: the strength β of the KL penalty; a smaller β lets the policy move further from its
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
    """An :class:`ImplicitRewardLoss` that assumes that a share of the labels is wrong.

    Args:
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)


@dataclass(frozen=True)
class ReferenceFreeLoss(PreferenceLoss):
    """A loss over pairs without a reference; training with it does not accept reference logps."""


@dataclass(frozen=True)
class LikelihoodLoss(ReferenceFreeLoss):
    """A :class:`ReferenceFreeLoss` with a weight β and, by default, the likelihood term, like CPO.

    Args:
        beta: the weight β of log-probabilities in the margin.
        nll_weight: the weight of the negative log-likelihood of the chosen responses.
    """

    beta: float = 0.1
    nll_weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)


@dataclass(frozen=True)
class UnpairedLoss(Loss):
    """A loss over single responses labelled good or bad, compared with a frozen reference.

    `needs_baseline`: whether `per_response` needs a baseline, one number for the whole global
    batch. A pass without gradients then computes it before each step.
    """

    needs_baseline: ClassVar[bool] = False

    def baseline(self, ratios: "Tensor") -> "Tensor":
        """The baseline, a scalar, from the log-ratios [batch] of the whole batch; see the loss."""
        raise NotImplementedError

    def per_response(self, logps: UnpairedLogps, baseline: "Tensor | None") -> UnpairedLosses:
        """The loss of each response, without any reduction."""
        raise NotImplementedError

    def shares(
        self,
        logps: UnpairedLogps,
        totals: Totals,
        baseline: "Tensor | None" = None,
        weights: "Tensor | None" = None,
    ) -> Shares:
        """The responses' shares of the batch's loss and metrics; see `PreferenceLoss.shares`."""
        responses = self.per_response(logps, baseline)
        of = logps.responses
        _require_one_each(self, "per_response", responses, UnpairedLosses, of, "response")
        losses = responses.losses / totals.examples
        _require_gradient(self, losses, logps.responses)
        metrics = _unpaired_metrics(logps, responses.rewards, totals)
        if baseline is not None:
            metrics["kl"] = baseline.detach().expand_as(losses) / totals.examples
        return Shares(losses if weights is None else weights * losses, metrics)


@dataclass(frozen=True)
class WeightedUnpairedLoss(UnpairedLoss):
    """An :class:`UnpairedLoss` in which a response's reward is β (log π − log π_ref), and good and
    bad responses have separate weights.

    Args:
        beta: the strength β of the KL penalty.
        desirable_weight: the weight of good responses.
        undesirable_weight: the weight of bad responses.
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


@dataclass(frozen=True)
class SftLoss(Loss):
    """A loss over the tokens of responses that are imitated."""

    def per_token(self, logps: "Tensor") -> "Tensor":
        """The losses of tokens with the log-probabilities `logps`, float64 [S], with gradients."""
        raise NotImplementedError

    def token_losses(self, logps: "Tensor") -> "Tensor":
        """`per_token`; raises ValueError, which names the loss, unless each token has one, with a
        gradient."""
        losses = self.per_token(logps)
        _require_shape(f"{type(self).__name__}.per_token returned", losses, logps, "token")
        _require_gradient(self, losses, logps)
        return losses

    def shares(
        self,
        losses: "Tensor",
        totals: Totals,
        weights: "Tensor | None" = None,
        hits: "Tensor | None" = None,
    ) -> Shares:
        """The shares of responses with summed `losses` of their tokens, float64 [n].

        Args:
            weights: [n]; a factor of each response's loss.
            hits: [n]; how many of each response's tokens have the largest logit. Their share of
                all T tokens, unweighted, is the metric ``mean_token_accuracy``.
        """
        losses = losses / totals.tokens
        metrics = {} if hits is None else {"mean_token_accuracy": hits / totals.tokens}
        return Shares(losses if weights is None else weights * losses, metrics)


def _require_one_each(
    loss: Loss, name: str, found: object, kind: type, given: "Tensor", what: str
) -> None:
    """Raise TypeError or ValueError, which names the loss, unless its method `name` returned its
    `kind` of losses, and each value is a tensor of the shape [n] of `given`: a mean or a sum would
    be trained on as if it were each example's loss."""
    method = f"{type(loss).__name__}.{name}"
    if not isinstance(found, kind):
        raise TypeError(f"{method} must return {kind.__name__}, got {type(found).__name__}")
    for value, tensor in {**vars(found), **getattr(found, "metrics", {})}.items():
        if value != "metrics":
            _require_shape(f"{method} returned {value} with", tensor, given, what)


def _require_shape(returned: str, value: object, given: "Tensor", what: str) -> None:
    shape = getattr(value, "shape", None)
    if shape != given.shape:
        was = "no tensor" if shape is None else f"shape {list(shape)}"
        raise ValueError(
            f"{returned} {was} for {len(given)} {what}s; "
            f"return one value for each {what}, without a mean or a sum"
        )


def _require_gradient(loss: Loss, losses: "Tensor", given: "Tensor") -> None:
    """Raise ValueError, which names the loss, if the losses of logps with a gradient have none."""
    import torch

    if given.requires_grad and torch.is_grad_enabled() and not losses.requires_grad:
        raise ValueError(
            f"the loss {type(loss).__name__} returned losses without a gradient, so that it would "
            "train nothing; compute them from the policy's log-probabilities by operations of "
            "torch, without detach(), item(), numpy() or no_grad()"
        )


def _pair_metrics(logps: PairLogps, pairs: PairLosses) -> dict[str, "Tensor"]:
    """The metrics of each pair, [n] each.

    A pair is accurate if its chosen reward is strictly greater, so a policy that equals its
    reference has an accuracy of 0.
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
    """Shares of the means over good and over bad responses, for each label that the batch has."""
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
