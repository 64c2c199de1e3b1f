"""Write a trained model as a folder to publish, with all weights or with adapters only."""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from steps.data.tokens.rendering import load_bare_tokenizer
from steps.generation.sampling import as_list, end_tokens
from steps.models.adapted import ADAPTER, EXCESS
from steps.models.adapters import BASE
from steps.models.config import Dtype
from steps.models.folders import load_model, save_model
from steps.scoring.scored_by import model_digest


def export_merged(model: Path, output: Path, dtype: Dtype, keep_adapters: bool) -> dict[str, Any]:
    """Write all weights, with adapters merged. With `keep_adapters`, also write the adapters.

    The generation config names every token that ends an answer, so others end answers there, too.
    """
    exported = load_model(model, dtype)
    save_model(exported, output, tokenizer_from=model)
    _name_ends(exported, load_bare_tokenizer(model), output / "generation_config.json")
    if keep_adapters and (model / ADAPTER).is_dir():
        beside = shutil.ignore_patterns(EXCESS)
        shutil.copytree(model / ADAPTER, output / ADAPTER, False, beside, shutil.copyfile)
    return {"parameters": exported.num_parameters(), "dtype": str(dtype)}


def export_adapters(model: Path, output: Path, base: Path, base_model: str) -> dict[str, Any]:
    """Write the adapters, with the name of their base model, and the tokenizer.

    Raises FileNotFoundError for a model that was trained without adapters, and ValueError if these
    were trained on another model than `base`: together they would be another model.
    """
    if not (model / ADAPTER).is_dir():
        raise FileNotFoundError(
            "the model was trained without adapters, so there are none to export; set "
            "adapters=merged, or train with dpo/lora=lora"
        )
    named = model / ADAPTER / BASE
    if named.is_file() and json.loads(named.read_text("utf-8"))["weights"] != model_digest(base):
        raise ValueError(
            f"the adapters were trained on other weights than those of the base model "
            f"{base_model}, perhaps on the model of an earlier stage; with adapters=kept the whole "
            "model is exported"
        )
    beside = shutil.ignore_patterns(BASE, EXCESS)
    shutil.copytree(model / ADAPTER, output, False, beside, shutil.copyfile, dirs_exist_ok=True)
    config = output / "adapter_config.json"
    described = json.loads(config.read_text("utf-8")) | {"base_model_name_or_path": base_model}
    config.write_text(json.dumps(described, indent=2, sort_keys=True), encoding="utf-8")
    load_bare_tokenizer(model).save_pretrained(output)
    return {"adapter_bytes": (output / "adapter_model.safetensors").stat().st_size}


def _name_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Add the ends of answers to a saved generation config. transformers refuses to save a changed
    one whose settings contradict each other, as those of many published models do."""
    if not file.is_file():
        return
    described = json.loads(file.read_text("utf-8"))
    named = as_list(described.get("eos_token_id"))
    if lacking := [end for end in end_tokens(model, tokenizer) if end not in named]:
        described["eos_token_id"] = [*named, *lacking]
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        file.write_text(text, encoding="utf-8")
