"""Requests of OpenAI's interface, as far as this server knows them.

A field that would change the answer, and that the server does not know, is refused by name: an
answer without it would be wrong in silence. Types are checked strictly.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from steps.data.rows.rows import EXTRA_KEYS, Message
from steps.generation.config import SamplingConfig

_WITHOUT_EFFECT = {
    *("annotations", "include_obfuscation", "metadata", "parallel_tool_calls", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "refusal", "safety_identifier"),
    *("service_tier", "store", "user"),
}
"""Fields that change no answer of this server, whatever their values."""
_ASKING_FOR_NOTHING: list[tuple[str, Any]] = [
    *(("best_of", 1), ("modalities", ["text"]), ("response_format", {"type": "text"})),
    *(("tool_choice", "none"), ("tool_choice", "auto")),
]

Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""A text stands for the list of it."""
Prompt = str | Annotated[list[int], Field(min_length=1)]
Top = Annotated[int, Field(ge=0, le=20)]


class _Known(BaseModel):
    """Refuses fields that it does not know, unless they ask for nothing, as empty ones do."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _refuse_others(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value and name not in _WITHOUT_EFFECT and (name, value) not in _ASKING_FOR_NOTHING:
                raise ValueError(f"{name}: this server does not support it; leave it out")
        return self


class _Part(_Known):
    type: Literal["text"] = "text"
    text: str


class _Turn(_Known):
    """A message; clients send answers back, with all fields that those have."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def message(self) -> Message:
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        role = "system" if self.role == "developer" else self.role
        extra = {key: value for key in EXTRA_KEYS if (value := getattr(self, key, None))}
        return Message(role=role, content=text, **extra)  # type: ignore[typeddict-item]


class Asked(_Known):
    """What both kinds of requests have; top_k, min_p and token ids are vLLM's additions."""

    most: ClassVar[int]
    """How many tokens an answer has at most, if the request does not say."""

    model: str
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[list[Text], Listed] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def most_tokens(self) -> int:
        return self.most if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """How many tokens to name in each place with their log-probabilities; None for neither."""
        raise NotImplementedError

    def drawing(self, seed: int) -> SamplingConfig:
        """How an answer is sampled; temperature and top_p are 1 by default, as at OpenAI. As at
        vLLM, a top_k of -1 leaves out no token."""
        heat = 1.0 if self.temperature is None else self.temperature
        if heat == 0 or self.top_p == 0:  # only the likeliest token is left
            return SamplingConfig(self.most_tokens)
        cuts = {"top_p": self.top_p or 1.0, "top_k": max(self.top_k or 0, 0)}
        return SamplingConfig(self.most_tokens, heat, 1, seed, min_p=self.min_p or 0.0, **cuts)


class ChatAsked(Asked):
    """A request for the next message of a conversation."""

    most = 2**31

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    messages: Annotated[list[_Turn], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or super().most_tokens

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionAsked(Asked):
    """A request for continuations of texts."""

    most = 16  # as at OpenAI

    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=128)]
    echo: bool | None = None
    logprobs: Top | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else self.prompt  # type: ignore[return-value,list-item]

    @property
    def likeliest(self) -> int | None:
        return self.logprobs
