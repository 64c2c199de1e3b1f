"""Attention over a pack: each segment attends to its group's prompt and its own past only.

The function is registered with transformers under the name `temper_packed`. It gets the pack as the
keyword `pack` of the model's forward, which passes unknown keywords on to the attention. A context
variable would not survive activation checkpointing, which calls the attention again during the
backward. As the name has no registered mask function, transformers builds no mask.

A layer's window or chunk is either an argument of its attention call (`sliding_window`) or a
setting of the model's config (`layer_types`, `attention_chunk_size`). `architectures.masks` finds
layers that do not attend as their config describes.

On a GPU, one variable-length flash kernel processes all segments if it supports the layer's
options. Otherwise scaled_dot_product_attention processes one segment after the other; on one thread
of a CPU, it processes short segments of like length together.
"""

import functools
import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steps.scoring.packing import Pack, Segment

PACKED = "temper_packed"

_WITH_FLASH = {"cuda"}
"""Kinds of devices with the variable-length kernel."""

_ALWAYS_SPLITTING: set[torch.device] = set()
"""Devices whose kernel refuses to be told not to split the keys, as some builds of it do."""

_FEW_KEYS, _PADDED_TO = 128, 8
"""On a CPU, segments of at most that many keys are padded to a multiple and computed together: one
by one, starting the kernel takes longer than its work."""

