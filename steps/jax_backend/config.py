"""The JAX backend as a value in a config: importable without JAX and torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import PreferenceLoss
from steps.losses.dpo import Dpo
from steps.models.config import Dtype
from steps.scoring.config import ReferenceConfig, ScoringBackend
from steps.shared.checks import holding, require, require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field
from steps.training.config import (
    Algorithm,
    OptimizerConfig,
    TrainConfig,
    TrainingBackend,
    UpdateConfig,
)

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.scoring.reference import OpenModel
    from steps.training.policy import Policy, Role


@dataclass
class JaxDevices:
    """Temper's decoder in JAX, for CPUs and TPUs.

    Args:
        devices: how many of the process's devices share the work; null is all of them. More than
            one processor is simulated.
        check: the first examples are compared with transformers' own model before the rest is
            computed. That loads the model once more, on the host.
        kernel: on TPUs, attention is a kernel of our own; `check`, which that needs, compares its
            gradient too before training.
    """

    name: ClassVar[str] = "jax"
    needs_packages: ClassVar[tuple[str, ...]] = ("jax", "optax")

    devices: int | None = detail_field(None)
    check: bool = detail_field(True)
    kernel: bool = detail_field(False)

    def __post_init__(self) -> None:
        require_count(self, "devices", or_null=True)
        require(self.check or not self.kernel, "kernel=true needs check=true", self.check)


@dataclass  # not frozen: OmegaConf could not put one where there was none
class JaxScoring(JaxDevices, ScoringBackend):
    """Temper's decoder in JAX, for CPUs and TPUs."""

    def open_model(self, folder: Path, config: ReferenceConfig, ranks: "Ranks") -> "OpenModel":
        from steps.jax_backend.jax_scorer import JaxModel

        return JaxModel(folder, config, ranks, self)


@dataclass  # not frozen: OmegaConf could not put one where there was none
class JaxTraining(JaxDevices, TrainingBackend):
    """As `JaxScoring`, for a model that is trained: all its weights, or adapters beside them."""

    has_normalisers: ClassVar[bool] = True

    def require_settings(self, config: UpdateConfig) -> None:
        require_in_optax(config.optimizer, self.name)

    @property
    def scoring(self) -> JaxScoring:
        return JaxScoring(self.devices, self.check, self.kernel)

    def open_policy(
        self, folder: Path, config: TrainConfig, ranks: "Ranks", dropout: bool, role: "Role"
    ) -> "Policy":
        from steps.jax_backend.jax_trainer import JaxPolicy

        return JaxPolicy(folder, config, ranks, dropout, role, self)


def require_in_optax(optimizer: OptimizerConfig, backend: str) -> None:
    """Raise ValueError for an optimiser that is there for torch alone."""
    lacks = {
        "an optimiser with a build of its own": type(optimizer).build is not OptimizerConfig.build,
        "an adafactor that equals torch's": optimizer.algorithm is Algorithm.adafactor,
    }
    for what in holding(lacks):
        raise ValueError(f"backend={backend} lacks {what}; use torch (backend=null) or functional")


@dataclass(frozen=True)
class InfluenceConfig:
    """How the influence of rows is computed. `devices` and `check` are those of `JaxScoring`.

    loss: the loss whose gradient is taken. If it uses a reference, the model itself is the
        reference.
    projection: 0 computes influences exactly, without a row's gradient; with a number, each row's
        gradient is computed, projected at random to so many numbers, and kept.
    seed: of the random projection.
    """

    loss: PreferenceLoss = field(default_factory=Dpo)
    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    projection: int = added_field(0, before=0)
    seed: int = added_field(0, before=0)
    devices: int | None = detail_field(None)
    check: bool = detail_field(True)

    def __post_init__(self) -> None:
        if not self.loss.is_of_sums:
            raise ValueError(
                f"the loss {self.loss.name} looks at more than the log-probabilities of a pair's "
                "responses, for which no influence is computed; take another one, such as dpo"
            )
        set_choice(self, "dtype", Dtype)
        require_count(self, "tokens_per_forward")
        require_count(self, "projection", "seed", least=0)
        for name in ("projection", "seed"):
            require(getattr(self, name) < 2**31, f"{name} must be below 2**31", getattr(self, name))
        require_count(self, "devices", or_null=True)
