"""torchax as a training config names it: experimental, transformers' model on JAX."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.jax_backend.config import require_in_optax
from steps.shared.execution_detail import detail_field
from steps.training.config import TrainConfig, TrainingBackend, UpdateConfig

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy, Role

_TORCH = "2.11"


@dataclass  # not frozen: OmegaConf could not put one where there was none
class TorchaxTraining(TrainingBackend):
    """Experimental: transformers' model, which torchax runs on JAX, on one device.

    It is for float32 and float64, keeps all activations, whatever `activation_checkpointing` says,
    and has no adapters and no dropout. References are those of torch.

    Args:
        check: compare the first examples with torch before training.
    """

    name: ClassVar[str] = "torchax"
    needs_packages: ClassVar[tuple[str, ...]] = ("torchax", "jax", "optax")

    check: bool = detail_field(True)

    def require_settings(self, config: UpdateConfig) -> None:
        require_in_optax(config.optimizer, self.name)

    @property
    def scoring(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool, role: "Role"
    ) -> "Policy":
        if not (found := version("torch")).startswith(f"{_TORCH}."):
            raise ValueError(
                f"backend=torchax needs torch {_TORCH}, and this is torch {found}; in an "
                "environment of its own, pip install 'temper-ml[torchax]'"
            )
        from steps.jax_backend.torchax_engine.torchax_policy import TorchaxPolicy

        return TorchaxPolicy(folder, config, ranks, dropout, role, self)