# Keywords that every layer of some family passes on and that say nothing of how to attend.
_NO_MATTER = {"position_ids", "position_embeddings", "use_cache", "cache_position", "is_causal"}
_NO_MATTER |= {"output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
_NO_MATTER |= {"past_key_values", "past_key_value", "layer_idx"}


class Reach(NamedTuple):
    """How far back the tokens of a layer attend, counted in tokens and including the token itself.

    window: a token attends to the last `window` tokens (Beltagy et al. 2020, Longformer).
    chunk: the sequence is cut into chunks of this length; a token attends within its chunk
        (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    def covers(self, tokens: int) -> bool:
        """Whether every token of a sequence of this many `tokens` attends to all of its past."""
        return all(limit is None or tokens <= limit for limit in self)

    def mask(self, rows: int, keys: int, device: torch.device) -> Tensor:
        """Where row i, the query at position keys - rows + i, may attend; bool [rows, keys]."""
        key = torch.arange(keys, device=device)
        return self.sees(key[keys - rows :, None], key)

    def sees(self, last: Tensor, key: Tensor) -> Tensor:
        """Whether the query at the position `last` attends to the position `key`."""
        seen = key <= last
        if self.window is not None:
            seen = seen & (key > last - self.window)
        if self.chunk is not None:
            seen = seen & (key >= last - last % self.chunk)
        return seen


def reach_of(layer: nn.Module, sliding_window: int | None) -> Reach:
    """The reach of an attention `layer` that was called with `sliding_window`.

    Some models have a window although their layers pass none, as their masks contain it (Qwen2-MoE,
    PhiMoE, Llama 4). The reach then comes from the model's config.
    """
    if sliding_window is not None:
        return Reach(window=sliding_window)
    config: Any = getattr(layer, "config", None)
    kinds, number = getattr(config, "layer_types", None), getattr(layer, "layer_idx", None)
    kind = kinds[number] if kinds and number is not None else None
    if kind == "chunked_attention":
        return Reach(chunk=config.attention_chunk_size)
    slides = kind == "sliding_attention" or not kinds
    if slides and getattr(config, "use_sliding_window", True):
        return Reach(window=getattr(config, "sliding_window", None))
    return Reach()


@dataclass(frozen=True)
class _Options:
    scale: float
    dropout: float
    reach: Reach
    softcap: float | None
    sinks: Tensor | None


def use_packed_attention(model: PreTrainedModel) -> None:
    """Switch `model` to packed attention, which accepts packs only. Generation needs one of
    transformers' own implementations again."""
    ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
    _try_without_splits(model.device)
    model.set_attn_implementation(PACKED)


def attends_packed(model: PreTrainedModel) -> bool:
    """Whether packed attention is the model's current implementation."""
    return model.config._attn_implementation == PACKED


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    pack: Pack | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in every layer; returns [1, T, heads, d].

    Args:
        query: [1, heads, T, d]; `key` and `value` have their own number of heads.
        s_aux: [heads], attention sinks: the scores of one more key, whose value is zero (gpt-oss).

    Raises ValueError for a forward without a pack, and for any argument that this function does not
    implement (position biases, caches): to ignore it would silently change the result.
    """
    _refuse(pack, query, key, attention_mask, others)
    assert pack is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    options = _Options(scale, dropout, reach_of(module, sliding_window), softcap, s_aux)
    if _varlen_fits(query, value, options):
        return _attend_varlen(query, key, value, pack, options)[None], None
    return _attend_segments(query, key, value, pack, options)[None], None


def _refuse(
    pack: Pack | None, query: Tensor, key: Tensor, mask: Tensor | None, others: dict[str, Any]
) -> None:
    if pack is None:
        raise ValueError(
            f"a model that attends as {PACKED!r} was called without a pack; for generation or a "
            "plain forward call model.set_attn_implementation('sdpa') first"
        )
    tokens = len(pack.input_ids)
    if query.shape[0] != 1 or query.shape[2] != tokens or key.shape[2] != tokens:
        raise ValueError(f"queries {tuple(query.shape)} are not those of a pack of {tokens} tokens")
    refuse_unknown(mask, others)


def refuse_unknown(mask: Tensor | None, others: Mapping[str, Any]) -> None:
    """Raise ValueError if an attention call has a mask or keywords that this module does not
    implement."""
    unknown = [n for n, v in others.items() if v is not None and n not in _NO_MATTER]
    unknown += ["attention_mask"] if mask is not None else []
    unknown += ["is_causal=False"] if others.get("is_causal") is False else []
    if unknown:
        raise ValueError(f"packed attention cannot honour {', '.join(unknown)}")


def _attend_segments(
    query: Tensor, key: Tensor, value: Tensor, pack: Pack, options: _Options
) -> Tensor:
    """The output of all rows, [T, heads, d]. Segments of few keys are computed together where that
    changes no bit of them, the others one after the other."""
    few = _few_keys(pack, options, query)
    if few is None:
        return torch.cat(_attend_each(query, key, value, pack, options, pack.segments))
    outputs = _attend_each(query, key, value, pack, options, few.others)
    outputs += _attend_few(query, key, value, few, options.scale)
    return torch.cat(outputs).index_select(0, few.places)


def _attend_each(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pack: Pack,
    options: _Options,
    segments: Sequence[Segment],
) -> list[Tensor]:
    """The output of each of the `segments`."""
    if not segments:
        return []
    # The backward of a split joins the parts' gradients once; each slice would get one of length T.
    rows = [segment.stop - segment.start for segment in pack.segments]
    queries, keys, values = (x[0].split(rows, dim=1) for x in (query, key, value))
    numbers = {segment.start: number for number, segment in enumerate(pack.segments)}
    outputs = []
    for segment in segments:
        number, prefix = numbers[segment.start], segment.prefix_stop - segment.prefix_start
        k, v = keys[number], values[number]
        if prefix:
            first = numbers[segment.prefix_start]
            k, v = (
                torch.cat([every[first][:, :prefix], own], dim=1)
                for every, own in ((keys, k), (values, v))
            )
        outputs.append(_attend(queries[number], k, v, pack, options))
    return outputs


@dataclass(frozen=True)
class _Padded:
    """n segments, padded to Q rows and K keys. Padding repeats a segment's own first row, so that
    nothing of a segment, not even NaN in its gradient, reaches another.

    query_rows, key_rows: int64 [n * Q] and [n * K]; rows of the pack.
    mask: [n, 1, Q, K], as the kernel adds it to scores.
    """

    query_rows: Tensor
    key_rows: Tensor
    mask: Tensor


@dataclass(frozen=True)
class _FewKeys:
    """The segments of a pack that have few keys, in batches, and the `others`.

    query_rows, key_rows: those of all batches.
    places: int64 [T]; the place of each row of the pack, if first the outputs of the others stand
        one after the other and then those of the batches.
    """

    batches: Sequence[_Padded]
    query_rows: Tensor
    key_rows: Tensor
    places: Tensor
    others: Sequence[Segment]


def _few_keys(pack: Pack, options: _Options, query: Tensor) -> _FewKeys | None:
    """The segments that are computed together, if there are any.

    On one thread, the kernel gives a sequence the same bits in any company. On several, the bits
    depend on which thread computes it, so each segment is computed alone; so are those with dropout
    and those that no kernel computes.
    """
    alone = query.device.type != "cpu" or torch.get_num_threads() > 1 or options.dropout > 0
    if alone or options.softcap is not None or options.sinks is not None:
        return None
    kind = (_FewKeys, options.reach, query.dtype)
    if kind not in pack.shared:
        pack.shared[kind] = _in_batches(pack, options.reach, query.dtype)
    return pack.shared[kind]


def _in_batches(pack: Pack, reach: Reach, dtype: torch.dtype) -> _FewKeys | None:
    """The segments with few keys, by their numbers of rows and keys, rounded up. So the padding of
    a segment, and with it the bits of its output, depends on nothing else in the pack."""
    alike, others = defaultdict[tuple[int, int], list[Segment]](list), list[Segment]()
    for segment in pack.segments:
        if segment.num_keys > _FEW_KEYS:
            others.append(segment)
        else:
            size = _rounded_up(segment.stop - segment.start), _rounded_up(segment.num_keys)
            alike[size].append(segment)
    if not alike:
        return None
    rooms = [(segment, segment.stop - segment.start) for segment in others]
    rooms += [(segment, rows) for (rows, _), batch in alike.items() for segment in batch]
    places, end = [0] * len(pack.input_ids), 0
    for segment, room in rooms:
        own = segment.stop - segment.start
        places[segment.start : segment.stop] = range(end, end + own)
        end += room
    batches = [_padded(batch, *size, reach, dtype) for size, batch in alike.items()]
    return _FewKeys(
        batches,
        torch.cat([batch.query_rows for batch in batches]),
        torch.cat([batch.key_rows for batch in batches]),
        torch.tensor(places),
        others,
    )


def _rounded_up(tokens: int) -> int:
    return -(-tokens // _PADDED_TO) * _PADDED_TO


def _padded(
    segments: Sequence[Segment], rows: int, keys: int, reach: Reach, dtype: torch.dtype
) -> _Padded:
    start, stop, prefix_start, prefix_stop = torch.tensor(segments).t()[:, :, None]
    row, key, prefix = torch.arange(rows), torch.arange(keys), prefix_stop - prefix_start
    query_rows = torch.where(row < stop - start, start + row, start)
    key_rows = torch.where(key < prefix, prefix_start + key, start + key - prefix)
    key_rows = torch.where(key < prefix + stop - start, key_rows, start)
    seen = reach.sees(prefix[:, None] + row[:, None], key)
    # A row that attends to nothing would be NaN.
    seen = seen | (row >= stop - start)[:, :, None]
    return _Padded(query_rows.flatten(), key_rows.flatten(), _added(seen[:, None], dtype))


def _attend_few(
    query: Tensor, key: Tensor, value: Tensor, few: _FewKeys, scale: float
) -> list[Tensor]:
    """The output of each batch with its padding, [n * Q, heads, d]."""
    heads, shared = key.shape[1], query.shape[1] // key.shape[1]
    rows = [len(batch.query_rows) for batch in few.batches]
    keys = [len(batch.key_rows) for batch in few.batches]
    # [T, heads, d] is how the tensors lie in memory.
    q = query[0].transpose(0, 1).index_select(0, few.query_rows).split(rows)
    k, v = (x[0].transpose(0, 1).index_select(0, few.key_rows).split(keys) for x in (key, value))
    outputs = []
    for batch, own_q, own_k, own_v in zip(few.batches, q, k, v, strict=True):
        n, _, padded, _ = batch.mask.shape
        # Query heads that share keys become rows of one head, so that keys are not copied.
        own_q = own_q.view(n, padded, heads, shared, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
        own_k, own_v = (x.view(n, -1, heads, x.shape[-1]).transpose(1, 2) for x in (own_k, own_v))
        mask = batch.mask.repeat(1, 1, shared, 1) if shared > 1 else batch.mask
        out = functional.scaled_dot_product_attention(
            own_q, own_k, own_v, attn_mask=mask, scale=scale
        )
        out = out.unflatten(2, (shared, padded)).permute(0, 3, 1, 2, 4)
        outputs.append(out.reshape(n * padded, heads * shared, -1))
    return outputs


def _attend(query: Tensor, key: Tensor, value: Tensor, pack: Pack, options: _Options) -> Tensor:
    """Attention of the last tokens of a sequence to the whole sequence, [rows, heads, d].

    `query` is [heads, rows, d]. Query heads that share keys get a dimension of their own, so that
    keys are not copied.
    """
    q = query.unflatten(0, (key.shape[0], -1))
    k, v = (x[:, None].expand(-1, q.shape[1], -1, -1) for x in (key, value))
    rows, keys = q.shape[2], k.shape[2]
    plain = rows == keys and options.reach.covers(keys)
    if options.softcap is None and options.sinks is None:
        out = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if plain else _shared_mask(pack, options.reach, rows, keys, q),
            dropout_p=options.dropout,
            scale=options.scale,
            is_causal=plain,
        )
    else:
        mask = options.reach.mask(rows, keys, q.device)
        capped = options.softcap is not None
        out = (_soft_capped if capped else _with_sinks)(q, k, v, mask, options)
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def _shared_mask(pack: Pack, reach: Reach, rows: int, keys: int, query: Tensor) -> Tensor:
    """A mask of `reach` that all layers share. Of a mask of booleans, the kernel would make one to
    add in every layer."""
    kind = (reach, rows, keys, query.dtype, query.device)
    if kind not in pack.shared:
        pack.shared[kind] = _added(reach.mask(rows, keys, query.device), query.dtype)
    return pack.shared[kind]


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of booleans as the kernel adds it to scores: 0 or minus infinity."""
    zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    # A layer that writes in place would keep all its activations: see `activation_checkpointing`.
    return zeros.masked_fill(~seen, -torch.inf)


def _soft_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: _Options) -> Tensor:
    """Attention with scores capped to (-softcap, softcap), which no fused kernel computes."""
    softcap = options.softcap
    assert softcap is not None
    scores = torch.tanh(q @ k.transpose(-1, -2) * (options.scale / softcap)) * softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    accurate = torch.promote_types(q.dtype, torch.float32)
    if options.sinks is not None:
        sinks = options.sinks.to(scores.dtype).view(*q.shape[:2], 1, 1)
        scores = torch.cat([scores, sinks.expand(-1, -1, q.shape[2], -1)], dim=-1)
    weights = functional.softmax(scores, dim=-1, dtype=accurate)[..., : k.shape[2]]
    return functional.dropout(weights.to(q.dtype), options.dropout) @ v


