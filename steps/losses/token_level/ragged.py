"""Operations on responses of different lengths that are concatenated in one tensor of tokens."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def response_sums(tokens: "Tensor", lengths: "Tensor") -> "Tensor":
    """The sum over each response's part of `tokens` [S], in the shape of `lengths`."""
    import torch

    flat = lengths.flatten()
    return torch.segment_reduce(tokens, "sum", lengths=flat, unsafe=True).view_as(lengths)


def each_token(values: "Tensor", lengths: "Tensor", tokens: int) -> "Tensor":
    """For each token, the value of its response, [tokens]; `values` has the shape of `lengths`.

    `tokens` is the sum of `lengths`, so that the call does not synchronise with the device."""
    return values.flatten().repeat_interleave(lengths.flatten(), output_size=tokens)


def places(lengths: "Tensor", tokens: int) -> "Tensor":
    """The position of each token in its response, from 0, int64 [tokens]."""
    import torch

    starts = (lengths.flatten().cumsum(0) - lengths.flatten()).view_as(lengths)
    numbers = torch.arange(tokens, device=lengths.device)
    return numbers - each_token(starts, lengths, tokens)
