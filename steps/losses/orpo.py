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
    odds are p/(1 − p) (equation 4). With the log odds ratio z of the two responses (equations 6
    and 7), the loss is

        L = nll_weight · NLL(w) − β log σ(z),    z = log(p_w/(1 − p_w)) − log(p_l/(1 − p_l))
        dz/d log p_w = 1/(1 − p_w),    d(−log σ(z))/dz = −σ(−z)

    β is the paper's λ. It is a factor outside the logistic, so with β = 0 only the likelihood term
    remains. From a pretrained model, this loss combines SFT and preference training in one run.

    The odds would be infinite if every token had probability 1, so log p is clamped to −1e-12.

    TRL: `ORPOTrainer`. Its likelihood term includes the prompt; here only scored tokens count, as
    in the paper.
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
    """log(p/(1 − p)) from log p. −expm1(log p) computes 1 − p accurately if p is nearly 1."""
    logps = logps.clamp(max=-1e-12)
    return logps - (-logps.expm1()).log()
