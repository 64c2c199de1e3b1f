"""The reference of a policy as a model that computes while the policy is trained.

Cached logps of a reference are one number a token. A loss that needs its whole distribution runs
the reference's model too, on the packs of the policy. That is the policy's own model without its
adapters, or else a second one, loaded from the folder from which the policy starts. It is frozen,
so a run that goes on from a checkpoint needs nothing of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.adapters import without_adapters
from steps.models.folders import evaluating
from steps.scoring.architectures.pack_layouts import Layout, layout_of, read_batches
from steps.scoring.architectures.routing import Routing
from steps.scoring.embedding import Embedded, add_to_embeddings, embed
from steps.scoring.head import Head, output_head
from steps.scoring.logps import GroupLoss, Scored, backward, predicting_rows
from steps.scoring.packing import Pack
from steps.scoring.scorer import Readout
from steps.scoring.unpacked import target_logps, unpacked_logits
from steps.training.beside.token_kl import compared, logps_and_divergences
from steps.training.policy import Role
from steps.training.trainer import DivergentLogps, TrainedReadout

Result = TypeVar("Result")


class LiveReference:
    """The frozen reference of a policy.

    Args:
        model: the reference's.
        is_policy: it is the policy's own, whose adapters are left out.
    """

    def __init__(self, model: PreTrainedModel, is_policy: bool) -> None:
        self._model, self._is_policy = model, is_policy
        if not is_policy:
            model.requires_grad_(False)

    def beside(self, readout: TrainedReadout) -> TrainedReadout:
        """The `readout` of a language model, with a backward that compares it with this."""
        divergences = Readout(
            self._divergences, lambda model, pack, _: self._divergences(model, pack), readout.probe
        )
        return replace(readout, backward=self._backward, divergences=divergences)

    def read_like(self, policy: PreTrainedModel) -> None:
        """Read packs as `policy` does, which `parity` has made ready."""
        if self._is_policy:
            return
        self._model.set_attn_implementation(str(policy.config._attn_implementation))
        if layout_of(policy) is Layout.batched:
            read_batches(self._model)

    def _backward(
        self, model: PreTrainedModel, pack: Pack, loss: GroupLoss, routing: Routing | None
    ) -> Scored:
        """As `scoring.logps.forward_backward`, for a loss of `DivergentLogps`."""
        embedded = _embedded(model, pack)
        logps, divergences = self._both(model, pack, embedded, routing).double().unbind(dim=1)
        of_pack = DivergentLogps(logps, pack.lengths, divergences)
        scored = backward(of_pack, pack, loss, routing)
        if embedded is not None:
            add_to_embeddings(embedded)
        return scored

    @torch.no_grad()
    def _divergences(self, model: PreTrainedModel, pack: Pack) -> Tensor:
        with evaluating(model):
            return self._both(model, pack, _embedded(model, pack))[:, 1]

    def _both(
        self,
        model: PreTrainedModel,
        pack: Pack,
        embedded: Embedded | None,
        routing: Routing | None = None,
    ) -> Tensor:
        """The logps of `model` and the KL, [S, 2], differentiable by autograd."""
        if embedded is None:
            theirs = self._computed(lambda reference: list(unpacked_logits(reference, pack)))
            ours = unpacked_logits(model, pack, routing)
            pairs = zip(ours, theirs, strict=True)
            return torch.cat([_of_logits(*mine, other) for mine, (other, _) in pairs])
        theirs = self._computed(
            lambda reference: predicting_rows(reference, pack, embed(reference, pack))
        )
        rows = predicting_rows(model, pack, embedded, routing)
        return logps_and_divergences(pack, output_head(model), rows, self._head, theirs)

    @torch.no_grad()
    def _computed(self, read: Callable[[PreTrainedModel], Result]) -> Result:
        with evaluating(self._model), without_adapters(self._model):
            return read(self._model)

    @property
    def _head(self) -> Head:
        head = output_head(self._model)
        module: Any = head.module
        return replace(head, module=getattr(module, "base_layer", module))


def _of_logits(logits: Tensor, targets: Tensor, reference: Tensor) -> Tensor:
    """The logps and the KL, [n, 2], from a response's logits by both models. The logps have the
    bits of `unpacked_logps`."""
    divergences = compared(logits.clone(), reference, targets)[:, 1]  # it overwrites them
    return torch.stack([target_logps(logits, targets), divergences], dim=1)


def _embedded(model: PreTrainedModel, pack: Pack) -> Embedded | None:
    """The pack as input of a model; None for a model that reads each response alone."""
    return None if layout_of(model) is Layout.alone else embed(model, pack)


BESIDE_REFERENCE = Role(reference=LiveReference)
"""A language model whose loss needs the reference's distribution at each token."""
