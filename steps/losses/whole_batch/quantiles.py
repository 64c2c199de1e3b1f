"""Which value of one batch of numbers stands where another's does, when both are sorted."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def matched(of: "Tensor", among: "Tensor", with_: "Tensor") -> "Tensor":
    """Of the numbers `among` [batch], those at the places `of` [n] have ranks. The numbers of
    `with_` [batch] that have the same ranks, [n]; equal numbers rank in the order of the batch."""
    import torch

    order = among.argsort(stable=True)
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=of.device))
    return with_.sort().values[ranks[of]]
