"""Models that compute in float64 throughout, for comparisons to the last digits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

_WITH_A_DTYPE = ((Tensor, "to"), (Tensor, "softmax"), (torch, "softmax"))
_WITH_A_DTYPE += ((torch.nn.functional, "softmax"),)


@contextmanager
def in_float64() -> Iterator[None]:
    """Within the block no thread casts a float64 tensor to float32, as transformers does in its
    norms, rotations and eager softmax, whatever the model's dtype.

    Where a gradient passes such a cast it is rounded to eight digits, and the sum of two rounded
    gradients is not the rounded sum. The functions are replaced, because a mode of torch would look
    at every call of every function, which takes longer than to compute a tiny model.
    """
    with ExitStack() as stack:
        cast = Tensor.float
        kept = wraps(cast)(lambda x: x if x.dtype is torch.float64 else cast(x))
        stack.enter_context(patch.object(Tensor, "float", kept))
        for owner, name in _WITH_A_DTYPE:
            stack.enter_context(patch.object(owner, name, _keeping(getattr(owner, name))))
        yield


def _keeping(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def keeping(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype is torch.float64:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return call(x, *args, **kwargs)

    return keeping
