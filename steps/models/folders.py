"""Read and write models as folders, so that equal weights give equal bytes.

The bytes of a written folder depend only on the weights, the config and the installed version of
transformers (which is in config.json). They contain no path and no time.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from steps.data.images.placeholders import PROCESSOR_FILES
from steps.models.config import ADAPTER_FILE, Dtype, Quantization, has_adapters_alone
from steps.models.quantized import four_bit, prepare_four_bit
from steps.shared.execution_detail import execution_detail

_TOKENIZER_FILES = (
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates/*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    *PROCESSOR_FILES,
)


def load_model(
    path: Path | str,
    dtype: Dtype = Dtype.float32,
    on_host: bool = False,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """The causal language model of a Hugging Face folder, on this process's GPU if there is one,
    unless `on_host` is set. Its linear layers have weights of 4 bits if `quantization` says so.

    Raises FileNotFoundError for a folder that is missing or has no config.json, and ValueError for
    one that lacks weights, holds an adapter too, or cannot be rounded to 4 bits.
    """
    model, missing = load_as(None, path, dtype, on_host, quantization)
    require_weights(missing, path)
    return model


def require_folder(folder: Path) -> None:
    """Raise FileNotFoundError if there is no model folder."""
    if not (folder / "config.json").is_file():
        fault = "has no config.json" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(f"model folder {folder} {fault}; import the model into it first")


def require_weights(missing: Iterable[str], source: Path | str) -> None:
    """Raise ValueError if the weights of `source` do not have all parameters of the right shape
    that its config describes: transformers would draw the others at random."""
    if names := sorted(missing):
        more = f" and {len(names) - 1} more" if names[1:] else ""
        raise ValueError(
            f"the weights of {source} do not fit its config.json: they lack {names[0]}{more}, or "
            "have another shape; take both files from one model"
        )


def require_no_adapter(has_one: bool, source: Path | str) -> None:
    """Raise ValueError if an adapter lies beside the whole model of `source`: transformers would
    put it on the model, and then save it alone."""
    if has_one:
        raise ValueError(
            f"{source} has both a whole model and an adapter ({ADAPTER_FILE}), which may be merged "
            f"into it already; delete {ADAPTER_FILE} there, or merge the adapter with peft and "
            "name that model"
        )


def language_model_of(config: PreTrainedConfig) -> Any:
    """The auto class for the language model of a config: of models that also see, where the config
    is known as one of these alone."""
    named = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    sees = "vision_config" in config.sub_configs and not named
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def became_blind(model: PreTrainedModel, config: PreTrainedConfig) -> str | None:
    """A notice if the model that `config` describes reads images, and `model`, which is all that
    was loaded of it, does not."""
    sees = "vision_config" in config.sub_configs
    return _blind(model) if sees and "vision_config" not in model.config.sub_configs else None


@execution_detail
def _blind(model: PreTrainedModel) -> str:
    return (
        "left out the part of the model that reads images: transformers has its language model by "
        f"itself ({type(model).__name__}), so what is trained and saved reads text only"
    )


def load_as(
    kind: Any,
    path: Path | str,
    dtype: Dtype,
    on_host: bool = False,
    quantization: Quantization | None = None,
    **settings: Any,
) -> tuple[PreTrainedModel, set[str]]:
    """Load a folder with an auto class of transformers, otherwise like `load_model`.

    Returns the model, and the names of the parameters that the folder lacks, whose values are
    arbitrary.

    Args:
        kind: the auto class; without one, that of language models.
        settings: what the model's config is to say instead.

    Raises ValueError, as `load_model` does, if a weight has another shape or an adapter is there.
    """
    folder = Path(path)
    require_folder(folder)
    if has_adapters_alone(path.name for path in folder.glob("*")):
        raise ValueError(
            f"{folder} has adapters, and their base is another artifact: export_hf writes a whole "
            "model, and lora.merged=true trains one"
        )
    require_no_adapter((folder / ADAPTER_FILE).is_file(), folder)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if quantization is not None:
        settings |= four_bit(quantization, dtype, on_host)
    with _without_progress_bars():
        model, found = (kind or language_model_of(config)).from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation="eager" if _soft_caps_scores(config) else None,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which the next line refuses, and says which
            **settings,
        )
    require_weights((name for name, *_ in found["mismatched_keys"]), folder)
    if quantization is not None:
        prepare_four_bit(model)
    # not a part of steps that only write models
    from steps.shared.experts import use_padded_experts
    from steps.shared.matmul import use_onednn

    device = torch.device("cuda" if torch.cuda.is_available() and not on_host else "cpu")
    if device.type == "cpu":
        use_onednn(model)
        use_padded_experts(model)
    else:
        torch.backends.cudnn.allow_tf32 = False  # it would round factors of float32 to 11 bits
        if dtype is Dtype.float64:  # grouped matrix products do not support it
            model.set_experts_implementation("eager")
    return model.to(device), set(found["missing_keys"])


def own_attention(model: PreTrainedModel) -> str:
    """The attention of transformers that a model uses for generation and in comparisons.

    It is SDPA; or eager if the model has no SDPA, or if it soft-caps scores (Gemma 2), which SDPA
    cannot compute."""
    return "eager" if _soft_caps_scores(model.config) or not model._supports_sdpa else "sdpa"


def save_model(
    model: PreTrainedModel, path: Path | str, tokenizer_from: Path | str | None = None
) -> None:
    """Write a Hugging Face folder: safetensors, configs, and another folder's tokenizer files.

    Tied weights are stored once. Tokenizer files, including the chat template, are copied
    unchanged. Raises FloatingPointError, which names a weight, if it is not finite: no forward has
    used the weights since the last update of a run. A bias of the head may be minus infinity, for
    an entry of the vocabulary that is no token.
    """
    bias = getattr(model.get_output_embeddings(), "bias", None)
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter, parameter is bias):
            raise FloatingPointError(
                f"{name} has values that are not finite; if it was trained, lower the learning rate"
            )
    folder = Path(path)
    with _without_progress_bars(), writing(folder):
        model.save_pretrained(folder)
    if tokenizer_from is not None:
        copy_tokenizer(Path(tokenizer_from), folder)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer of a model folder, with its chat template, into another one."""
    for file in {file for pattern in _TOKENIZER_FILES for file in source.glob(pattern)}:
        copy = folder / file.relative_to(source)
        if file.is_file():
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def _is_finite(parameter: torch.Tensor, may_mask: bool) -> bool:
    """Whether all values are finite, or minus infinity if that is allowed. One pass finds the
    extremes, which are NaN if any value is; `isfinite` would write three tensors of the parameter's
    size."""
    if not parameter.numel():
        return True
    lowest, highest = torch.aminmax(parameter.detach())
    return bool(highest.isfinite()) and (may_mask or bool(lowest.isfinite()))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of safetensors, as on a full disk, into an OSError that names the file or
    folder."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"cannot write {path} ({error}); what was saved before is kept: make room, and run "
            "again to go on from there"
        ) from error


def vocabulary_size(model: PreTrainedModel) -> int:
    """How many token ids the model can read."""
    return len(cast(torch.nn.Embedding, model.get_input_embeddings()).weight)  # also if adapted


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch dropout off inside the block, then restore the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _soft_caps_scores(config: PreTrainedConfig) -> bool:
    return getattr(config, "attn_logit_softcapping", None) is not None


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
