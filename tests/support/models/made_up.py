"""Made-up completions with known log-probabilities, for the tests of the online losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = ((3, 5, 2), (4, 1, 6))
"""Of two prompts with three completions each: how many tokens these have."""


@dataclass(frozen=True)
class MadeUp:
    """Log-probabilities of all tokens, float64 [S], and advantages, float64 [2, 3]."""

    policy: Tensor
    old: Tensor
    reference: Tensor
    sampler: Tensor
    advantages: Tensor
    lengths: Tensor

    @property
    def of_tokens(self) -> Tensor:
        """The advantage of each token's completion, [S]."""
        return self.advantages.flatten().repeat_interleave(self.lengths.flatten())


def made_up(seed: int = 3) -> MadeUp:
    """A policy that has moved far enough from `old` for clipping to tell, on either side."""
    lengths = torch.tensor(LENGTHS)
    size = int(lengths.sum())
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    old = -3 * torch.rand(size, generator=generator, dtype=torch.float64) - 0.1
    advantages = torch.randn(lengths.shape, generator=generator, dtype=torch.float64)
    return MadeUp(old + noise(0.3), old, old + noise(0.5), old + noise(0.4), advantages, lengths)
