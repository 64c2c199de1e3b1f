"""What a sampler is told: frozen data, importable without torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are drawn. A temperature of 0 is greedy decoding.

    `batch_size` counts sequences generated side by side; it bears on the result, because the random
    numbers of a batch are drawn together.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    num_completions: int = 1
    batch_size: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_completions", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or above, got {self.temperature}")
        if self.temperature == 0 and self.num_completions > 1:
            raise ValueError(
                f"num_completions is {self.num_completions}, but at temperature 0 all completions "
                "of a prompt are the same one; raise the temperature or ask for one"
            )