def _with_sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: _Options) -> Tensor:
    """Attention with one more key, whose scores are the sinks and whose value is zero.

    Queries and keys get one more coordinate: 1/scale in a query, the head's sink in the additional
    key, and 0 in the other keys. So the kernel computes the sinks' scores and gradients itself.
    """
    assert options.sinks is not None
    sinks = options.sinks.to(q.dtype).view(*q.shape[:2], 1, 1).expand_as(k[..., :1, :1])
    key = torch.cat([torch.zeros_like(k[..., :1, :]), sinks], dim=-1)
    out = functional.scaled_dot_product_attention(
        functional.pad(q, (0, 1), value=1 / options.scale),
        torch.cat([key, functional.pad(k, (0, 1))], dim=-2),
        functional.pad(v, (0, 1, 1, 0)),
        attn_mask=functional.pad(mask, (1, 0), value=True),
        dropout_p=options.dropout,
        scale=options.scale,
    )
    return out[..., :-1]


def _varlen_fits(query: Tensor, value: Tensor, options: _Options) -> bool:
    """Whether the installed variable-length flash attention supports these inputs and options."""
    return (
        query.device.type in _WITH_FLASH
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] == value.shape[-1] <= 256
        and query.shape[-1] % 8 == 0
        and options.softcap is None
        and options.sinks is None
        and options.reach.chunk is None
        and options.dropout == 0.0
        and _varlen_takes(options.reach.window)
    )


