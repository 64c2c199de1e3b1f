"""KL(π_ref ‖ π) over the vocabulary at each scored token, together with the token's logp.

For the logits z of the policy and z' of the reference, with probabilities p and p',

    KL = Σ_v p'_v (log p'_v − log p_v)        dKL/dz_v = p_v − p'_v

No gradient flows into the reference. Logits exist for a few rows at a time, and are computed once
more in the backward; `compared` is given those of a model that reads each response alone. The logps
have the bits that `Head.softmax` gives them; where both models give equal logits, KL and its
gradient are exactly 0.
"""

from typing import Any

import torch
from torch import Tensor

from steps.scoring.head import Head
from steps.scoring.logps import by_chunks
from steps.scoring.packing import Pack

_BUFFERS = 4
"""Tensors of the size of a chunk's logits: of both models, of their ratios, and of a gradient."""


def logps_and_divergences(
    pack: Pack, head: Head, rows: Tensor, reference: Head, reference_rows: Tensor
) -> Tensor:
    """The logp of each scored token and the KL there, [S, 2], differentiable by autograd.

    Args:
        rows: the policy's hidden states [S, H], which `head` turns into logits.
        reference_rows: those of the reference, for its head.
    """

    def of_chunk(rows: Tensor, reference_rows: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            theirs = reference.logits(reference_rows)
        return compared(head.logits(rows), theirs, targets)

    return by_chunks(pack, head, of_chunk, rows, reference_rows, buffers=_BUFFERS)


def compared(logits: Tensor, reference: Tensor, targets: Tensor) -> Tensor:
    """The same, [S, 2], from the logits [S, V] of both models, whose values are overwritten."""
    return torch.stack(_Compared.apply(logits, reference, targets), dim=1)


class _Compared(torch.autograd.Function):
    """Log-softmax at the targets, and the KL. Both logits' buffers are overwritten."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, reference: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        ours, theirs = (each.detach() for each in (logits, reference))
        for each in (ours, theirs):
            each.sub_(each.amax(dim=-1, keepdim=True))
        ratios = theirs - ours
        at_target = ours.gather(1, targets[:, None])[:, 0]
        sums, their_sums = (each.exp_().sum(dim=-1) for each in (ours, theirs))
        ratios.masked_fill_(theirs == 0, 0)  # of a token that neither model can give: not a number
        divergences = ratios.mul_(theirs).sum(dim=-1) / their_sums + (sums / their_sums).log()
        ctx.save_for_backward(ours, sums, theirs, their_sums, targets)
        return at_target - sums.log(), divergences

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ours, sums, theirs, their_sums, targets = ctx.saved_tensors
        of_logps, of_divergences = gradients
        ours.div_(sums[:, None])
        apart = theirs.div_(-their_sums[:, None]).add_(ours)
        ours[torch.arange(len(targets), device=targets.device), targets] -= 1
        apart.mul_(of_divergences[:, None])
        return ours.mul_(-of_logps[:, None]).add_(apart), None, None
