"""The loss of reward models over pairs (Bradley and Terry 1952; Ouyang et al. 2022, equation 1)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from steps.losses.base import Loss, Shares, logistic
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BradleyTerry(Loss):
    """−log σ(r_w − r_l − m) + c (r_w + r_l)², with r the scores of the two responses.

    In the model of Bradley and Terry, the better response is preferred with probability
    σ(r_w − r_l). With δ = r_w − r_l − m the gradients are

        dL/dr_w = −σ(−δ) + 2c (r_w + r_l)        dL/dr_l = σ(−δ) + 2c (r_w + r_l)

    **Margin** (Touvron et al. 2023, Llama 2, equation 2): m is `margin_per_score` times the
    difference between the ratings of the chosen and the rejected response. With 0, ratings are not
    used.

    **Centering** (Eisenstein et al. 2023, https://arxiv.org/abs/2312.09244, equation 2): pairs
    determine only differences of scores; c = `center_rewards_coefficient` keeps their mean near 0.

    A model with a head of zeros has a loss of ln 2 without a margin.

    TRL: `RewardTrainer`, with its `center_rewards_coefficient`, and m in a column `margin`.

    Args:
        center_rewards_coefficient: the weight c of the term that keeps the mean of scores near 0.
        margin_per_score: the margin for each point by which the chosen response is rated higher.
    """

    name: ClassVar[str] = "bradley_terry"

    center_rewards_coefficient: float = 0.0
    margin_per_score: float = 0.0

    def __post_init__(self) -> None:
        for field in ("center_rewards_coefficient", "margin_per_score"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"{field} must be finite and not below 0", value)

    def margin(self, record: Mapping[str, Any]) -> float:
        """The margin m of a pair, from its `score_chosen` and `score_rejected`.

        Raises:
            ValueError: `margin_per_score` is set, and a score is missing or no finite number; the
                message names the row.
        """
        if not self.margin_per_score:
            return 0.0
        rated = [record.get(f"score_{side}") for side in ("chosen", "rejected")]
        if None in rated:
            raise ValueError(
                f"row {record.get('row')!r} has no score_chosen or no score_rejected, and "
                f"margin_per_score={self.margin_per_score} asks for both; rate every pair, or set "
                "margin_per_score=0"
            )
        for side, score in zip(("chosen", "rejected"), rated, strict=True):
            if not isinstance(score, int | float) or not math.isfinite(score):
                fault = f"score_{side} is {score!r}; it must be a finite number"
                raise ValueError(f"row {record.get('row')!r}: {fault}")
        chosen, rejected = map(float, rated)  # pyright: ignore[reportArgumentType]
        return self.margin_per_score * (chosen - rejected)

    def shares(
        self, chosen: "Tensor", rejected: "Tensor", margins: "Tensor", weights: "Tensor", pairs: int
    ) -> Shares:
        """The shares of n pairs in the loss and metrics of a batch of `pairs`.

        Args:
            chosen, rejected: scores, float64 [n], with gradients.
            margins: [n].
            weights: [n]; a factor of each pair's loss. Metrics are not weighted.
        """
        losses = logistic(chosen - rejected - margins)
        c, r = chosen.detach(), rejected.detach()
        metrics = {
            "rewards/chosen": c,
            "rewards/rejected": r,
            "rewards/margins": c - r,
            "rewards/accuracies": (c > r).to(c.dtype),
        }
        if self.center_rewards_coefficient:
            centering = self.center_rewards_coefficient * (chosen + rejected) ** 2
            metrics |= {"loss/preference": losses.detach(), "loss/centering": centering.detach()}
            losses = losses + centering
        means = {name: values / pairs for name, values in metrics.items()}
        return Shares(weights * losses / pairs, means)
