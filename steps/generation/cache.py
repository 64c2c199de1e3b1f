"""The cache of keys and values in generation, and attention to it.

The attention is registered with transformers under the name `temper_slots`. Each forward passes a
`Turn` as the keyword `turn` to the attention of every layer: a `Prefill` reads prompts as one pack
and stores their keys and values; a `Decode` reads one token of every running sequence, each in its
slot of the cache.

    blocks of B positions, each of layers, each [keys | values, slots, heads, B, d]

A key is stored at its token's position in the sequence. So the result for a sequence does not
depend, in any bit, on the number and lengths of other sequences or on its slot: matrix products
have the same shape for every block, and positions after a sequence's end add zeros at the end of
each sum.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache as remembered
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steps.scoring.attention import Reach, packed_attention, reach_of, refuse_unknown
from steps.scoring.packing import Pack

SLOTS = "temper_slots"
BLOCK = 32
_BLOCKS = {"cuda": 512}
"""The positions of a block, by the kind of device, and `BLOCK` on others. A GPU waits for each call
of a kernel, so it has few blocks; a processor computes little behind the end of a sequence."""
_HONOURED = ("scaling", "sliding_window", "softcap", "s_aux")


class Turn(Protocol):
    """One forward of a model over its cache."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, None]:
        """What transformers calls in every layer; see `packed_attention`."""
        ...


@contextmanager
def attending(model: PreTrainedModel, attention: str = SLOTS) -> Iterator[None]:
    """Switch `model` to slot attention (or another `attention`) in the block, then restore it."""
    ALL_ATTENTION_FUNCTIONS.register(SLOTS, _attend)
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        yield
    finally:
        model.set_attn_implementation(before or "eager")


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    *,
    turn: Turn | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if turn is None:
        raise ValueError(
            f"a model that attends as {SLOTS!r} was called without a turn: it is an engine's until "
            "the last completion is taken"
        )
    refuse_unknown(attention_mask, {})
    return turn.attend(module, query, key, value, options)


