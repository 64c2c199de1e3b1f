"""Whom ``synthesize`` asks for completions, and what they may cost; importable without torch."""

import math
from dataclasses import dataclass

from steps.shared.checks import require, require_count
from steps.shared.execution_detail import detail_field

_MILLION = 1_000_000


@dataclass(frozen=True)
class SynthesisConfig:
    """Who is asked for completions, and how.

    No request starts that could pass the budget, where a prompt counts as many tokens as its JSON
    has bytes until its reply says how many it had. Tries that fail count nothing: their price is
    not known.

    Args:
        model: the model's name at the address.
        temperature, top_p: as the address understands them.
        max_tokens: the most tokens of a completion; a longer one is cut.
        num_completions: how many completions each prompt gets, in a request each.
        seed: sent with each request, another number for each; null: none is sent. Many addresses
            ignore it.
        most_without: the largest share of prompts that may go without a completion. They are left
            out. A larger share is an error.
        address: for example https://api.openai.com/v1; ``/chat/completions`` is added.
        key_variable: the environment variable with the API key, if one is needed. The key itself is
            never stored.
        timeout: the seconds without a byte after which a try has failed.
        tries: the most tries of a request.
        parallel: the most requests at a time.
        most_tokens: the budget in tokens of prompts and completions; null: none.
        most_cost: the budget in money, by the two prices; null: none.
        prompt_price, completion_price: of a million tokens.
    """

    model: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    num_completions: int = 1
    seed: int | None = None
    most_without: float = 0.05
    address: str = detail_field("http://127.0.0.1:8000/v1")
    key_variable: str = detail_field("OPENAI_API_KEY")
    timeout: float = detail_field(600.0)
    tries: int = detail_field(5)
    parallel: int = detail_field(8)
    most_tokens: int | None = detail_field(None)
    most_cost: float | None = detail_field(None)
    prompt_price: float = detail_field(0.0)
    completion_price: float = detail_field(0.0)

    def __post_init__(self) -> None:
        require(bool(self.model), "model must name the model, as its address calls it", self.model)
        require(0 <= self.temperature < math.inf, "temperature must be 0 or more", self.temperature)
        require(0 < self.top_p <= 1, "top_p must be above 0 and at most 1", self.top_p)
        require(0 < self.timeout < math.inf, "timeout must be above 0", self.timeout)
        require(0 <= self.most_without <= 1, "most_without must be in [0, 1]", self.most_without)
        require_count(self, "max_tokens", "num_completions", "tries", "parallel")
        require_count(self, "most_tokens", or_null=True)
        prices = (self.prompt_price, self.completion_price)
        require(all(0 <= p < math.inf for p in prices), "prices must not be negative", prices)
        if (most := self.most_cost) is not None:
            what = "most_cost must be above 0, and needs prompt_price or completion_price"
            require(most > 0 and self.is_priced, what, most)

    def cost(self, prompt: int, completion: int) -> float:
        """The price of so many tokens."""
        return (prompt * self.prompt_price + completion * self.completion_price) / _MILLION

    @property
    def is_priced(self) -> bool:
        """Whether the price of a token is known."""
        return bool(self.prompt_price or self.completion_price)

    def allows(self, prompt: int, completion: int) -> bool:
        """Whether so many tokens are within the budget."""
        tokens, money = self.most_tokens, self.most_cost
        within = tokens is None or prompt + completion <= tokens
        return within and (money is None or self.cost(prompt, completion) <= money)
