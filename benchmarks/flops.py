"""Floating-point operations of matrix products, counted as they are done.

Attention between tokens is not among them: torch counts none of it on a CPU, and a floor of
`6 N (P + C + R) + 6 V H (C + R)` for a pair has none either.
"""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """A context, for one thread, with `get_total_flops()` at its end. It takes time: do not also
    measure that."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _in_place_product})


def _in_place_product(_: Any, a: tuple[int, int], b: tuple[int, int], *__: Any, **___: Any) -> int:
    return 2 * a[0] * a[1] * b[1]
