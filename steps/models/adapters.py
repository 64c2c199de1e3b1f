"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), through `peft`.

An adapter starts as a product with a zero factor, so the adapted model is the base to the last bit.
Preferences therefore need no second model: the reference is the base without an adapter, and its
logps are those that `run_reference` computes from the folder that the policy starts from.

What is trained is kept in two ways: added to the base's weights, as a model like any other; and by
itself, as `peft` loads it beside a base.
"""

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from steps.models.config import LoraConfig

if TYPE_CHECKING:
    from peft import PeftModel


def add_adapter(
    model: PreTrainedModel, config: LoraConfig, seed: int, task: str | None = "CAUSAL_LM"
) -> "PeftModel":
    """Puts adapters beside the linear layers of `model`, in place, and freezes everything else.

    Without `target_modules` all linear layers but the head get one. `task` is what `peft` calls the
    model's purpose; without one, `peft` asks for nothing but layers. Raises ValueError naming
    modules that the model does not have, or a head and embeddings that are one matrix: merged, an
    adapter of either would change both, and what is saved would not be what was trained.
    """
    import peft

    targets = list(config.target_modules) if config.target_modules else "all-linear"
    described = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType] (any number is)
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type=task,  # pyright: ignore[reportArgumentType]
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(model, described, autocast_adapter_dtype=False)
    _require_untied(model)
    return cast("PeftModel", adapted)


def _require_untied(model: PreTrainedModel) -> None:
    """Refuses adapters on a matrix that the head and the embeddings share."""
    ends: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    if ends[1] is None or ends[0].weight is not ends[1].weight:
        return
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    if shared := sorted(name for name in adapted if model.get_submodule(name) in ends):
        raise ValueError(
            f"target_modules names {shared[0].rpartition('.')[2]}, but head and embeddings of "
            f"{type(model).__name__} are one matrix, so that its adapter cannot be merged into the "
            "one without the other; leave it out"
        )


def keep_adapter_dropout(model: PreTrainedModel) -> None:
    """Adapters' dropout on, whatever the mode of the model around them."""
    for name, module in model.named_modules():
        if name.endswith(".lora_dropout"):
            module.train()


def save_adapter(adapted: "PeftModel", folder: Path) -> None:
    """Writes the adapters as ``PeftModel.from_pretrained(base, folder)`` reads them.

    The bytes follow from the adapters alone: no path of a base, and no order of a set, is in them.
    """
    import peft

    folder.mkdir(parents=True)
    tensors = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(copies, folder / "adapter_model.safetensors", {"format": "pt"})
    described = copy(adapted.peft_config["default"])
    described.base_model_name_or_path = None
    described.inference_mode = True
    assert isinstance(described, peft.LoraConfig)
    if not isinstance(described.target_modules, str):
        described.target_modules = sorted(described.target_modules or ())
    described.save_pretrained(str(folder))


def merge_adapter(adapted: "PeftModel") -> PreTrainedModel:
    """The base model with the adapters added to its weights and taken away."""
    return cast(PreTrainedModel, adapted.merge_and_unload(safe_merge=True))
