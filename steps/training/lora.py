"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), through `peft`.

An adapter starts as a product with a zero factor, so the adapted model is the base to the last bit.
Preferences therefore need no second model: the reference is the base without an adapter, and its
logps are those that `run_reference` computes from the folder that the policy starts from.
"""

from typing import TYPE_CHECKING, cast

import torch
from transformers import PreTrainedModel

from steps.training.config import LoraConfig

if TYPE_CHECKING:
    from peft import PeftModel


def add_adapter(model: PreTrainedModel, config: LoraConfig, seed: int) -> "PeftModel":
    """Puts adapters beside the linear layers of `model`, in place, and freezes everything else.

    Without `target_modules` all linear layers but the head get one. Raises ValueError naming
    modules that the model does not have.
    """
    import peft

    targets = list(config.target_modules) if config.target_modules else "all-linear"
    described = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType] (any number is)
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(model, described, autocast_adapter_dtype=False)
    return cast("PeftModel", adapted)


def keep_adapter_dropout(model: PreTrainedModel) -> None:
    """Adapters' dropout on, whatever the mode of the model around them."""
    for name, module in model.named_modules():
        if name.endswith(".lora_dropout"):
            module.train()


def merge_adapter(adapted: "PeftModel") -> PreTrainedModel:
    """The base model with the adapters added to its weights and taken away."""
    return cast(PreTrainedModel, adapted.merge_and_unload(safe_merge=True))
