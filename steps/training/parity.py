"""Whether a model can be packed: tried, on examples of the run, against the model itself.

Some architectures only warn when attention is not what they expect and compute something else; some
cannot share a prefix at all. So two groups, the longest and the shortest, are packed and compared,
token by token, with the model's own forward of each sequence alone. The longest reaches whatever
depends on length (a sliding window, a rescaled rotation); the pair shows what leaks between groups.

A run whose reference was packed, of the same model, by the same libraries and on the same kind of
device, need not try again: the reference has, on all that the run is going to read.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.training.attention import attends_packed, use_packed_attention
from steps.training.backends.torch_backend import TorchBackend
from steps.training.config import Attention
from steps.training.examples import TokenGroup
from steps.training.models import own_attention
from steps.training.packing import make_pack
from steps.training.positions import longest_sequence, require_positions, rotations
from steps.training.ranks import ALONE, Ranks
from steps.training.scoring import token_logps

# The largest difference of a token's logp, and the mean of them, that rounding explains. In float64
# too: transformers' norms compute in float32 whatever the model's dtype.
_TOLERANCES = {
    torch.float64: (1e-5, 1e-6),
    torch.float32: (2e-3, 2e-4),
    torch.float16: (0.1, 0.01),
    torch.bfloat16: (1.0, 0.05),
}


@dataclass(frozen=True)
class Packing:
    """How a model is going to be run. `why_not` says why not packed."""

    attention: Attention
    why_not: str | None = None

    @property
    def notice(self) -> str | None:
        """What the user should see: nothing if examples are packed, or were not to be."""
        if self.why_not is None:
            return None
        return f"each response is read alone, not packed, which is slower: {self.why_not}"


def choose_attention(
    backend: TorchBackend,
    groups: Sequence[TokenGroup],
    wanted: Attention,
    ranks: Ranks = ALONE,
    is_known: bool = False,
) -> Packing:
    """`check_packing` of a backend's model; warns if examples are not packed that should be.

    Raises ValueError if ranks would go different ways.
    """
    packing = backend.examine(lambda model: check_packing(model, groups, wanted, is_known))
    if len(set(ranks.gather(packing.attention))) > 1:
        raise ValueError("packed, the model is right on some ranks only; set attention=padded")
    if packing.notice and ranks.is_first:
        warnings.warn(packing.notice, stacklevel=3)
    return packing


def check_packing(
    model: PreTrainedModel,
    groups: Sequence[TokenGroup],
    wanted: Attention = Attention.auto,
    is_known: bool = False,
) -> Packing:
    """Sets the model's attention to the packed one if that gives what the model itself gives, and
    to one of its own otherwise. `is_known`: that it does; nothing is computed.

    Raises ValueError if packing is all that is wanted and cannot be had, and for an example that
    has more tokens than the model has positions.
    """
    require_positions(model, groups)
    model.set_attn_implementation(own_attention(model))
    if wanted is Attention.padded:
        return Packing(wanted)
    if is_known:
        use_packed_attention(model)
        return Packing(Attention.packed)
    fault = _rescaled_rotation(model, groups) or _try_packed(model, groups)
    if fault is None:
        return Packing(Attention.packed)
    model.set_attn_implementation(own_attention(model))
    if wanted is Attention.packed:
        raise ValueError(f"the model cannot be packed: {fault}; set attention=padded")
    return Packing(Attention.padded, fault)


def _rescaled_rotation(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> str | None:
    """Says so if the angles of a token's position depend on the longest sequence beside it."""
    longest = max(map(longest_sequence, groups))
    for rotation in rotations(model):
        if rotation.get("rope_type") in ("dynamic", "longrope"):
            limit = rotation.get("original_max_position_embeddings")
            limit = limit or model.config.get_text_config().max_position_embeddings
            if longest > limit:
                return (
                    f"beyond {limit} tokens {type(model).__name__} turns every position of a "
                    f"forward by other angles, and the longest sequence has {longest}"
                )
    return None


def _try_packed(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> str | None:
    """Switches to packed attention; what is wrong with it, if anything is."""
    by_length = sorted(groups, key=lambda group: group.packed_tokens)
    probe = make_pack([by_length[-1], by_length[0]]).to(model.device)
    expected = token_logps(model, probe)
    try:
        use_packed_attention(model)
        if not attends_packed(model):
            return f"{type(model).__name__} has an attention that cannot be replaced"
        actual = token_logps(model, probe)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Whatever a stranger's model raises when it is run this way, it can be run another way.
        return f"{type(model).__name__} does not take packs ({type(error).__name__}: {error})"
    difference = _difference(actual, expected, model.dtype)
    return None if difference is None else f"packed, {type(model).__name__} differs: {difference}"


def _difference(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    """How two sets of logps differ by more than rounding, if they do."""
    largest, mean = _TOLERANCES[dtype]
    errors = (actual - expected).abs().double()
    errors[~(actual.isfinite() | expected.isfinite())] = 0  # for whoever scores to complain of
    if errors.max() <= largest and errors.mean() <= mean:  # False for what is not a number
        return None
    return (
        f"logps are off by up to {errors.max():.2g} and by {errors.mean():.2g} on average, where "
        f"rounding explains {largest:g} and {mean:g}"
    )
