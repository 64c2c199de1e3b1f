"""Log-probabilities of responses: the one code path of reference, policy and evaluation.

Because all of them come through here, a policy that still equals its reference has rewards of
exactly zero: a micro-batch of the same pairs gives the same bits with and without gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from steps.training.batches import IGNORED, PaddedBatch, pad_right
from steps.training.examples import TokenPair
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.models import evaluating


def response_logps(model: PreTrainedModel, batch: PaddedBatch) -> Tensor:
    """Sums over the response tokens of log p(token | everything before it); float64 [B].

    The head runs inside the model, so each architecture's own soft-cap and logit scale apply, and
    only from the first position that predicts anything. The log-softmax is taken in float32 (in
    float64 for a float64 model), the sum in float64.
    """
    length = batch.input_ids.shape[1]
    logits = model(
        input_ids=batch.input_ids, use_cache=False, logits_to_keep=length - batch.first_target
    ).logits
    negative_logps = functional.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
        batch.targets[:, batch.first_target :].flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return -negative_logps.view(logits.shape[:2]).double().sum(dim=1)


def pair_logps(model: PreTrainedModel, pairs: Sequence[TokenPair]) -> tuple[Tensor, Tensor]:
    """Logps of the chosen and of the rejected responses, each float64 [n], in one forward.

    The forward is over [chosen...; rejected...] and records gradients if the caller does.
    """
    sequences = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    logps = response_logps(model, pad_right(sequences).to(model.device))
    return logps[: len(pairs)], logps[len(pairs) :]


@torch.no_grad()
def score_pairs(
    model: PreTrainedModel,
    pairs: Sequence[TokenPair],
    micro_batch_size: int = 1,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Tensor, Tensor]:
    """`pair_logps` of any number of pairs without gradients or dropout; float64 [n] on the CPU."""
    chosen, rejected = [], []
    with evaluating(model):
        for start in range(0, len(pairs), micro_batch_size):
            micro_batch = pairs[start : start + micro_batch_size]
            for parts, logps in zip(
                (chosen, rejected), pair_logps(model, micro_batch), strict=True
            ):
                parts.append(logps.cpu())
            on_progress(start + len(micro_batch), len(pairs), {})
    return torch.cat(chosen), torch.cat(rejected)
