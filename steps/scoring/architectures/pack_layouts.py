"""The three ways in which a model reads the responses of a pack, and which one a model uses.

    packed     one row without padding, each group's prompt only once       `attention`
    batched    one row for each response, padded on the right               `batching`
    alone      one forward for each response                                `unpacked`

`parity` tries them in this order and chooses the first that gives correct logps.
"""

from collections.abc import Sequence
from enum import StrEnum
from weakref import WeakSet

from transformers import PreTrainedModel

from steps.scoring.attention import attends_packed
from steps.scoring.examples import TokenGroup
from steps.scoring.packing import plan_batches, plan_packs


class Layout(StrEnum):
    """The three ways of reading, see the module."""

    packed = "packed"
    batched = "batched"
    alone = "alone"


_BATCHED: WeakSet[PreTrainedModel] = WeakSet()


def layout_of(model: PreTrainedModel) -> Layout:
    """How `model` reads responses; `alone` until `parity` has chosen another way."""
    if attends_packed(model):
        return Layout.packed
    return Layout.batched if model in _BATCHED else Layout.alone


def read_batches(model: PreTrainedModel) -> None:
    """Make `model` read padded batches whenever its attention is not the packed one."""
    _BATCHED.add(model)


def read_alone(model: PreTrainedModel) -> None:
    """Undo `read_batches`."""
    _BATCHED.discard(model)


def plan_forwards(
    layout: Layout, groups: Sequence[TokenGroup], tokens_per_forward: int
) -> list[list[int]]:
    """The groups of each forward, as indices into `groups`.

    In the layout `alone`, each entry is one group, which takes one forward for each response.
    """
    if layout is Layout.packed:
        return plan_packs([group.packed_tokens for group in groups], tokens_per_forward)
    if layout is Layout.batched:
        return plan_batches(groups, tokens_per_forward)
    return [[index] for index in range(len(groups))]
