"""How log-probabilities are computed: frozen data, importable without torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from steps.models.config import Dtype
from steps.shared.checks import require_count, set_choice
from steps.shared.execution_detail import added_field, detail_field

if TYPE_CHECKING:
    from steps.models.ranks import Ranks
    from steps.scoring.reference import OpenModel


class Attention(StrEnum):
    """How examples are laid out for a forward.

    packed: one row without padding, the prompt of a pair once.
    padded: a row for each response, several to a forward where that is right; for models that read
        no packs.
    auto: packed where a check of the first examples finds that it gives what the model itself
        gives, padded otherwise; the run says which.
    """

    auto = "auto"
    packed = "packed"
    padded = "padded"


@dataclass  # not frozen: OmegaConf could not put one where there was none
class ScoringBackend:
    """What runs a model that is only scored with; `name` is its name in a config.

    A step depends on the code of the backend that it is given, and of no other. It is part of a
    step's key: two backends agree to a rounding, and not to the last bit.
    """

    name: ClassVar[str]

    def open_model(self, folder: Path, config: "ReferenceConfig", ranks: "Ranks") -> "OpenModel":
        """The model of a folder, ready to be asked for logps."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReferenceConfig:
    """How log-probabilities are computed. All settings of a reference but `groups_per_shard` must
    be those that the policy is trained with.

    Args:
        dtype: the dtype of weights and activations.
        tokens_per_forward: the most tokens of one forward; examples are packed into so many, and a
            longer one is a forward by itself. More takes more memory.
        attention: how examples are laid out for a forward: packed without padding, padded, or
            whichever is right.
        groups_per_shard: how many examples are kept at once, if the computation is interrupted.
        backend: what computes; without one, transformers' model on torch.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 1024
    attention: Attention = Attention.auto
    groups_per_shard: int = detail_field(256)
    backend: ScoringBackend | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "tokens_per_forward", "groups_per_shard")
