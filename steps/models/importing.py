"""Convert published pretrained models to plain Hugging Face folders."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils.hub import cached_file

from steps.data.images.placeholders import PROCESSOR_FILES
from steps.models.config import ADAPTER_ALONE, ADAPTER_FILE, DEQUANTISED, Dtype
from steps.models.folders import (
    became_blind,
    language_model_of,
    require_no_adapter,
    require_weights,
    save_model,
)
from steps.shared.execution_detail import execution_detail


def import_pretrained(
    source: str, output: Path, dtype: Dtype, chat_template: str | None, revision: str | None = None
) -> dict[str, Any]:
    """Write ``source`` (a Hub repository, a folder, or a ``.gguf`` file) as a folder at ``output``.

    Weights of a GGUF file are dequantised to ``dtype``. Returns the number of parameters, the size
    of the vocabulary, and a notice if the source has weights that its config does not describe.

    Raises:
        ValueError: the source holds no model or not all of its weights, or no tokenizer with a chat
            template; or it is a GGUF file with a tensor or a rotation that would be left out.
    """
    where: dict[str, Any] = {"revision": revision} if revision else {}
    quantized: dict[str, Any] = {}
    file = source
    if source.endswith(".gguf"):
        where["gguf_file"] = Path(source).name
        quantized["quantization_config"] = GgufConfig(dequantize=True)
        source = str(Path(source).parent)
    with _reading_once() if quantized else nullcontext():
        with _loading("tokenizer", source):
            tokenizer = AutoTokenizer.from_pretrained(source, **where, trust_remote_code=False)
        with _loading("model", source):
            config = None if quantized else _config(source, where)
            if quantized:
                quantized["config"] = _config_of_gguf(file, where)
            kind: Any = AutoModelForCausalLM if config is None else language_model_of(config)
            model, found = kind.from_pretrained(
                source,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which the next line refuses, and says which
                trust_remote_code=False,
                **where,
                **quantized,
            )
            if quantized:
                _require_biases(file, model)
    require_weights(
        [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])], source
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of {source} has no chat template; name a Jinja file with "
            "model.chat_template"
        )
    tokenizer.save_pretrained(output)
    _say_whether_tied(model)
    save_model(model, output)
    counts = {"parameters": model.num_parameters(), "vocabulary": len(tokenizer)}
    if config is not None:
        if blind := became_blind(model, config):
            return counts | {"notices": [blind]}
        _copy_processor(source, where, output)
    return counts | _left_out(sorted(found["unexpected_keys"]))


def _say_whether_tied(model: PreTrainedModel) -> None:
    """Let the config of a model say what transformers computes: it leaves a head and embeddings
    that are two different matrices apart, also where the config ties them. Others go by the
    config."""
    ends = model.get_output_embeddings(), model.get_input_embeddings()
    head, embeddings = (getattr(module, "weight", None) for module in ends)
    if head is not None and embeddings is not None and head is not embeddings:
        for config in (model.config, model.config.get_text_config()):
            if getattr(config, "tie_word_embeddings", False):
                config.tie_word_embeddings = False


@execution_detail
def _left_out(names: list[str]) -> dict[str, list[str]]:
    """A notice that names the weights for which the model has no place; empty without any."""
    if not names:
        return {}
    several = f"{len(names)} tensors: {', '.join(names[:3])}{', …' if names[3:] else ''}"
    return {
        "notices": [
            f"left out {several}; the model of this config.json has no place for them: check that "
            "the weights and the config are of one model"
        ]
    }


def _config(source: str, where: dict[str, Any]) -> PreTrainedConfig:
    """The config of a source; raises ValueError if its weights are quantised, an adapter lies
    beside them, or the adapter is all there is."""
    is_adapted = _file_of(source, ADAPTER_FILE, where) is not None
    if is_adapted and _file_of(source, "config.json", where) is None:
        raise ValueError("an adapter without its base")
    config = AutoConfig.from_pretrained(source, **where, trust_remote_code=False)
    _require_floats(config)
    require_no_adapter(is_adapted, source)
    return config


def _config_of_gguf(file: str, where: dict[str, Any]) -> PreTrainedConfig:
    """The config of a GGUF file, with what only its tensors say and transformers does not read:
    biases, and the divisors of rotations' frequencies (Llama 3.1).

    Raises ValueError for a rotation that is none of transformers' kinds.
    """
    import gguf

    config: Any = AutoConfig.from_pretrained(
        str(Path(file).parent), **where, trust_remote_code=False
    )
    reader = gguf.GGUFReader(file)
    fields, tensors = reader.fields, {tensor.name: tensor for tensor in reader.tensors}
    for setting, bias in (("attention_bias", "attn_q.bias"), ("mlp_bias", "ffn_gate.bias")):
        if hasattr(config, setting) and f"blk.0.{bias}" in tensors:
            setattr(config, setting, True)
    kind = fields["general.architecture"].contents()
    if kind in ("qwen3", "qwen3moe") and (size := fields.get(f"{kind}.attention.key_length")):
        config.head_dim = size.contents()
    if (divisors := tensors.get("rope_freqs.weight")) is not None:
        config.rope_parameters = _rotation(config, torch.tensor(divisors.data))
    scaling = fields.get(f"{kind}.rope.scaling.type")
    named = "none" if scaling is None else scaling.contents()
    every = getattr(config, "rope_parameters", None) or {}
    rotation = every.get("full_attention", every)  # in Gemma 3, windows keep the default one
    if named == "linear" and rotation.get("rope_type") == "default":
        rotation |= {"rope_type": named, "factor": fields[f"{kind}.rope.scaling.factor"].contents()}
    if named not in ("none", rotation.get("rope_type")) or "rope_factors_long.weight" in tensors:
        raise ValueError(f"rotated by {named}")
    return config


def _rotation(config: Any, divisors: torch.Tensor) -> dict[str, Any]:
    """The rotation whose frequencies are the default ones, each divided by its divisor.

    A GGUF file has only the divisors of Llama 3.1's rotation. Its factor is the largest one, and
    its other settings are those of all Llamas since; only the length before the change is tried
    out. Gemma 4's are 1 for the part that its full attention rotates, and 1e30 for the rest.
    """
    default = config.rope_parameters
    full = default.get("full_attention", default)
    if full.get("rope_type") == "proportional":
        share = (divisors == 1).double().mean().item()
        if (divisors[int(share * len(divisors)) :] < 1e20).any():
            raise ValueError("rotated by the divisors in rope_freqs.weight")
        full["partial_rotary_factor"] = share
        return default
    factor = round(divisors.max().item(), 4)
    if (divisors - factor).abs().max() < 1e-4 * factor:
        return default | {"rope_type": "linear", "factor": factor}
    exponents = torch.arange(len(divisors), dtype=torch.float32) / len(divisors)
    plain = default["rope_theta"] ** -exponents
    for length in (2**power for power in range(6, 20)):
        llama3 = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
        llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": length}
        config.rope_parameters = default | llama3
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        if torch.allclose(plain / frequencies, divisors, rtol=1e-4):
            return config.rope_parameters
    raise ValueError("rotated by the divisors in rope_freqs.weight")


def _require_biases(file: str, model: PreTrainedModel) -> None:
    """Raise ValueError if a GGUF file has a bias for which a model has no place: transformers
    leaves such tensors out without a word."""
    import gguf
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    reader = gguf.GGUFReader(file)
    kind = reader.fields["general.architecture"].contents()
    processor = TENSOR_PROCESSORS.get(kind, TensorProcessor)(config={})
    places = set(get_gguf_hf_weights_map(model, processor))
    found = {t.name for t in reader.tensors if t.name.endswith(".bias") and "_exps." not in t.name}
    if lost := sorted(found - places):
        raise ValueError(f"no place for {lost[0]}")


def _require_floats(config: PreTrainedConfig) -> None:
    """Raise ValueError if the weights that a config describes are quantised, and transformers
    does not turn them into floats."""
    described = getattr(config, "quantization_config", None)
    settings: dict[str, Any] = dict(described if isinstance(described, dict) else {})
    if settings and (method := settings.get("quant_method", "something")) not in DEQUANTISED:
        raise ValueError(f"quantised by {method}")


def _file_of(source: str, name: str, where: dict[str, Any]) -> str | None:
    """The path of a file of a source, if it has one of this name."""
    return cached_file(source, name, **where, _raise_exceptions_for_missing_entries=False)


def _copy_processor(source: str, where: dict[str, Any], output: Path) -> None:
    """Copy what says how images are read, where a model reads some."""
    for name in PROCESSOR_FILES:
        if found := _file_of(source, name, where):
            shutil.copyfile(found, output / name)


_TO_CONVERT = (
    "it has no tokenizer.json, and what converts its tokenizer is not installed here: write one "
    "with `pip install sentencepiece tiktoken protobuf` and "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)
_MEANINGS = {
    "backend tokenizer from": _TO_CONVERT,
    "read a `tiktoken` file": _TO_CONVERT,
    "requires the SentencePiece": _TO_CONVERT,
    "unpack_from requires a buffer": "its .gguf file is cut off; download it again",
    "rotated by": "its rotary positions are of a kind that is not read from .gguf files; take the "
    "model's Hugging Face folder",
    "no place for": "it has biases that transformers would leave out; take the model's Hugging "
    "Face folder",
    "quantised by": "its weights are quantised, and cannot be trained; take the model that they "
    "were made from",
    "both a whole model and an adapter": "an adapter (adapter_config.json) lies beside a whole "
    "model, which may have it merged already; take a folder with the one of them that you mean",
    "an adapter without its base": f"it {ADAPTER_ALONE}",
    "trust_remote_code": "it brings code of its own, which is not run; take a model whose "
    "architecture transformers has",
    "Unrecognized configuration class": "its config.json describes no language model that "
    "predicts the next token; take one that does",
    "does not recognize this architecture": "this transformers does not know the model_type in its "
    "config.json; check it, or `pip install -U transformers`",
    "num_return_sequences": "its generation_config.json asks for several completions of a prompt "
    "without sampling or beams; take num_return_sequences out of it",
    "Weights only load failed": "its .bin file is damaged, or holds more than weights; take the "
    "model as .safetensors",
}
"""What errors of transformers mean here, by a part of their text."""


@contextmanager
def _loading(what: str, source: str) -> Iterator[None]:
    """Turn any error of transformers in loading a model into one sentence.

    Raises:
        ValueError: for every exception, as transformers raises a dozen different kinds.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(_unloadable(what, source, error)) from error


@execution_detail
def _unloadable(what: str, source: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    for text, meaning in _MEANINGS.items():
        if text in said:
            return f"cannot load a {what} from {source}: {meaning}"
    said = (
        said[:300]
        if isinstance(error, (ValueError, OSError))
        else f"{type(error).__name__}: {said[:300]}"
    )
    if Path(source).exists():
        advice = "are its files whole, and of an architecture that this transformers knows?"
    else:
        advice = (
            "check its name and commit, the network and the credentials (hf auth login); a model "
            "that lies in a folder is named by model=local model.path=FOLDER"
        )
    return f"cannot load a {what} from {source}: {said.rstrip('.')}; {advice}"


@contextmanager
def _reading_once() -> Iterator[None]:
    """Make transformers parse a ``.gguf`` file only once, and not again for the tokenizer, the
    config and the weights; and build the table of names once, not once for every submodule.

    The parser reads hundreds of thousands of small fields. This is three times as fast on a plain
    array as on numpy's `memmap`, because every slice of a `memmap` is again a `memmap`.
    """
    import gguf

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._plain = np.asarray(mapped)

    plain = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(Reader), cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = plain
