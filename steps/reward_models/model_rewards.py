"""Settings for rewards from a reward model, importable without torch."""

import math
from dataclasses import dataclass, field

from steps.data.tokens.config import TokenizeConfig
from steps.reward_models.config import RewardScoring
from steps.shared.checks import require
from steps.shared.execution_detail import added_field


@dataclass(frozen=True)
class ModelRewards:
    """How a reward model rewards the completions of a policy.

    Args:
        scoring: how it scores them.
        tokenize: how texts become its tokens. It should equal the setting for the pairs that the
            reward model was trained on.
        of_cut: the reward of a completion that was cut at ``max_new_tokens``. Without one (null) it
            has no reward and is left out, since a reward model knows whole answers only.
        name: the name of the reward. Rewards of different names add up, as those of several reward
            models; one of the same name is replaced.
    """

    scoring: RewardScoring = field(default_factory=RewardScoring)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    of_cut: float | None = None
    name: str = added_field("reward_model", before="reward_model")

    def __post_init__(self) -> None:
        require(bool(self.name), "name must be a text", self.name)
        is_number = self.of_cut is None or math.isfinite(self.of_cut)
        require(is_number, "of_cut must be a number or null", self.of_cut)
