"""Settings of reward models: frozen dataclasses, importable without torch."""

from dataclasses import dataclass, field

from steps.reward_models.bradley_terry import BradleyTerry
from steps.scoring.config import ReferenceConfig
from steps.shared.checks import require
from steps.training.config import TrainConfig


@dataclass(frozen=True)
class RewardConfig(TrainConfig):
    """The training of a reward model on pairs.

    Args:
        pad_token: the padding token of the saved model. It must not end a response; the default is
            such a token, if possible the tokenizer's own padding token.
    """

    loss: BradleyTerry = field(default_factory=BradleyTerry)
    pad_token: str | None = None


@dataclass(frozen=True)
class RewardScoring(ReferenceConfig):
    """How a reward model scores: dtype, tokens per forward and attention.

    A shard is the unit of scores that survives an interruption.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        what = "reward models score with backend=null (torch)"
        require(self.backend is None, what, self.backend)
