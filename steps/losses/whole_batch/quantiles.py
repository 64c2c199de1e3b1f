"""Match two batches of numbers by rank."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def matched(of: "Tensor", among: "Tensor", with_: "Tensor") -> "Tensor":
    """The numbers of `with_` that have the same ranks as the numbers `among[of]`, [n].

    `among` and `with_` are [batch]; `of` [n] are indices. Equal numbers rank in the order of the
    batch."""
    import torch

    order = among.argsort(stable=True)
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=of.device))
    return with_.sort().values[ranks[of]]
