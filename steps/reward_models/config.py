"""What a reward model's training and scoring are told: frozen data, importable without torch."""

from dataclasses import dataclass, field

from steps.reward_models.bradley_terry import BradleyTerry
from steps.scoring.config import ReferenceConfig
from steps.training.config import TrainConfig


@dataclass(frozen=True)
class RewardConfig(TrainConfig):
    """A run over pairs that ends in a reward model.

    Args:
        pad_token: the token that the saved folder pads with; by default one that no response ends
            with, the tokenizer's own if it is such a one.
    """

    loss: BradleyTerry = field(default_factory=BradleyTerry)
    pad_token: str | None = None


@dataclass(frozen=True)
class RewardScoring(ReferenceConfig):
    """How a reward model scores: its dtype, how many tokens a forward reads, how it attends.

    A shard is what is kept when scoring is interrupted.
    """
