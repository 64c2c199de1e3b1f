"""DFT (Wu et al. 2025, https://arxiv.org/abs/2508.05629): supervised fine-tuning in which unlikely
tokens weigh little."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import SftLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dft(SftLoss):
    """−1/T Σ p log p, p = π(token | tokens before it), where the factor p has no gradient.

    The gradient of −log p is that of p divided by p, so the likelihood's gradient is largest where
    the model finds a token unlikely. The factor p takes this away: by log p the gradient is −p / T.
    A token that the model finds impossible is not learned. The loss falls while tokens become
    unlikely, too, so `eval_loss` is no measure of the likelihood.

    TRL: `SFTTrainer` with `loss_type="dft"`.
    """

    name: ClassVar[str] = "dft"

    def per_token(self, logps: "Tensor") -> "Tensor":
        return -logps.detach().exp() * logps
