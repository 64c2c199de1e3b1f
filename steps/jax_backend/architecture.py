"""The structure of a decoder, read from a Hugging Face config.

    config.json → Architecture (sizes, scales, one window and one rotation for each layer)

The families differ little. Most differences show in which weights exist: biases, norms of queries
and keys, norms after a block as well as before it (see `decoder`). This module has the others. It
refuses families that are not in `FAMILIES`, settings that the decoder does not support, and every
setting of a family that it does not know and that is not neutral. As transformers does, it ignores
what a config.json has beyond the settings of its family.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from steps.models.folders import require_folder

_GEMMAS = ("gemma", "gemma2", "gemma3_text")
_ALL_LAYERS_SLIDE = ("mistral", "phi3")
_SOME_LAYERS_SLIDE = ("qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text")

FAMILIES = ("llama", *_ALL_LAYERS_SLIDE, "qwen2", "qwen3", "smollm3", *_GEMMAS)
"""The `model_type`s that the decoder computes. SmolLM and SmolLM2 are `llama`."""

NO_WINDOW = 2**30
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_LAYER_TYPES = ("full_attention", "sliding_attention")

_READ = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "rms_norm_eps"),
    *("rope_parameters", "no_rope_layers", "layer_types", "sliding_window", "use_sliding_window"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("pad_token_id", "tie_word_embeddings", "max_position_embeddings", "attention_dropout"),
    *("original_max_position_embeddings", "resid_pdrop", "embd_pdrop"),
    *("intermediate_size", "attention_bias", "mlp_bias"),  # the weights have shapes by these
}
_WITHOUT_EFFECT = {
    *("transformers_version", "architectures", "_name_or_path", "dtype", "return_dict"),
    *("output_hidden_states", "output_attentions", "use_cache", "id2label", "label2id"),
    *("problem_type", "bos_token_id", "eos_token_id", "initializer_range", "pretraining_tp"),
    # With these, transformers makes `layer_types` and `no_rope_layers` when it reads a config.
    *("max_window_layers", "no_rope_layer_interval", "_sliding_window_pattern"),
}
_NEUTRAL = (None, False, 0, "", [], {})


@dataclass(frozen=True)
class Rotation:
    """The rotary positions of a kind of layer (Su et al. 2021, RoPE).

    frequencies: radians per position, for each pair of channels; all 0 for a layer without
        positions.
    scale: a factor of cosines and sines (YaRN).
    limit: the longest sequence for which the frequencies are valid, if they depend on its length.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0
    limit: int | None = None


@dataclass(frozen=True)
class Architecture:
    """A decoder without its weights.

    norm_offset: what is added to the weight of a norm (Gemma stores how far it is from 1).
    embedding_scale: what embeddings are multiplied by.
    attention_scale, attention_cap: scores are multiplied by the one, then squashed by the other.
    logits_cap: as `attention_cap`, of the logits.
    windows: of each layer, how many tokens a token sees, itself included.
    rotation_of: of each layer, which of `rotations`.
    padding: the token whose embedding gets no gradient from being read, as in torch.
    attention_dropout: of attention's weights, where training lets it act.
    adapter_scale, adapter_dropout: what the product of an adapter's factors counts, and how much of
        its input is dropped in training; for weights that have adapters beside them.
    """

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    norm_epsilon: float
    norm_offset: float
    activation: str
    embedding_scale: float
    attention_scale: float
    attention_cap: float | None
    logits_cap: float | None
    windows: tuple[int, ...]
    rotations: tuple[Rotation, ...]
    rotation_of: tuple[int, ...]
    padding: int | None
    tied: bool
    longest: int
    attention_dropout: float = 0.0
    adapter_scale: float = 1.0
    adapter_dropout: float = 0.0

    def require_length(self, row: str, tokens: int) -> None:
        """Raise ValueError, which names the `row`, if a sequence of `tokens` tokens would change
        the rotation of every position."""
        limits = [rotation.limit for rotation in self.rotations if rotation.limit is not None]
        if limits and tokens > min(limits):
            raise ValueError(
                f"row {row!r} has {tokens} tokens to read; beyond {min(limits)} {self.family} "
                "turns every position by other angles, which backend=jax does not do; tokenise "
                f"with max_length={min(limits)}, or use torch (backend=null)"
            )