def _varlen_takes(window: int | None) -> bool:
    available = _varlen_options()
    return "window_size" in available or ("is_causal" in available and not window)


@functools.cache
def _varlen_options() -> frozenset[str]:
    """The parameters of the installed function; ask last, since its import takes long."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _try_without_splits(device: torch.device) -> None:
    """Find out whether the kernel of `device` takes `num_splits`. A trial inside a forward could
    disturb activation checkpointing, which counts operations."""
    if device.type not in _WITH_FLASH or "num_splits" not in _varlen_options():
        return
    from torch.nn.attention.varlen import varlen_attn

    x = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device=device)
    ends = torch.arange(2, dtype=torch.int32, device=device)
    try:
        with torch.no_grad():
            varlen_attn(x, x, x, ends, ends, 1, 1, num_splits=1)
    except (RuntimeError, ValueError, NotImplementedError):
        _ALWAYS_SPLITTING.add(device)


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, pack: Pack, options: _Options
) -> Tensor:
    """The output of all segments in one call, [T, heads, d]. The causal mask is aligned to the end
    of each segment's keys."""
    from torch.nn.attention.varlen import varlen_attn

    layout, available = pack.varlen, _varlen_options()
    q = query[0].transpose(0, 1)
    k, v = (x[0].transpose(0, 1).index_select(0, layout.key_rows) for x in (key, value))
    if "scale" not in available:
        q = q * (options.scale * q.shape[-1] ** 0.5)
    if "enable_gqa" not in available:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    wanted: dict[str, Any] = {"scale": options.scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if q.device not in _ALWAYS_SPLITTING:
        wanted["num_splits"] = 1  # else rounding depends on other segments
    arguments = {name: value for name, value in wanted.items() if name in available}
    if "window_size" in available:
        window = options.reach.window
        arguments["window_size"] = (-1 if window is None else window - 1, 0)
    else:
        arguments["is_causal"] = True
    output = varlen_attn(
        q.contiguous(),
        k,
        v,
        layout.query_offsets,
        layout.key_offsets,
        layout.longest_query,
        layout.longest_key,
        **arguments,
    )
    assert isinstance(output, Tensor)
    return output
