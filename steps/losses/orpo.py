"""ORPO (Hong, Lee and Thorne 2024, https://arxiv.org/abs/2403.07691)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import LikelihoodLoss, PairLogps, PairLosses, logistic

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Orpo(LikelihoodLoss):
    """Fine-tuning on the chosen response, with a penalty on the odds of the rejected one.

    Let p = exp(log π(y|x) / |y|) be the geometric mean of a response's token probabilities. Its
    odds are p/(1 − p) (equation 4), and with the log odds ratio z of the two responses
    (equations 6 and 7)

        L = nll_weight · NLL(w) − β log σ(z),    z = log(p_w/(1 − p_w)) − log(p_l/(1 − p_l))
        dz/d log p_w = 1/(1 − p_w),    d(−log σ(z))/dz = −σ(−z)

    β is the paper's λ. It does not lie within the logistic, so as it vanishes only the likelihood
    remains. Starting from a pretrained model, this is SFT and preference training in one.

    Odds are infinite where every token is certain, so log p is held below −1e-12.

    TRL: `ORPOTrainer`. Its likelihood term reads the prompt as well; here only scored tokens count,
    as in the paper.
    """

    name: ClassVar[str] = "orpo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen / logps.chosen_tokens
        rejected = logps.rejected / logps.rejected_tokens
        log_odds = _log_odds(chosen) - _log_odds(rejected)
        penalty = logistic(log_odds)
        metrics = {"log_odds_chosen": log_odds, "log_odds_ratio": -penalty}
        return PairLosses(self.beta * penalty, self.beta * chosen, self.beta * rejected, metrics)


def _log_odds(logps: "Tensor") -> "Tensor":
    """log(p/(1 − p)) of log p; 1 − p, as −expm1(log p), keeps its digits where p is nearly 1."""
    logps = logps.clamp(max=-1e-12)
    return logps - (-logps.expm1()).log()
