"""The JAX backend as a training config names it, and the choices that experiments offer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.functional_backend.functional_choice import FunctionalTraining
from steps.jax_backend.config import JaxScoring
from steps.jax_backend.torchax_engine.torchax_choice import TorchaxTraining
from steps.models.config import ADAPTERS
from steps.shared.checks import require, require_count
from steps.shared.execution_detail import detail_field
from steps.training.config import TrainConfig, TrainingBackend

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.training.policy import Policy


@dataclass  # not frozen: OmegaConf could not put one where there was none
class JaxTraining(TrainingBackend):
    """As `JaxScoring`, for a model that is trained: all its weights, or adapters beside them.

    Args:
        devices: how many devices share the work; by default all.
        check: compare the first examples with torch before training.
        kernel: on TPUs, attention is a kernel of our own; `check` compares its gradient too.
    """

    name: ClassVar[str] = "jax"
    needs_packages: ClassVar[tuple[str, ...]] = ("jax",)

    devices: int | None = detail_field(None)
    check: bool = detail_field(True)
    kernel: bool = detail_field(False)

    def __post_init__(self) -> None:
        require_count(self, "devices", or_null=True)
        require(self.check or not self.kernel, "kernel=true needs check=true", self.check)

    @property
    def scoring(self) -> JaxScoring:
        return JaxScoring(self.devices, self.check, self.kernel)

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool
    ) -> "Policy":
        from steps.jax_backend.jax_trainer import JaxPolicy

        return JaxPolicy(folder, config, ranks, dropout, self.devices, self.check, self.kernel)


_TRAINING: Mapping[str, type] = {
    b.name: b for b in (JaxTraining, FunctionalTraining, TorchaxTraining)
}
_SCORING: Mapping[str, type] = {JaxScoring.name: JaxScoring}


def training_choices(*configs: str) -> dict[str, Mapping[str, type]]:
    """The choices of an experiment's training configs with these names, for ``main``.

    They are adapters (``dpo/lora=lora``) and backends (``dpo/backend=jax``). Without them, torch
    trains all weights.
    """
    return {
        f"{config}.{choice}": options
        for config in configs
        for choice, options in (("lora", ADAPTERS), ("backend", _TRAINING))
    }


def scoring_choices(*configs: str) -> dict[str, Mapping[str, type]]:
    """The same for configs that only score: backends (``evaluate/backend=jax``)."""
    return {f"{config}.backend": _SCORING for config in configs}
