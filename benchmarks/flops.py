"""Count the floating-point operations of matrix products as they are executed.

Attention between tokens is not counted: torch does not count it on a CPU, and the lower bound
`6 N (P + C + R) + 6 V H (C + R)` for a pair does not include it either.
"""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """A context for one thread, with `get_total_flops()` at its end. Counting takes time, so do not
    measure time in it."""
    mapping = {
        torch.ops.aten.addmm_: _in_place_product,
        torch.ops.mkldnn._linear_pointwise: _linear,
    }
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _in_place_product(_: Any, a: tuple[int, int], b: tuple[int, int], *__: Any, **___: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


def _linear(rows: tuple[int, ...], weight: tuple[int, int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(rows) * weight[0]
