"""Training in torch as functions: logps of weights, and the gradient of a pack as a value.

    weights, pack → logps [S], pull      torch.func.functional_call under torch.func.vjp
    logps → loss, d loss / d logps       as in every backend, in float64
    pull, d logps → gradient             a value, which is added to that of the batch
    gradient, rate → weights             `steps.training.optimizer`

From the gradients g_i of the n examples of a batch, each n times its share of the batch's, follow
unbiased estimates of the variance of an example's gradient and of the squared true gradient:

    tr Σ  =  (Σ |g_i|² - n |g|²) / (n - 1)          |G|²  =  |g|² - tr Σ / n

with their mean g. The gradient noise scale is the quotient tr Σ / |G|² (McCandlish et al. 2018,
https://arxiv.org/abs/1812.06162, appendix A.1): batches much larger than it waste examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from steps.models.config import ActivationCheckpointing
from steps.models.ranks import Ranks
from steps.models.value_head import scores_of
from steps.scoring.architectures.images import seen_or_ids
from steps.scoring.architectures.pack_layouts import Layout, layout_of
from steps.scoring.embedding import Embedded
from steps.scoring.examples import TokenGroup
from steps.scoring.head import gaps_of, output_head, with_hits
from steps.scoring.logps import GroupLoss, Scored, TokenLogps, loss_gradients, predicting_rows
from steps.scoring.packing import Pack
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.scoring.scorer import Batch, Scorer
from steps.shared.checks import holding
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.optimizer import Updater
from steps.training.policy import Role, TorchPolicy
from steps.training.trainer import (
    BatchLoss,
    GroupLosses,
    StepResult,
    Trainer,
    step_result,
)

Tensors = Mapping[str, Tensor]
"""By the names of a model's parameters."""
_SUMS = "noise_scale/sums"


class _Logps(nn.Module):
    """A model whose output are the logps [S] of a pack, with `hits` beside them [S, 2], or as
    `scoring.head.with_normalisers` [S, 3], by operations that `torch.func` knows; of a reward
    model, its scores."""

    def __init__(self, model: PreTrainedModel, hits: bool, normalised: bool) -> None:
        super().__init__()
        self.model, self._hits, self._normalised = model, hits, normalised

    def forward(self, pack: Pack) -> Tensor:
        tokens = Embedded(seen_or_ids(self.model, pack), pack.input_ids)
        rows = predicting_rows(self.model, pack, tokens)
        if isinstance(getattr(self.model, "score", None), nn.Linear):
            return scores_of(self.model, rows)
        logits = output_head(self.model).logits(rows)
        logps = logits.log_softmax(dim=-1).gather(1, pack.targets[:, None])[:, 0]
        if not (self._hits or self._normalised):
            return logps
        values = with_hits(logps, gaps_of(logits, pack.targets))
        return (
            torch.cat([values, logits.logsumexp(1, keepdim=True)], 1)
            if self._normalised
            else values
        )


def gradient_of(
    model: PreTrainedModel,
    weights: Tensors,
    pack: Pack,
    loss: GroupLoss,
    hits: bool = False,
    normalised: bool = False,
) -> tuple[Scored, dict[str, Tensor]]:
    """The losses of a pack's groups, and the gradient of their sum by `weights`; parameters of the
    model that are not among these are constants. With `hits`, the loss is given them, too."""
    module = _Logps(model, hits, normalised)

    def logps_of(weights: Tensors) -> Any:
        named = {f"model.{name}": weight for name, weight in weights.items()}
        return torch.func.functional_call(module, named, (pack,))

    values, pull, *_ = torch.func.vjp(logps_of, dict(weights))
    scored, of_values = loss_gradients(values.detach(), pack, loss, slice(0, len(pack.groups)))
    (gradient,) = pull(of_values.to(values.dtype))
    return scored, gradient


