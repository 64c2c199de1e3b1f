"""Write a model folder as one GGUF file, for llama.cpp, Ollama and LM Studio.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. llama.cpp reads models of
the Llama family with these differences from transformers:

- Its rotary positions pair neighbouring rows of a head's queries and keys; transformers pairs the
  two halves. So this module reorders these rows. Qwen's rows keep their order.
- Rotations with changed frequencies (Llama 3.1) become a tensor of divisors, one for each pair of
  rows.
- Norms and biases stay in float32, whatever the type of the other weights.

Tensors are read, converted and written one at a time, so a model need not fit into memory. Equal
folders give equal bytes. An error names each setting that the file cannot express.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from steps.export.config import GgufType
from steps.export.gguf_kinds import MODEL_TYPES, require_model_type
from steps.export.gguf_tokenizer import add_tokenizer

_LLAMA, _QWENS = gguf.MODEL_ARCH.LLAMA, (gguf.MODEL_ARCH.QWEN2, gguf.MODEL_ARCH.QWEN3)
_ARCHITECTURES: dict[str, gguf.MODEL_ARCH] = dict(
    zip(MODEL_TYPES, (_LLAMA, _LLAMA, *_QWENS), strict=True)
)
_ROTATIONS = ("default", "linear", "llama3")
"""The rotation types that divisors of frequencies can express."""
_TYPES = {
    GgufType.f32: (GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    GgufType.f16: (GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    GgufType.q8_0: (GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
_LARGEST = {
    GGMLQuantizationType.F16: 65504.0,
    GGMLQuantizationType.Q8_0: 127 * 65504.0,  # the largest level times the largest scale
}
"""The largest value that a type can express."""
_ROTATION_DIVISORS = "rope_freqs.weight"


def file_name(title: str, type: GgufType) -> str:
    """``TITLE-TYPE.gguf``, the usual pattern for the names of such files."""
    plain = re.sub(r"[^\w.]+", "-", title).strip("-.") or "model"
    return f"{plain}-{type.upper()}.gguf"


def write_gguf(folder: Path, file: Path, type: GgufType, title: str) -> None:
    """Write the model and the tokenizer of a folder.

    Raises:
        ValueError: a GGUF file cannot hold the architecture, a setting or a tensor of the model, or
            its kind of tokenizer; the message names it.
    """
    source = _Source(folder, type)
    writer = GGUFWriter(file, gguf.MODEL_ARCH_NAMES[source.architecture])
    _add_metadata(writer, source.config, type, title)
    add_tokenizer(writer, folder, source.config.vocab_size)
    for tensor in source.tensors:
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, tensor.type)
        size = int(np.prod(shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), size, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in source.tensors:
        values = source.values(tensor)
        _require_held(values, tensor, type)
        writer.write_tensor_data(gguf.quantize(values, tensor.type).view(np.uint8))
    writer.close()


def _require_held(values: np.ndarray, tensor: "_Tensor", type: GgufType) -> None:
    """Raise ValueError for values that would be read back as infinite or NaN."""
    largest = max(values.max(initial=0), -values.min(initial=0))
    if not np.isfinite(largest):
        raise ValueError(f"{tensor.source} has values that are infinite or NaN")
    if largest > _LARGEST.get(tensor.type, np.inf):
        raise ValueError(
            f"{tensor.source} has a value of size {largest:.4g}, more than the float16 numbers of "
            f"type {type} can express; export it as f32"
        )


@dataclass(frozen=True)
class _Tensor:
    """One tensor of the GGUF file, and its source, a tensor in a safetensors file. A computed
    tensor has no source."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    source: str = ""
    file: Path = Path()


