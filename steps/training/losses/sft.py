"""Supervised fine-tuning: the negative log-likelihood of response tokens."""

from torch import Tensor


def sft_loss(response_logps: Tensor) -> Tensor:
    """Summed negative log-likelihoods [B] of responses.

    Divided by the response tokens of the *global* batch they become the mean over tokens, whatever
    the micro-batches; a mean of micro-batch means would weight tokens by their neighbours.
    """
    return -response_logps
