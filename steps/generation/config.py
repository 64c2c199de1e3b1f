"""Settings of sampling: a frozen dataclass, importable without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steps.shared.checks import require, require_count
from steps.shared.execution_detail import added_field, detail_field

WHOLE = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""The settings with which completions come from the model's own distribution."""


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled.

    The random numbers of a completion depend only on `seed`, the row's id and the completion's
    number. So `slots` and `tokens_per_forward` do not change the result; larger values take more
    memory and less time.

    Args:
        max_new_tokens: the most tokens of a completion; a longer one is cut.
        temperature: the sampling temperature; 0 is greedy decoding, without top_p, top_k and min_p.
        num_completions: how many completions each prompt gets.
        seed: the seed of the random numbers.
        slots: the most completions that are generated in parallel.
        tokens_per_forward: the most prompt tokens of one forward.
        max_prompt_length: the most tokens of a prompt; a longer one is left out, and told; null: no
            limit.
        top_p: nucleus sampling (Holtzman et al. 2020): draw from the fewest likeliest tokens whose
            probabilities add up to this share; 1: from all.
        top_k: draw from so many of the likeliest tokens, and those as likely as the last of them;
            0: from all.
        min_p: draw from tokens whose probability is at least this share of the largest one (Nguyen
            et al. 2024); 0: from all.

    The temperature comes first, then top_k, top_p of what top_k leaves, and min_p, as in
    transformers.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    num_completions: int = 1
    seed: int = 0
    slots: int = detail_field(64)
    tokens_per_forward: int = detail_field(2048)
    max_prompt_length: int | None = added_field(None, before=None)
    top_p: float = added_field(1.0, before=1.0)
    top_k: int = added_field(0, before=0)
    min_p: float = added_field(0.0, before=0.0)

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
        require_truncation(self)
        for name in ("top_p", "top_k", "min_p") if self.temperature == 0 else ():
            # The temperature is 0 by default: whoever sets one of these would get greedy decoding.
            if (value := getattr(self, name)) != WHOLE[name]:
                raise ValueError(
                    f"{name} is {value}, but at temperature 0 the likeliest token is taken; raise "
                    f"the temperature or leave {name} out"
                )


def require_whole(told: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless completions were drawn from the model's own distribution; otherwise a
    ratio of probabilities would compare two different distributions.

    Args:
        told: settings as in `WHOLE`; one that is missing has the value that it has there.
        where: says these settings.
    """
    other = {name: told[name] for name in WHOLE if told.get(name, WHOLE[name]) != WHOLE[name]}
    if other:
        given = ", ".join(f"{name}={value}" for name, value in other.items())
        needed = ", ".join(f"{name}={WHOLE[name]:g}" for name in other)
        raise ValueError(
            f"{where} says {given}: the policy was not drawn from as it is, so tokens cannot be "
            f"weighed by how likely it finds them; sample with {needed}, or train with a method "
            "that imitates or prefers"
        )


def require_truncation(config: Any) -> None:
    """Raise ValueError unless `top_p`, `top_k` and `min_p` of a config are possible."""
    top_p, top_k, min_p = config.top_p, config.top_k, config.min_p
    require(0 < top_p <= 1, "top_p must be above 0 and at most 1; 1 leaves out no token", top_p)
    is_count = isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 0
    require(is_count, "top_k must be a whole number; 0 leaves out no token", top_k)
    require(0 <= min_p <= 1, "min_p must be from 0 to 1; 0 leaves out no token", min_p)
