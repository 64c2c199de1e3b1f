"""How a teacher's distribution is computed and kept; importable without torch."""

from dataclasses import dataclass
from enum import StrEnum

from steps.scoring.config import ReferenceConfig
from steps.shared.checks import require, require_count, set_choice


class Precision(StrEnum):
    """The dtype in which log-probabilities of a distribution are kept.

    float16: a kept log p is off by at most 2^-11 |log p|. So p is off by at most |p log p| 2^-11,
        which is below 2e-4 for every p.
    float32: as the model computed it, twice as large.
    """

    float16 = "float16"
    float32 = "float32"


@dataclass(frozen=True)
class TeacherConfig(ReferenceConfig):
    """How a teacher's distribution is computed and kept.

    A token takes 6 · top_k + 8 bytes before compression. Training holds them in memory.

    Args:
        top_k: how many of the likeliest tokens are kept at each place. The others are one bucket,
            whose mass is kept. With the size of the vocabulary or more, everything is kept.
        precision: the dtype in which log-probabilities are kept.
    """

    top_k: int = 64
    precision: Precision = Precision.float16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count(self, "top_k")
        set_choice(self, "precision", Precision)
        require(self.backend is None, "a teacher needs backend=null (torch)", self.backend)
