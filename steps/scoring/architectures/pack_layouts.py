"""How a model reads the responses of a pack, and where that is written down.

    packed     one row without padding, the prompt of a group once          `attention`
    batched    a row for each response, padded on the right                 `batching`
    alone      a forward for each response                                  `unpacked`

`parity` tries them in this order and takes the first that is right.
"""

from collections.abc import Sequence
from enum import StrEnum
from weakref import WeakSet

from transformers import PreTrainedModel

from steps.scoring.attention import attends_packed
from steps.scoring.examples import TokenGroup
from steps.scoring.packing import plan_batches, plan_packs


class Layout(StrEnum):
    """The ways above."""

    packed = "packed"
    batched = "batched"
    alone = "alone"


_BATCHED: WeakSet[PreTrainedModel] = WeakSet()


def layout_of(model: PreTrainedModel) -> Layout:
    """How `model` reads; alone, until it was found out that it can read otherwise."""
    if attends_packed(model):
        return Layout.packed
    return Layout.batched if model in _BATCHED else Layout.alone


def read_batches(model: PreTrainedModel) -> None:
    """Makes `model` read in padded batches whenever its attention is not the packed one."""
    _BATCHED.add(model)


def read_alone(model: PreTrainedModel) -> None:
    """Undoes `read_batches`."""
    _BATCHED.discard(model)


def plan_forwards(
    layout: Layout, groups: Sequence[TokenGroup], tokens_per_forward: int
) -> list[list[int]]:
    """Which of `groups` go through the model together, by their indices.

    A group that is read alone takes as many forwards as it has responses: as many on every rank.
    """
    if layout is Layout.packed:
        return plan_packs([group.packed_tokens for group in groups], tokens_per_forward)
    if layout is Layout.batched:
        return plan_batches(groups, tokens_per_forward)
    return [[index] for index in range(len(groups))]
