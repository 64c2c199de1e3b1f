"""What the JAX decoder reads of a config, and that it passes over nothing that matters.

No weights and no forwards: `test_jax_parity` compares those.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from families import WINDOW
from tiny_models import SIZES
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from steps.jax_backend.architecture import FAMILIES, architecture_of

MIXED = ["sliding_attention", "full_attention"]
WINDOWED = {"sliding_window": WINDOW, "layer_types": MIXED}
BASES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, **WINDOWED},
    "qwen3": {"use_sliding_window": True, **WINDOWED},
    "smollm3": {"use_sliding_window": True, "no_rope_layers": [1, 0], **WINDOWED},
    "gemma2": {**WINDOWED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**WINDOWED, "final_logit_softcapping": 3.0},
}
OTHER: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "layer_types": MIXED[::-1],
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 5.0,
    "num_hidden_layers": 1,
    "pad_token_id": 7,
    "no_rope_layers": [0, 1],
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
}
PARTIAL = {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0, "partial_rotary_factor": 0.5}
NO_MATTER = {
    *("transformers_version", "architectures", "dtype", "return_dict", "output_hidden_states"),
    *("output_attentions", "use_cache", "id2label", "label2id", "problem_type", "bos_token_id"),
    *("eos_token_id", "initializer_range", "pretraining_tp", "resid_pdrop", "embd_pdrop"),
    # These act when transformers reads a config, on other settings, unless those are given.
    *("max_window_layers", "no_rope_layer_interval", "_sliding_window_pattern"),
}
"""What the logps of a model without dropout do not depend on."""
OF_SCALED_ROTATIONS = {"max_position_embeddings", "original_max_position_embeddings"}


def config_of(family: str, **settings: Any) -> Any:
    return CONFIG_MAPPING[family](**{**SIZES, **BASES.get(family, {}), **settings})


def read(config: Any) -> tuple[Any, ...]:
    """All that the decoder is made of: an architecture, and the shapes of weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return architecture_of(config), shapes


def another(name: str, value: Any, family: str) -> Any:
    if name == "rope_parameters" and family == "gemma3_text":
        return dict.fromkeys(MIXED, OTHER[name])
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool) or value is None:
        return (value is None and name == "pad_token_id" and 7) or not value
    return value * 2 if value else (0.25 if isinstance(value, float) else 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_a_family_is_read_or_refused_by_name(family: str) -> None:
    """A setting that a later transformers adds to a family fails here until somebody has looked."""
    plain = config_of(family)
    before = read(plain)
    for field in fields(type(plain)):
        if field.name in NO_MATTER | OF_SCALED_ROTATIONS:
            continue
        value = another(field.name, getattr(plain, field.name), family)
        changed = config_of(family)
        setattr(changed, field.name, value)
        assert seen(changed, field.name) != before, f"{field.name}={value} changes nothing"


def seen(config: Any, name: str) -> tuple[Any, ...]:
    """As `read`; nothing, if the setting is refused by name."""
    try:
        return read(config)
    except ValueError as error:
        if name not in str(error):
            raise
        return ()


@pytest.mark.parametrize(
    ("family", "settings", "fault"),
    [
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0"),
        ("llama", {"rope_parameters": PARTIAL}, "partial_rotary_factor with the rotation 'linear'"),
        ("smollm3", {"use_sliding_window": False}, "use_sliding_window=False"),
        ("qwen2", {"use_sliding_window": False}, "sliding layers with no sliding_window"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ],
)
def test_what_the_decoder_would_compute_otherwise_is_refused(
    family: str, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        architecture_of(config_of(family, **settings))


def test_weights_are_those_that_transformers_reads_and_a_tied_head_is_no_other(
    tmp_path: Path,
) -> None:
    import numpy as np
    from safetensors.torch import load_file, save_file
    from tiny_models import llama, model_folder

    from steps.jax_backend.param_tree import read_weights

    folder = model_folder(tmp_path, llama)
    weights = load_file(folder / "model.safetensors")
    save_file({name: -w for name, w in weights.items()}, folder / "older.safetensors")  # not read
    for change, is_refused in ((0.0, False), (1.0, True)):
        head = weights["model.embed_tokens.weight"] + change
        save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")
        if is_refused:
            with pytest.raises(ValueError, match="set that to false"):
                read_weights(folder, np.dtype(np.float32))
        else:
            read = read_weights(folder, np.dtype(np.float32))
            assert np.array_equal(read["model.norm.weight"], weights["model.norm.weight"])
