"""Settings of sampling: a frozen dataclass, importable without torch."""

import math
from dataclasses import dataclass

from steps.shared.checks import require_count
from steps.shared.execution_detail import added_field, detail_field


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled.

    The random numbers of a completion depend only on `seed`, the row's id and the completion's
    number. So `slots` and `tokens_per_forward` do not change the result; larger values take more
    memory and less time.

    Args:
        max_new_tokens: the most tokens of a completion; a longer one is cut.
        temperature: the sampling temperature; 0 is greedy decoding.
        num_completions: how many completions each prompt gets.
        seed: the seed of the random numbers.
        slots: the most completions that are generated in parallel.
        tokens_per_forward: the most prompt tokens of one forward.
        max_prompt_length: the most tokens of a prompt; a longer one is left out, and told; null: no
            limit.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    num_completions: int = 1
    seed: int = 0
    slots: int = detail_field(64)
    tokens_per_forward: int = detail_field(2048)
    max_prompt_length: int | None = added_field(None, before=None)

    def __post_init__(self) -> None:
        require_count(self, "max_new_tokens", "num_completions", "slots", "tokens_per_forward")
        require_count(self, "max_prompt_length", or_null=True)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or above, got {self.temperature}")
        if self.temperature == 0 and self.num_completions > 1:
            raise ValueError(
                f"num_completions is {self.num_completions}, but at temperature 0 all completions "
                "of a prompt are the same one; raise the temperature or ask for one"
            )
