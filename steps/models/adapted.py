"""Model folders that hold adapters, and refer to the model that these were trained on.

Such a folder has all files of a model folder but its weights, and ``adapted.json``: the digest of
the base's artifact, with the dtype and the settings that say how the two are merged. `assemble`
merges them with the code, and so to the bytes, that training with ``merged=true`` writes.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.models.config import ADAPTED, Dtype, LoraConfig, has_adapters_alone

if TYPE_CHECKING:  # a step that copies a model with its weights takes no torch
    from peft import PeftModel
    from torch import Tensor

ADAPTER = "adapter"
"""The folder with the adapters, in `peft`'s format."""
EXCESS = "excess.safetensors"
"""The file there with what magnitudes (DoRA) have beside the norms of the base: `peft`'s format has
their sums, from which it would come back rounded."""
_MAGNITUDES = "lora_magnitude_vector"


def save_adapted(
    adapted: "PeftModel",
    output: Path,
    folder: Path,
    weights: str,
    base: str | None,
    lora: LoraConfig,
    dtype: Dtype,
) -> None:
    """Write a trained model with adapters.

    Args:
        folder: the folder of the model that they were trained on, and `weights` its digest
            (`model_digest`).
        base: the digest of that model's artifact; None for a model that is in none: then the
            weights are written, with the adapters in them, as with ``lora.merged``.
    """
    from safetensors.torch import save_file

    from steps.models.adapters import merge_adapter, save_adapter
    from steps.models.folders import copy_tokenizer, save_model

    save_adapter(adapted, output / ADAPTER, weights)
    if base is None or not lora.is_alone:
        save_model(merge_adapter(adapted), output, tokenizer_from=folder)
        return
    trained = _trained(adapted)
    for name, value in trained.items():
        if not value.isfinite().all():
            raise FloatingPointError(
                f"{name} has values that are not finite; lower the learning rate"
            )
    if kept := {name: w.cpu() for name, w in trained.items() if _MAGNITUDES in name}:
        save_file(kept, output / ADAPTER / EXCESS)
    copy_tokenizer(folder, output)
    shutil.copyfile(folder / "config.json", output / "config.json")
    described = {"base": base, "dtype": str(dtype), "lora": asdict(lora)}
    (output / ADAPTED).write_text(json.dumps(described, indent=1) + "\n", "utf-8")


def assemble(folder: Path, target: Path, whole: Callable[[str], Path]) -> bool:
    """Write the whole model of a `folder` with adapters alone to an empty `target`; false if the
    folder has its weights. ``adapted.json`` stays, so that `model_digest` need not ask processors
    how they round sums.

    Args:
        whole: the folder of the base, by the digest of its artifact.
    """
    if not has_adapters_alone(path.name for path in folder.glob("*")):
        return False
    from safetensors.torch import load_file

    from steps.models.adapters import add_adapter, merge_adapter
    from steps.models.folders import load_model, save_model

    described: dict[str, Any] = json.loads((folder / ADAPTED).read_text("utf-8"))
    lora = LoraConfig(**described["lora"])
    model = load_model(whole(described["base"]), Dtype(described["dtype"]), on_host=True)
    adapted = add_adapter(model, lora, seed=0)
    saved = load_file(folder / ADAPTER / "adapter_model.safetensors")
    if (folder / ADAPTER / EXCESS).is_file():
        saved |= load_file(folder / ADAPTER / EXCESS)
    for name, value in _trained(adapted).items():
        if name in saved or _MAGNITUDES not in name:  # which stay 0 if their rate was 0
            value.copy_(saved[name])
    snapshots = shutil.ignore_patterns("step-*")
    shutil.copytree(folder, target, False, snapshots, shutil.copyfile, dirs_exist_ok=True)
    save_model(merge_adapter(adapted), target)
    return True


def _trained(adapted: "PeftModel") -> dict[str, "Tensor"]:
    """The trained parameters, by the names that `peft` gives them in files."""
    trained = ((name, p) for name, p in adapted.named_parameters() if p.requires_grad)
    return {name.replace(".default", ""): p.detach() for name, p in trained}
