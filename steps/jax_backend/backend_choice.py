"""The JAX backend as a training config names it, and all backends by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.jax_backend.config import JaxScoring
from steps.shared.checks import require_count
from steps.shared.execution_detail import detail_field
from steps.training.config import TrainConfig, TrainingBackend

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy


@dataclass  # not frozen: OmegaConf could not put one where there was none
class JaxTraining(TrainingBackend):
    """Training in JAX, of all weights and without dropout; see `JaxScoring`.

    Args:
        devices: how many devices share the work; null means all.
        check: whether the first examples are compared with torch before training.
    """

    name: ClassVar[str] = "jax"
    needs_packages: ClassVar[tuple[str, ...]] = ("jax",)

    devices: int | None = detail_field(None)
    check: bool = detail_field(True)

    def __post_init__(self) -> None:
        require_count(self, "devices", or_null=True)

    @property
    def scoring(self) -> JaxScoring:
        return JaxScoring(self.devices, self.check)

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool
    ) -> "Policy":
        from steps.jax_backend.jax_trainer import JaxPolicy

        return JaxPolicy(folder, config, ranks, dropout, self.devices, self.check)


TRAINING_BACKENDS: Mapping[str, type] = {JaxTraining.name: JaxTraining}
"""Backends by their names in a config; an experiment passes them to ``main``. Without a backend,
torch runs the model."""
