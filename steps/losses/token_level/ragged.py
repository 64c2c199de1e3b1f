"""Responses of different lengths, one after the other in one tensor of tokens."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def response_sums(tokens: "Tensor", lengths: "Tensor") -> "Tensor":
    """The sum over each response's part of `tokens` [S], in the shape of `lengths`."""
    import torch

    flat = lengths.flatten()
    return torch.segment_reduce(tokens, "sum", lengths=flat, unsafe=True).view_as(lengths)


def each_token(values: "Tensor", lengths: "Tensor", tokens: int) -> "Tensor":
    """For each of so many `tokens`, the value of its response; `values` has the shape of
    `lengths`. (With the number of tokens nothing waits for the device.)"""
    return values.flatten().repeat_interleave(lengths.flatten(), output_size=tokens)


def places(lengths: "Tensor", tokens: int) -> "Tensor":
    """Which token of its response each of so many `tokens` is, from 0, int64 [tokens]."""
    import torch

    starts = (lengths.flatten().cumsum(0) - lengths.flatten()).view_as(lengths)
    numbers = torch.arange(tokens, device=lengths.device)
    return numbers - each_token(starts, lengths, tokens)