class Prefill:
    """Reads a pack and keeps the keys and values of its tokens."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._layers: list[Tensor] = []

    @property
    def keys_and_values(self) -> Tensor:
        """[layers, 2, heads, tokens of the pack, d]."""
        return torch.stack(self._layers)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, None]:
        self._layers.append(torch.stack([key[0], value[0]]))
        return packed_attention(module, query, key, value, None, pack=self._pack, **options)


class KeyValueCache:
    """The keys and values of at most `slots` sequences, in as many blocks as the longest needs.

    Every layer of a block is a tensor of its own: so the C library keeps the freed ones of small
    models, and their memory need not be cleared by the system for every call of `sample`.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._slots = slots
        self.block = _BLOCKS.get(device.type, BLOCK)
        self.blocks: list[list[Tensor]] = []

    def put(self, prompt: Tensor, slots: Sequence[int]) -> None:
        """Store a prompt's keys and values, [layers, 2, heads, P, d], in each of `slots`."""
        pieces = prompt.split(self.block, dim=3)
        layers, two, heads, _, size = prompt.shape
        while len(self.blocks) < len(pieces):
            shape = (two, self._slots, heads, self.block, size)
            self.blocks.append([prompt.new_zeros(shape) for _ in range(layers)])
        first, last = slots[0], slots[-1]
        are_one_range = list(slots) == list(range(first, last + 1))  # which is copied faster
        where = slice(first, last + 1) if are_one_range else slots
        for block, piece in zip(self.blocks, pieces, strict=False):
            for layer, new in zip(block, piece, strict=True):
                layer[:, where, :, : new.shape[2]] = new[:, None]

    def get(self, slot: int, tokens: int) -> Tensor:
        """A copy of the keys and values of a slot's first tokens, as `put` takes them."""
        blocks = self.blocks[: -(-tokens // self.block)]
        parts = [torch.stack([layer[:, slot] for layer in block]) for block in blocks]
        return torch.cat(parts, dim=3)[..., :tokens, :]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the content of the slots `sources` to `targets`."""
        if sources:
            device = self.blocks[0][0].device
            old, new = (torch.tensor(slots, device=device) for slots in (sources, targets))
            for layer in chain.from_iterable(self.blocks):
                layer.index_copy_(1, new, layer.index_select(1, old))

    def resize(self, tokens: int) -> None:
        """Add or remove blocks to fit sequences of `tokens` tokens."""
        count = -(-tokens // self.block)
        del self.blocks[count:]
        while len(self.blocks) < count:
            self.blocks.append([torch.zeros_like(layer) for layer in self.blocks[0]])


class OneToken:
    """A turn that reads one token of each running sequence; row i belongs to slot i.

    Args:
        cache: has the keys of earlier tokens; the forward adds those of the new tokens.
        positions: int64 [rows], on the device; the position of each token in its sequence. The
            cache has a block for each of them.
    """

    def __init__(self, cache: KeyValueCache, positions: Tensor) -> None:
        self._blocks, self._block = cache.blocks, cache.block
        self._positions = positions
        self._layer = 0
        self._bias = remembered(self._unseen)

    def write(self, layers: Sequence[Tensor], key: Tensor, value: Tensor) -> None:
        """Store the keys and values of the new tokens, [1, heads, rows, d], in a layer of all
        blocks, each [2, rows, heads, B, d]."""
        raise NotImplementedError

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, None]:
        """Query [1, heads, rows, d]; the output is [1, rows, heads, d]."""
        scale, window, softcap, sinks = (options.pop(name, None) for name in _HONOURED)
        refuse_unknown(None, options)
        rows, heads = query.shape[2], key.shape[1]
        layers = [block[self._layer][:, :rows] for block in self._blocks]
        self._layer += 1
        self.write(layers, key, value)
        q = query[0].transpose(0, 1).reshape(rows * heads, -1, query.shape[-1])
        q = q * (query.shape[-1] ** -0.5 if scale is None else scale)
        parts = [q @ layer[0].flatten(0, 1).transpose(1, 2) for layer in layers]
        scores = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.unflatten(0, (rows, heads)) + self._bias(reach_of(module, window))
        weights = scores.softmax(dim=-1)
        if sinks is not None:  # one more key for each head, with this score and a value of zero
            rest = scores.logsumexp(dim=-1, keepdim=True) - sinks.view(heads, -1, 1)
            weights = weights * rest.sigmoid()
        weights = weights.to(q.dtype).flatten(0, 1).split(self._block, dim=2)
        output = weights[0] @ layers[0][1].flatten(0, 1)
        for own, layer in zip(weights[1:], layers[1:], strict=True):
            output += own @ layer[1].flatten(0, 1)
        return output.view(1, rows, -1, output.shape[-1]), None

    def _unseen(self, reach: Reach) -> Tensor:
        """[rows, 1, 1, keys of all blocks]: minus infinity for keys to which a row's token may not
        attend, zero for others; in float32 or float64, and so are the scores after the addition."""
        key = torch.arange(len(self._blocks) * self._block, device=self._positions.device)
        hidden = ~reach.sees(self._positions[:, None], key)
        accurate = torch.promote_types(self._blocks[0][0].dtype, torch.float32)
        bias = torch.zeros(hidden.shape, dtype=accurate, device=hidden.device)
        return bias.masked_fill_(hidden, -torch.inf)[:, None, None]


class Decode(OneToken):
    """Writes each token's keys where they belong, by positions that the host knows.

    Args:
        positions: on the host.
    """

    def __init__(self, cache: KeyValueCache, positions: Tensor) -> None:
        cache.resize(int(positions.max()) + 1)
        device, heads = cache.blocks[0][0].device, cache.blocks[0][0].shape[2]
        super().__init__(cache, positions.to(device))
        # Of each block: which rows write to it, None for all, and where, for each row and head.
        self._written: list[tuple[int, Tensor | None, Tensor]] = []
        head = torch.arange(heads)
        for number in range(len(self._blocks)):
            rows = (positions // self._block == number).nonzero()[:, 0]
            if len(rows):
                places = (rows[:, None] * heads + head) * self._block
                places += positions[rows, None] % self._block
                own = rows.to(device) if len(rows) < len(positions) else None
                self._written.append((number, own, places.flatten().to(device)))

    def write(self, layers: Sequence[Tensor], key: Tensor, value: Tensor) -> None:
        """As `OneToken.write`."""
        for number, own, places in self._written:
            for kind, new in enumerate((key, value)):
                added = new[0] if own is None else new[0].index_select(1, own)
                added = added.transpose(0, 1).flatten(0, 1)
                layers[number][kind].flatten(0, 2).index_copy_(0, places, added)


class FixedDecode(OneToken):
    """Starts the same kernels whatever the positions, which may be replaced where they lie. So a
    recording of a forward's kernels serves every forward of as many rows over as many blocks."""

    def __init__(self, cache: KeyValueCache, positions: Tensor) -> None:
        super().__init__(cache, positions)
        every = torch.arange(len(positions), device=positions.device)
        # Of each block: which rows write to it, [rows, 1, 1], and a place in it for each row.
        self._written: list[tuple[Tensor, tuple[Any, ...]]] = []
        for number in range(len(self._blocks)):
            place = positions - number * self._block
            is_here = (place >= 0) & (place < self._block)
            where = slice(None), every, place.clamp(0, self._block - 1)
            self._written.append((is_here[:, None, None], where))

    def write(self, layers: Sequence[Tensor], key: Tensor, value: Tensor) -> None:
        """As `OneToken.write`; rows of other blocks write to a block what it has there already."""
        new = torch.stack([key[0], value[0]]).transpose(1, 2)
        for layer, (is_here, where) in zip(layers, self._written, strict=True):
            by_place = layer.transpose(2, 3)  # [2, rows, B, heads, d]
            by_place[where] = torch.where(is_here, new, by_place[where])