def read_architecture(folder: Path) -> Architecture:
    """The architecture of a model folder; raises ValueError for one that the decoder lacks."""
    require_folder(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
    except StrictDataclassError as error:
        raise ValueError(f"{folder / 'config.json'}: {error.__cause__ or error}") from error
    return architecture_of(config)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """As `read_architecture`, of a config."""
    c: Any = config
    family = c.model_type
    if family not in FAMILIES:
        raise ValueError(
            f"backend=jax cannot run the family {family!r}, only {', '.join(sorted(FAMILIES))}; "
            "use torch (backend=null)"
        )
    _require_known(c)
    is_gemma, is_later_gemma = family in _GEMMAS, family in _GEMMAS[1:]
    activation = c.hidden_activation if is_later_gemma else c.hidden_act
    _require(activation in _ACTIVATIONS, f"the activation {activation!r}", family)
    head_size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rotations, rotation_of = _rotations(c, head_size)
    scalar = c.query_pre_attn_scalar if is_later_gemma else head_size
    return Architecture(
        family=family,
        vocabulary=c.vocab_size,
        hidden=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        key_heads=c.num_key_value_heads,
        head_size=head_size,
        norm_epsilon=c.rms_norm_eps,
        norm_offset=1.0 if is_gemma else 0.0,
        activation=activation,
        embedding_scale=c.hidden_size**0.5 if is_gemma else 1.0,
        attention_scale=scalar**-0.5,
        attention_cap=c.attn_logit_softcapping if family == "gemma2" else None,
        logits_cap=c.final_logit_softcapping if is_later_gemma else None,
        windows=_windows(c),
        rotations=rotations,
        rotation_of=rotation_of,
        padding=None if c.pad_token_id is None else c.pad_token_id % c.vocab_size,
        tied=bool(c.tie_word_embeddings),
        longest=c.max_position_embeddings,
        attention_dropout=getattr(c, "attention_dropout", None) or 0.0,
    )


def _require_known(c: Any) -> None:
    """Refuses settings of the family that are neither read nor known to be without effect, and
    weights that are stored in another form."""
    names = {field.name for field in fields(type(c))} - _READ - _WITHOUT_EFFECT
    if c.model_type == "gemma3_text":  # which has this setting, and attends without it
        names.add("attn_logit_softcapping")
    for name in sorted(names | {"quantization_config"}):
        value = getattr(c, name, None)
        _require(value in _NEUTRAL, f"the setting {name}={value!r}", c.model_type)


def other_dropouts(folder: Path) -> dict[str, float]:
    """The dropouts that a model's config asks for and that the decoder lacks, by their names."""
    config = AutoConfig.from_pretrained(folder)
    names = ("resid_pdrop", "embd_pdrop")
    found = {name: getattr(config, name, None) or 0.0 for name in names}
    return {name: share for name, share in found.items() if share}


def angle_tables(architecture: Architecture, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of every position below `positions`, float32 [rotations, positions,
    rotated channels].

    Torch computes them, as in transformers: another library's cosine differs in the last bit.
    """
    frequencies = torch.tensor([r.frequencies for r in architecture.rotations])
    scales = torch.tensor([r.scale for r in architecture.rotations])[:, None, None]
    angles = torch.arange(positions).float()[None, :, None] * frequencies[:, None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return (angles.cos() * scales).numpy(), (angles.sin() * scales).numpy()


def _windows(c: Any) -> tuple[int, ...]:
    if c.model_type not in (*_ALL_LAYERS_SLIDE, *_SOME_LAYERS_SLIDE):
        return (NO_WINDOW,) * c.num_hidden_layers
    window: Any = c.sliding_window
    _require(window is None or window > 0, f"the setting sliding_window={window}", c.model_type)
    if c.model_type in _ALL_LAYERS_SLIDE:
        return (NO_WINDOW if window is None else window,) * c.num_hidden_layers
    for kind in c.layer_types:
        _require(kind in _LAYER_TYPES, f"the layer type {kind!r}", c.model_type)
    slides = [kind == "sliding_attention" for kind in c.layer_types]
    # Of the one transformers makes no mask. Of the other attention slides or not, by the
    # implementation that it chooses.
    switch = getattr(c, "use_sliding_window", True)
    fault = "no sliding_window" if window is None else f"use_sliding_window={switch}"
    is_clear = not any(slides) or (window is not None and switch)
    _require(is_clear, f"sliding layers with {fault}", c.model_type)
    return tuple(NO_WINDOW if window is None or not slide else window for slide in slides)


def _rotations(c: Any, head_size: int) -> tuple[tuple[Rotation, ...], tuple[int, ...]]:
    """The kinds of rotation, and which of them each layer has."""
    settings = c.rope_parameters
    if "rope_theta" in settings:
        rotations = [_rotation(c, settings, head_size, {})]
        has = [1] * c.num_hidden_layers
        if c.model_type == "smollm3":
            has = c.no_rope_layers
        if not all(has):
            rotations.append(Rotation((0.0,) * len(rotations[0].frequencies)))
        return tuple(rotations), tuple(0 if rotates else 1 for rotates in has)
    kinds = sorted(set(c.layer_types))
    rotations = [_rotation(c, settings[k], head_size, {"layer_type": k}) for k in kinds]
    return tuple(rotations), tuple(kinds.index(kind) for kind in c.layer_types)


def _rotation(
    c: Any, settings: Mapping[str, Any], head_size: int, kind: Mapping[str, str]
) -> Rotation:
    """Scaled rotations (linear, Llama 3, YaRN, …) as transformers defines them."""
    name = settings.get("rope_type", "default")
    if name == "default":
        share = settings.get("partial_rotary_factor", 1.0) if c.model_type == "phi3" else 1.0
        channels = torch.arange(0, int(head_size * share), 2, dtype=torch.float)
        frequencies = 1.0 / (settings["rope_theta"] ** (channels / int(head_size * share)))
        return Rotation(tuple(frequencies.tolist()))
    _require(name in ROPE_INIT_FUNCTIONS, f"the rotation {name!r}", c.model_type)
    frequencies, scale = ROPE_INIT_FUNCTIONS[name](c, torch.device("cpu"), **kind)
    is_whole = c.model_type == "phi3" or 2 * len(frequencies) == head_size
    _require(is_whole, f"partial_rotary_factor with the rotation {name!r}", c.model_type)
    limit = None
    if name == "dynamic":
        limit = c.max_position_embeddings
    elif name == "longrope":
        limit = settings.get("original_max_position_embeddings") or c.max_position_embeddings
    return Rotation(tuple(frequencies.tolist()), float(scale), limit)


def _require(holds: bool, what: str, family: str) -> None:
    if not holds:
        raise ValueError(
            f"backend=jax lacks {what} of this {family} model; use torch (backend=null)"
        )
