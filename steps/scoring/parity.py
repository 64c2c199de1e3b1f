"""Choose how a model reads examples, by a comparison with the unmodified model.

Some architectures only warn when attention is not what they expect and compute something else; some
cannot share a prefix at all. So the groups with the longest sequence, the largest and the smallest
pack are packed and compared, token by token, with the model's own forward of each sequence alone.
The longest sequence reaches whatever depends on length (a window, chunks, a rescaled rotation), and
several groups show what leaks between them. `architectures.masks` compares exactly what this can
only compare up to a rounding. A model that cannot be packed is tried in padded batches next, in the
same way, and reads each response alone if these are not right either; whether it is causal, which
packs show as well, takes forwards of its own then.

The rounding of a model of 16 bits would hide much of that, so it is compared in float32 first. Its
own dtype then shows only whether the kernels of that dtype are right.

Packs of a run may be longer than those that are compared. The only thing that depends on that is
known by name (`scaled_by_place`).

A run skips the comparison if its reference was packed, with the same model, the same libraries and
the same kind of device: then the reference made it, on all examples of the run.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.folders import evaluating, own_attention
from steps.models.positions import BY_LENGTH, require_positions, rotations
from steps.models.ranks import ALONE, Ranks
from steps.scoring.architectures.causality import require_causal
from steps.scoring.architectures.in_float32 import found_in_float32
from steps.scoring.architectures.masks import mask_fault
from steps.scoring.architectures.pack_layouts import (
    Layout,
    read_alone,
    read_batches,
)
from steps.scoring.attention import attends_packed, use_packed_attention
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, facts_of, longest
from steps.scoring.logps import token_logps
from steps.scoring.packing import Pack, make_pack
from steps.scoring.scorer import Scorer
from steps.shared.execution_detail import execution_detail

Probe = Callable[[PreTrainedModel, Pack], Tensor]
"""Computes the numbers that are compared; they should have about the size of logps."""

# The largest difference of a token's logp, and the largest mean difference, that rounding explains.
# This holds for float64 too: transformers' norms compute in float32 whatever the model's dtype.
_TOLERANCES = {
    torch.float64: (1e-5, 1e-6),
    torch.float32: (2e-3, 2e-4),
    torch.float16: (0.1, 0.01),
    torch.bfloat16: (1.0, 0.05),
}


_FEW_TOKENS = 4096
"""Of a forward on a GPU; below, starting its kernels may take longer than their work."""


@dataclass(frozen=True)
class Packing:
    """How a model reads examples.

    why_not: the reason why it is not packed although the config wants it.
    why_alone: the reason why it does not read padded batches either.
    why_rounded: the reason why a model of 16 bits was compared in its own dtype only.
    compared: the groups that were compared; empty if nothing was computed.
    read: if packs are correct, the probe's numbers of a pack of the compared groups.
    """

    attention: Attention
    why_not: str | None = None
    why_alone: str | None = None
    why_rounded: str | None = None
    compared: Sequence[TokenGroup] = ()
    read: Tensor | None = None

    @property
    def layout(self) -> Layout:
        """How the model reads the responses of a pack."""
        if self.attention is Attention.packed:
            return Layout.packed
        return Layout.batched if self.why_alone is None else Layout.alone

    @property
    def notice(self) -> str | None:
        """A notice for the user; None if the model reads examples as the config wants, and that was
        compared as exactly as it can be."""
        return "; ".join(filter(None, (self._slow, self._rounded))) or None

    @property
    def _slow(self) -> str | None:
        if self.why_alone is not None:
            why = self.why_alone if self.why_not is None else f"{self.why_not}; {self.why_alone}"
            return f"each response is read alone, not packed, which is slower: {why}"
        if self.why_not is None:
            return None
        return f"responses are read in padded batches, not packed, which is slower: {self.why_not}"

    @property
    def _rounded(self) -> str | None:
        if self.why_rounded is None or self.layout is Layout.alone:
            return None
        how = "in packs" if self.layout is Layout.packed else "in padded batches"
        return (
            f"that the model reads responses {how} as it reads them alone was compared in its own "
            f"dtype only, whose rounding can hide a difference, and not in float32: "
            f"{self.why_rounded}"
        )


def choose_attention(
    scorer: Scorer,
    groups: Sequence[TokenGroup],
    wanted: Attention,
    ranks: Ranks = ALONE,
    is_known: bool = False,
) -> Packing:
    """`check_packing` for a scorer's model; warns if the model cannot be packed as wanted, or
    was compared less exactly than it could be.

    Raises ValueError if ranks would choose different ways.
    """
    if ranks.count > 1 and facts_of(groups)["images"].any():
        raise ValueError("rows with images are read on one device; use one rank")
    probe = scorer.readout.probe
    tokens = scorer.tokens_per_forward
    packing = scorer.examine(
        lambda model: check_packing(model, groups, wanted, is_known, probe, tokens)
    )
    if len(set(ranks.gather(packing.layout))) > 1:
        raise ValueError("packed, the model is right on some ranks only; set attention=padded")
    if packing.notice and ranks.is_first:
        warnings.warn(packing.notice, stacklevel=3)
    return packing


def check_packing(
    model: PreTrainedModel,
    groups: Sequence[TokenGroup],
    wanted: Attention = Attention.auto,
    is_known: bool = False,
    probe: Probe = token_logps,
    tokens_per_forward: int = 0,
) -> Packing:
    """Choose the first of packs, padded batches and single sequences that is wanted and correct,
    and set the model's attention to match.

    Args:
        groups: all examples that the model will read, including held-out ones.
        is_known: packs are known to be correct, so nothing is computed.
        tokens_per_forward: the most tokens of a pack of several groups.

    Raises ValueError if `wanted` is `packed` and packs are not correct, for a model that is not
    causal, and for an example that has more tokens than the model has positions.
    """
    require_positions(model, *longest(groups))
    largest = int(facts_of(groups)["packed"].max())
    by_place = scaled_by_place(model, max(tokens_per_forward, largest))
    if is_known and wanted is not Attention.padded and by_place is None:
        read_alone(model)
        use_packed_attention(model)
        return Packing(Attention.packed)
    with evaluating(model):
        tried = partial(_tried, model, groups, wanted, probe, by_place)
        exact, why_rounded = found_in_float32(model, tried)
        return replace(tried(exact), why_rounded=why_rounded)


def _tried(
    model: PreTrainedModel,
    groups: Sequence[TokenGroup],
    wanted: Attention,
    probe: Probe,
    by_place: str | None,
    exact: Packing | None = None,
) -> Packing:
    """The first way of reading `groups` that is wanted and correct; also by `exact`, if given, the
    result in float32.

    by_place: why larger packs than those of the comparison would not be correct, if so.
    """
    _read_by_itself(model)
    compared = _telling(groups)
    pack = make_pack(compared).to(model.device)
    packs_tell = wanted is not Attention.padded and _tells_of_later_tokens(model, pack)
    if exact is None and not packs_tell:
        require_causal(model, groups)
    expected = _own_numbers(model, pack, probe)
    by_length = rescaled_rotation(model, longest(groups)[1] + 1)  # with the last token
    known = exact or Packing(wanted)  # which says nothing
    fault = known.why_not
    if wanted is not Attention.padded:
        why_not = fault or by_place or by_length
        read = why_not or _try_packed(model, pack, probe, expected, known.read)
        if isinstance(read, Tensor):
            return Packing(Attention.packed, compared=compared, read=read)
        fault = read
        model.set_attn_implementation(own_attention(model))
        if exact is None and packs_tell:
            require_causal(model, groups)
        if wanted is Attention.packed:
            raise ValueError(f"the model cannot be packed: {fault}; set attention=padded")
    why_alone = known.why_alone or by_length or _try_batched(model, pack, probe, expected)
    return Packing(Attention.padded, fault, why_alone)


def _read_by_itself(model: PreTrainedModel) -> None:
    """Let `model` read each response alone, with an attention of transformers."""
    model.set_attn_implementation(own_attention(model))
    read_alone(model)


def _own_numbers(model: PreTrainedModel, pack: Pack, probe: Probe) -> Tensor:
    """The probe's numbers of a model that reads each response alone.

    Raises ValueError if the model cannot compute in its dtype."""
    try:
        return probe(model, pack)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if model.dtype is torch.float32:
            raise
        raise ValueError(_cannot_compute(model, error)) from error


def _tells_of_later_tokens(model: PreTrainedModel, pack: Pack) -> bool:
    """Whether a model that is right on this pack is causal.

    Its attention is: `mask_fault` compares masks exactly. Any other part that looks at later tokens
    finds another segment's behind the end of a segment, and nothing there when a response is read
    alone. In half precision the difference could pass for rounding.
    """
    return len(pack.segments) > 1 and model.dtype in (torch.float32, torch.float64)


def _telling(groups: Sequence[TokenGroup]) -> list[TokenGroup]:
    """The groups with the longest sequence, the largest pack, the smallest, and the most images,
    each once."""
    facts = facts_of(groups)
    by_tokens, by_length = (facts[name].argsort(kind="stable") for name in ("packed", "longest"))
    telling = [by_length[-1], by_tokens[-1], by_tokens[0]]
    if most := facts["images"].max():
        telling.append(by_tokens[(facts["images"][by_tokens] == most).argmax()])
    return [groups[number] for number in dict.fromkeys(map(int, telling))]


@execution_detail
def _longer(model: PreTrainedModel, limit: int, tokens: int) -> str:
    return (
        f"beyond {limit} tokens {type(model).__name__} turns every position of a forward by other "
        f"angles, and the longest sequence has {tokens}"
    )


@execution_detail
def slow_on_gpu(model: PreTrainedModel, tokens_per_forward: int) -> str | None:
    """What makes `model` slow on the GPU that it is on, if anything does."""
    if model.device.type != "cuda":
        return None
    if model.dtype in (torch.float32, torch.float64):
        name = str(model.dtype).removeprefix("torch.")
        return f"{name} on a GPU goes without flash attention; dtype=bfloat16 is much faster"
    if tokens_per_forward < _FEW_TOKENS:
        return (
            f"tokens_per_forward={tokens_per_forward} is little work for a GPU, which waits "
            "between forwards; try 16384, as far as memory goes"
        )
    return None


def own_logps(model: PreTrainedModel, pack: Pack, probe: Probe = token_logps) -> Tensor:
    """The logps of a pack's scored tokens, [S], from the model's own forward of each response; or
    the numbers of another probe."""
    _read_by_itself(model)
    return probe(model, pack)


def rescaled_rotation(model: PreTrainedModel, tokens: int) -> str | None:
    """A sentence if the rotation angles of a position depend on the length of the longest sequence
    in the forward, and that sequence has `tokens` tokens; else None."""
    for rotation in rotations(model):
        if rotation.get("rope_type") in BY_LENGTH:
            limit = rotation.get("original_max_position_embeddings")
            limit = limit or model.config.get_text_config().max_position_embeddings
            if tokens > limit:
                return _longer(model, limit, tokens)
    return None


def scaled_by_place(model: PreTrainedModel, tokens: int) -> str | None:
    """A sentence if the model's layers scale a query by its place in a forward and not by its
    position in its sequence, and a forward of `tokens` tokens is long enough for that; else None.

    So do layers without rotations of Llama 4 (attention temperature, Nakanishi 2025,
    https://arxiv.org/abs/2501.19399): by 1 below `floor_scale` tokens, and by more from there on.
    """
    limits = [
        int(cast(Any, layer).floor_scale)
        for layer in model.modules()
        if getattr(layer, "attn_temperature_tuning", False) and not getattr(layer, "use_rope", True)
    ]
    return _by_place(model, min(limits), tokens) if limits and tokens >= min(limits) else None


@execution_detail
def _by_place(model: PreTrainedModel, limit: int, tokens: int) -> str:
    return (
        f"from {limit} tokens on {type(model).__name__} scales a query by its place in a forward, "
        f"and a forward has up to {tokens}"
    )


@execution_detail
def _cannot_compute(model: PreTrainedModel, error: Exception) -> str:
    name = str(model.dtype).removeprefix("torch.")
    return f"{type(model).__name__} cannot compute in {name} ({error}); set dtype=float32"


@execution_detail
def _does_not_take(layout: str, model: PreTrainedModel, error: Exception) -> str:
    return f"{type(model).__name__} does not take {layout} ({type(error).__name__}: {error})"


def _try_packed(
    model: PreTrainedModel, pack: Pack, probe: Probe, expected: Tensor, exact: Tensor | None
) -> str | Tensor:
    """Switch to packed attention. Return what is wrong with it, or the probe's numbers; `exact` are
    those in float32."""
    try:
        fault = mask_fault(model, _longest_sequence(pack))
        use_packed_attention(model)
        if not attends_packed(model):
            return f"{type(model).__name__} has an attention that cannot be replaced"
        if fault is not None:
            return f"{type(model).__name__}: {fault}"
        actual = probe(model, pack)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # A model may raise any error here; it can still be run in another way.
        return _does_not_take("packs", model, error)
    difference = logp_difference(actual, expected, model.dtype)
    if difference and (exact is None or not _is_as_exact(actual, expected, exact)):
        return f"packed, {type(model).__name__} differs: {difference}"
    return actual


def _is_as_exact(actual: Tensor, expected: Tensor, exact: Tensor) -> bool:
    """Whether the `actual` numbers are no further from exact ones than twice as far as the expected
    ones: rounding sends tokens to other experts in both (gpt-oss)."""
    of_actual, of_expected = ((one - exact).abs().mean() for one in (actual, expected))
    return bool(of_actual <= 2 * of_expected)


def _try_batched(model: PreTrainedModel, pack: Pack, probe: Probe, expected: Tensor) -> str | None:
    """Switch to padded batches and return None; if they are wrong, do not and return why."""
    read_batches(model)
    try:
        difference = logp_difference(probe(model, pack), expected, model.dtype)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        read_alone(model)
        return _does_not_take("batches", model, error)
    if difference is None:
        return None
    read_alone(model)
    return f"in batches, {type(model).__name__} differs: {difference}"


def _longest_sequence(pack: Pack) -> Tensor:
    """The ids of the longest of the pack's sequences."""
    parts = [
        (pack.input_ids[s.prompt_start : s.prompt_stop], pack.input_ids[s.start : s.stop])
        for s in pack.responses
    ]
    return torch.cat(max(parts, key=lambda part: len(part[0]) + len(part[1])))


def logp_difference(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    """A sentence if two sets of logps differ by more than rounding explains; else None."""
    largest, mean = _TOLERANCES[dtype]
    errors = (actual - expected).abs().double()
    errors[~(actual.isfinite() | expected.isfinite())] = 0  # scoring raises the error for these
    if errors.max() <= largest and errors.mean() <= mean:  # False if either is NaN
        return None
    return (
        f"logps are off by up to {errors.max():.2g} and by {errors.mean():.2g} on average, where "
        f"rounding explains {largest:g} and {mean:g}"
    )