def noise_of(squares: Tensor, total: Tensors, sums: Tensor) -> dict[str, float]:
    """`gradient_variance` and `gradient_signal` of a batch; `noise_scale` is the quotient of their
    means over all steps so far, once that of the signal is above 0.

    Args:
        squares: of each example's share of the batch's gradient, its squared norm; float64 [n].
        total: the batch's gradient.
        sums: of both estimates over the steps so far, float64 [2]; the batch's are added.
    """
    count, whole = len(squares), _square(total)
    if count < 2:
        return {}
    variance = count * (count * squares.sum() - whole) / (count - 1)
    now = torch.stack([variance, whole - variance / count]).cpu()
    sums += now
    found = dict(zip(("gradient_variance", "gradient_signal"), now.tolist(), strict=True))
    return found | ({"noise_scale": float(sums[0] / sums[1])} if sums[1] > 0 else {})


class FunctionalTrainer(Trainer):
    """Trains the parameters of a scorer's model that require gradients.

    Args:
        noise_scale: as in `FunctionalTraining`.
        hits, normalised: what the loss is given, too; see `TrainedReadout`.
    """

    def __init__(
        self,
        scorer: Scorer,
        optimizer: OptimizerConfig,
        master_weights: bool = True,
        dropout: bool = False,
        noise_scale: bool = False,
        hits: bool = False,
        normalised: bool = False,
    ) -> None:
        self._given = hits, normalised
        self._of_values = Updater(scorer.model, optimizer, master_weights)
        self._begin_module(scorer, self._of_values, dropout)
        self._measures_noise = noise_scale
        if noise_scale:
            scorer.tokens_per_forward = 1  # so no two examples share a forward
            self._of_values.beside[_SUMS] = torch.zeros(2, dtype=torch.float64)

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        torch.manual_seed(batch.noise)
        weights = self._of_values.weights()
        loss, parts, squares = loss.to(self._model.device), [], []
        for number in range(len(batch.packs)):
            pack, members = self._begin_forward(batch, number)

            def of_pack(logps: TokenLogps, some: slice, members: Tensor = members) -> GroupLosses:
                return loss(logps, members[some])

            part, gradient = gradient_of(self._model, weights, pack, of_pack, *self._given)
            self._of_values.add(gradient)
            parts.append(part)
            if self._measures_noise:
                squares.append(_square(gradient))
        result = step_result(list(parts[0].metrics), self._values(batch, parts), batch.groups)
        if not self._measures_noise or not self._of_values.gradient():
            return result
        sums = self._of_values.beside[_SUMS]
        estimates = noise_of(torch.stack(squares), self._of_values.gradient(), sums)
        return replace(result, metrics={**result.metrics, **_shares(estimates, result.losses)})


class FunctionalPolicy(TorchPolicy):
    """A folder opened for training with `FunctionalTrainer`."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        ranks: Ranks,
        dropout: bool,
        role: Role,
        noise_scale: bool,
    ) -> None:
        if ranks.count > 1:
            raise ValueError(
                f"backend=functional trains on one device, and the step has {ranks.count}; ask for "
                "one, or use torch (backend=null)"
            )
        # `torch.func` cannot differentiate what is recomputed.
        config = replace(config, activation_checkpointing=ActivationCheckpointing.none)
        super().__init__(folder, config, ranks, dropout, role)
        self.trainer = FunctionalTrainer(
            self.trainer.scorer,
            config.optimizer,
            config.master_weights,
            dropout,
            noise_scale,
            role.readout.hits,
            role.readout.normalised,
        )

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        found = super().make_ready(groups, others, shown_by)
        lacks = {
            "a load-balancing loss (set router_aux_loss_coef=0)": bool(self.trainer.balancing),
            "models that read every sequence alone": layout_of(self._model) is Layout.alone,
        }
        for what in holding(lacks):
            raise ValueError(f"backend=functional lacks {what}; use torch (backend=null)")
        return found


def _square(gradient: Tensors) -> Tensor:
    return torch.stack([g.double().square().sum() for g in gradient.values()]).sum()


def _shares(values: Mapping[str, float], losses: Tensor) -> dict[str, Tensor]:
    """Numbers of a batch as a metric's shares of its groups, which are summed in the log."""
    return {name: torch.full_like(losses, value / len(losses)) for name, value in values.items()}
