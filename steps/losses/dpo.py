"""Direct preference optimisation (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import PairLogps, PairLosses, SmoothedLoss, logistic


@dataclass(frozen=True)
class Dpo(SmoothedLoss):
    """−log σ(m), where m = r_w − r_l is the difference of the implicit rewards.

    The policy that maximises a reward r under a KL penalty of strength β is
    π(y|x) ∝ π_ref(y|x) exp(r(x, y) / β). Solved for the reward, this is
    r = β log(π(y|x) / π_ref(y|x)) + β log Z(x) (equation 5). Z depends only on the prompt and
    cancels in a pair. In the model of Bradley and Terry, the better response wins with probability
    σ(r_w − r_l); its negative logarithm is equation 7:

        L = −log σ(m),    m = β (log π(w)/π_ref(w) − log π(l)/π_ref(l)),    dL/dm = −σ(−m)

    With label smoothing ε, the share of labels that is assumed to be wrong, it is the conservative
    DPO of Mitchell's note (https://ericmitchell.ai/cdpo.pdf, equation 3),

        L = −(1 − ε) log σ(m) − ε log σ(−m),    dL/dm = σ(m) − (1 − ε),

    whose minimum is at a finite margin, log((1 − ε)/ε).

    A policy that equals its reference has m = 0 and L = ln 2, for all β and ε.

    TRL: `loss_type="sigmoid"`, which ignores `label_smoothing` since 1.0.
    """

    name: ClassVar[str] = "dpo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses(logistic(chosen - rejected, self.label_smoothing), chosen, rejected)
