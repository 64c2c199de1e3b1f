"""How log-probabilities are computed: types that are importable without torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.models.config import Dtype, Quantization
from steps.shared.checks import require, require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.scoring.reference import OpenModel


class Attention(StrEnum):
    """How examples are laid out for a forward.

    packed: all examples in one row without padding; both responses of a pair share one prompt.
    padded: one row for each response. Several rows share a forward if the model computes padded
        rows correctly. For models that cannot read packs.
    auto: packed if the first examples get the same logps as from the unmodified model, padded
        otherwise. A notice of the run says which.
    """

    auto = "auto"
    packed = "packed"
    padded = "padded"


@dataclass  # not frozen: OmegaConf cannot replace None by a frozen dataclass
class ScoringBackend:
    """The engine that computes logps without training; `name` is its name in a config.

    A step depends on the code of its own backend only. The backend is part of a step's key, because
    two backends agree up to rounding, but not bit for bit.
    """

    name: ClassVar[str]

    def open_model(self, folder: Path, config: "ReferenceConfig", ranks: "Ranks") -> "OpenModel":
        """Load the model of a folder for the computation of logps."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReferenceConfig:
    """How log-probabilities are computed. A reference must have the same settings as the training
    of its policy, except `groups_per_shard`.

    Args:
        dtype: the dtype of weights and activations.
        tokens_per_forward: the most tokens of one forward. Examples are packed up to this number; a
            longer example gets its own forward. A larger number takes more memory.
        attention: how a forward lays out examples: packed without padding, padded, or packed only
            if the model supports it.
        groups_per_shard: how many examples are saved at a time. An interrupted computation resumes
            at the next shard.
        backend: the engine that computes; null: transformers' model on torch.
        quantization: round the weights of linear layers to 4 bits, as for adapters that are trained
            over rounded weights; null: as they are.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto
    groups_per_shard: int = detail_field(256)
    backend: ScoringBackend | None = added_field(None, before=None)
    quantization: Quantization | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "tokens_per_forward", "groups_per_shard")
        if self.quantization is not None:
            set_choice(self, "quantization", Quantization)
            require_torch_below_float64("quantization", self.dtype, self.backend)


def require_torch_below_float64(name: str, dtype: Dtype, backend: object) -> None:
    """Raise ValueError if the setting `name`, which bitsandbytes carries out, does not go with this
    dtype or backend."""
    require(dtype is not Dtype.float64, f"{name} needs dtype=bfloat16 or float32", f"{dtype}")
    require(backend is None, f"{name} needs backend=null (torch)", backend)
