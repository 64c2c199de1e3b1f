"""A server of Tinker's API as a training config names it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from steps.models.config import LoraConfig
from steps.shared.checks import holding, require
from steps.shared.execution_detail import detail_field
from steps.training.config import (
    Algorithm,
    OptimizerConfig,
    TrainConfig,
    TrainingBackend,
    UpdateConfig,
)

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy, Role


def require_alike(
    optimizer: OptimizerConfig, others: Mapping[str, bool] = MappingProxyType({})
) -> None:
    """Raise ValueError, which names all faults, for settings that servers do not have, or of which
    each makes something else.

    Args:
        others: other faults.
    """
    faults = {
        **others,
        "optimizer.algorithm=adamw": optimizer.algorithm is not Algorithm.adamw,
        "optimizer.eight_bit=false": optimizer.eight_bit,
        "optimizer.rates={}": bool(optimizer.rates),
        # A server multiplies gradients by a factor of its own.
        "optimizer.max_grad_norm=null": optimizer.max_grad_norm is not None,
        "optimizer.adam_epsilon=1e-12": optimizer.adam_epsilon > 1e-12,
    }
    if needed := holding(faults):
        raise ValueError(f"a server of Tinker's API needs {', '.join(needed)}")


@dataclass  # not frozen: OmegaConf could not put one where there was none
class TinkerTraining(TrainingBackend):
    """A server of Tinker's API trains an adapter (``lora``) on the model that it holds. What it
    makes is recorded, and not promised to come out again.

    It must hold the model of the step's folder: first logps are compared. Its API key is in the
    environment's TINKER_API_KEY. References are those of torch. There is no dropout.

    Args:
        base_model: the name of that model on the server, such as Qwen/Qwen3-8B.
        address: of the server, such as http://127.0.0.1:8000; by default TINKER_BASE_URL of the
            environment, or Tinker's own.
        patience: seconds without an answer after which the server counts as hung.
    """

    name: ClassVar[str] = "tinker"
    is_recorded: ClassVar[bool] = True
    needs_packages: ClassVar[tuple[str, ...]] = ("tinker",)

    base_model: str = ""
    address: str | None = detail_field(None)
    patience: float = detail_field(3600.0)

    def __post_init__(self) -> None:
        require(bool(self.base_model), "base_model must be the server's name for the model", "")
        require(0 < self.patience < math.inf, "patience must be above 0", self.patience)

    @property
    def scoring(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    def require_settings(self, config: UpdateConfig) -> None:
        lora = config.lora or LoraConfig()
        others = {
            "an adapter (lora)": config.lora is None,
            "lora.dropout=0": lora.dropout > 0,
            "lora.rslora=false": lora.rslora,
            "lora.quantization=null": lora.quantization is not None,
            "router_aux_loss_coef=0 or null": bool(config.router_aux_loss_coef),
        }
        require_alike(config.optimizer, others)

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool, role: "Role"
    ) -> "Policy":
        from steps.tinker_backend.tinker_trainer import TinkerPolicy

        return TinkerPolicy(folder, config, ranks, role, self)
