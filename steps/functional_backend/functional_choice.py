"""The functional torch backend as a training config names it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.training.config import TrainConfig, TrainingBackend

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy, Role


@dataclass  # not frozen: OmegaConf could not put one where there was none
class FunctionalTraining(TrainingBackend):
    """Transformers' model on torch, called as a pure function of its weights, on one device.

    It keeps all activations, whatever `activation_checkpointing` says. References are those of
    torch.

    Args:
        noise_scale: log the gradient noise scale (McCandlish et al. 2018,
            https://arxiv.org/abs/1812.06162). Every example gets a forward of its own then, which
            is slower where examples are short.
    """

    name: ClassVar[str] = "functional"
    is_of_torch: ClassVar[bool] = True
    has_normalisers: ClassVar[bool] = True

    noise_scale: bool = False

    @property
    def scoring(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool, role: "Role"
    ) -> "Policy":
        from steps.functional_backend.functional_trainer import FunctionalPolicy

        return FunctionalPolicy(folder, config, ranks, dropout, role, self.noise_scale)