class _Source:
    """A model folder, which is checked before anything is written."""

    def __init__(self, folder: Path, type: GgufType) -> None:
        self.config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
        require_model_type(self.config.model_type)
        self.architecture = _ARCHITECTURES[self.config.model_type]
        _require_settings(self.config)
        self._folder, self._type = folder, _TYPES[type][0]

    @cached_property
    def tensors(self) -> list[_Tensor]:
        """The tensors of the GGUF file.

        Raises:
            ValueError: GGUF has no name for a tensor of the model.
        """
        found = [self._rotation] if self._divisors is not None else []
        names = gguf.get_tensor_name_map(self.architecture, self.config.num_hidden_layers)
        for file in sorted(self._folder.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                for source in sorted(tensors.keys()):
                    name = names.get_name(source, (".weight", ".bias"))
                    if name is None:
                        raise ValueError(
                            f"GGUF has no place for {source} of a {self.config.model_type} model"
                        )
                    shape = tuple(tensors.get_slice(source).get_shape())
                    found.append(_Tensor(name, shape, self._type_of(shape), source, file))
        if not any(tensor.source for tensor in found):
            raise ValueError(f"{self._folder} has no *.safetensors; import the model first")
        return found

    def values(self, tensor: _Tensor) -> np.ndarray:
        """The values of a tensor in float32, with rows in the GGUF file's order."""
        if tensor.name == _ROTATION_DIVISORS:
            return cast(np.ndarray, self._divisors)
        with safe_open(tensor.file, "pt") as tensors:
            values = tensors.get_tensor(tensor.source).to(torch.float32).numpy()
        if self.architecture is gguf.MODEL_ARCH.LLAMA:
            if ".attn_q." in tensor.name:
                return _neighbouring(values, self.config.num_attention_heads)
            if ".attn_k." in tensor.name:
                return _neighbouring(values, self.config.num_key_value_heads)
        return values

    def _type_of(self, shape: tuple[int, ...]) -> GGMLQuantizationType:
        if len(shape) < 2:
            return GGMLQuantizationType.F32
        block, _ = gguf.GGML_QUANT_SIZES[self._type]
        return self._type if shape[-1] % block == 0 else GGMLQuantizationType.F16

    @property
    def _rotation(self) -> _Tensor:
        shape = cast(np.ndarray, self._divisors).shape
        return _Tensor(_ROTATION_DIVISORS, shape, GGMLQuantizationType.F32)

    @cached_property
    def _divisors(self) -> np.ndarray | None:
        """The divisor of each frequency; ``None`` for rotations of the default type."""
        rotation: Any = self.config.rope_parameters
        if rotation["rope_type"] == "default":
            return None
        frequencies, _ = ROPE_INIT_FUNCTIONS[rotation["rope_type"]](
            self.config, torch.device("cpu")
        )
        exponents = torch.arange(0, 2 * len(frequencies), 2, dtype=torch.float32)
        plain = rotation["rope_theta"] ** (-exponents / (2 * len(frequencies)))
        return (plain / frequencies).to(torch.float32).numpy()


def _require_settings(config: Any) -> None:
    """Raise ValueError for settings that llama.cpp would silently ignore or compute differently, or
    whose tensors it would not load."""
    rotation: Any = config.rope_parameters
    kind = rotation.get("rope_type", "default")
    known = _ROTATIONS if _ARCHITECTURES[config.model_type] is _LLAMA else _ROTATIONS[:1]
    if kind not in known:  # llama.cpp reads divisors only for the architecture Llama
        raise ValueError(
            f"rope_type {kind!r} of a {config.model_type} model cannot be written as GGUF; "
            f"these can: {', '.join(known)}"
        )
    if rotation.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("a rotation of a part of each head cannot be written as GGUF")
    window = getattr(config, "sliding_window", None)
    is_used = getattr(config, "use_sliding_window", True)
    if window is not None and is_used and window < config.max_position_embeddings:
        raise ValueError(f"sliding_window={window} cannot be written as GGUF: it would be ignored")
    heads = config.num_attention_heads
    if config.model_type == "qwen2" and _head_size(config) * heads != config.hidden_size:
        raise ValueError(
            f"head_dim={_head_size(config)} cannot be written as GGUF: llama.cpp takes heads of a "
            "qwen2 model to be as wide together as its hidden states"
        )
    if config.model_type == "qwen3" and config.attention_bias:
        raise ValueError("attention_bias=true of a qwen3 model cannot be written as GGUF")
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act={config.hidden_act!r} cannot be written as GGUF: only silu")


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _neighbouring(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of queries or keys, [heads · d, …], so that each rotation's two rows are
    neighbours."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _add_metadata(writer: GGUFWriter, config: PreTrainedConfig, type: GgufType, title: str) -> None:
    settings: Any = config
    head_size = _head_size(settings)
    writer.add_name(title)
    writer.add_vocab_size(settings.vocab_size)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(settings.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    writer.add_file_type(_TYPES[type][1])
    if type is GgufType.q8_0:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
