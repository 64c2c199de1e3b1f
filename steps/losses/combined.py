"""Weighted sums of several losses over the same pairs.

There is one class for each family, because the type of a loss determines whether training needs a
reference.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from steps.losses.base import (
    PairLogps,
    PairLosses,
    PreferenceLoss,
    ReferenceFreeLoss,
    ReferenceLoss,
)
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CombinedLoss(PreferenceLoss):
    """Σ weight · loss, over losses with freely chosen names.

        CombinedReference({"dpo": Dpo(), "hinge": Hinge(beta=0.5)}, {"hinge": 0.2})

    The default weight is 1, and the weights need not add up to 1. The likelihood term of each loss
    has the same weight as the loss; the combination's own likelihood term is added. A response's
    reward is the weighted mean of its rewards under the losses. Each loss is also logged separately
    as `loss/NAME`, without its likelihood term. If several losses log a metric of one name, each
    logs its own as `NAME/METRIC`, and so does a combination in a combination.

    TRL: lists in `loss_type` and `loss_weights`, where all losses share one β and `loss_type="sft"`
    is `nll_weight` here.

    Args:
        losses: the losses by name.
        weights: the weight of each loss by name; 1 by default.
    """

    losses: dict[str, Any] = field(default_factory=dict)
    """Each is a `PreferenceLoss`. The declared type is `Any`, as OmegaConf could otherwise not add
    a loss to the mapping."""
    weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.losses) > 0, "losses must name at least one loss", self.losses)
        for name, loss in self.losses.items():
            require(isinstance(loss, PreferenceLoss), f"losses.{name} must be a pair loss", loss)
        strangers = sorted(self.weights.keys() - self.losses.keys())
        require(not strangers, "weights must be those of losses", strangers)
        for name, weight in self.weights.items():
            require(0 < weight < math.inf, f"weights.{name} must be above 0", weight)

    def at(self, step: int, steps: int) -> Self:
        now = {name: loss.at(step, steps) for name, loss in self.losses.items()}
        return replace(self, losses=now)

    @property
    def needs_tokens(self) -> bool:
        return any(loss.needs_tokens for loss in self.losses.values())

    @property
    def needs_batch(self) -> bool:
        return any(loss.needs_batch for loss in self.losses.values())

    @property
    def needs_alignment(self) -> bool:
        return any(loss.needs_alignment for loss in self.losses.values())

    @property
    def needs_divergence(self) -> bool:
        return any(loss.needs_divergence for loss in self.losses.values())

    @property
    def total_nll_weight(self) -> float:
        within = (w * self.losses[n].total_nll_weight for n, w in self._all_weights.items())
        return self.nll_weight + sum(within)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        weights = self._all_weights
        parts = {
            name: loss.per_pair(replace(logps, last=self._last_of(name, logps.last)))
            for name, loss in self.losses.items()
        }

        def weighted(values: "dict[str, Tensor]") -> "Tensor":
            first, *rest = (weights[name] * value for name, value in values.items())
            return sum(rest, first)

        total = sum(weights.values())
        metrics = {f"loss/{name}": part.losses for name, part in parts.items()}
        logged = Counter([*metrics, *chain.from_iterable(part.metrics for part in parts.values())])
        for name, part in parts.items():
            for metric, values in part.metrics.items():
                own = logged[metric] > 1 or self._is_taken(metric, name)
                metrics[f"{name}/{metric}" if own else metric] = values
        return PairLosses(
            weighted({name: part.losses for name, part in parts.items()}),
            weighted({name: part.chosen_rewards for name, part in parts.items()}) / total,
            weighted({name: part.rejected_rewards for name, part in parts.items()}) / total,
            metrics,
        )

    @property
    def _all_weights(self) -> dict[str, float]:
        return {name: self.weights.get(name, 1.0) for name in self.losses}

    def _is_taken(self, metric: str, by: str) -> bool:
        """Whether the loss `by` must log a metric under its own name even if no other logs it: all
        metrics of a combination, and those that look like another loss's."""
        others = (f"{name}/" for name in self.losses if name != by)
        return isinstance(self.losses[by], CombinedLoss) or metric.startswith(tuple(others))

    def _last_of(self, name: str, last: Mapping[str, float]) -> dict[str, float]:
        """The metrics of the previous step as the loss `name` logged them."""
        others = tuple(f"{other}/" for other in self.losses if other != name)
        known = {metric: value for metric, value in last.items() if not metric.startswith(others)}
        own = {m.removeprefix(f"{name}/"): v for m, v in known.items()}
        return {**known, **own}


@dataclass(frozen=True)
class CombinedReference(CombinedLoss, ReferenceLoss):
    """A combination in which at least one loss needs a reference."""

    name: ClassVar[str] = "combined"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(isinstance(loss, ReferenceLoss) for loss in self.losses.values()):
            raise ValueError(
                f"none of the losses {', '.join(self.losses)} wants a reference; combine them with "
                f"{CombinedReferenceFree.name}, and none is computed"
            )


@dataclass(frozen=True)
class CombinedReferenceFree(CombinedLoss, ReferenceFreeLoss):
    """A combination in which no loss needs a reference."""

    name: ClassVar[str] = "combined_reference_free"

    def __post_init__(self) -> None:
        super().__post_init__()
        wanting = [n for n, loss in self.losses.items() if isinstance(loss, ReferenceLoss)]
        if wanting:
            raise ValueError(
                f"{', '.join(wanting)} wants a reference; combine with {CombinedReference.name}"
            )
