"""Requests of OpenAI's interface, as far as this server knows them.

A field that would change the answer, and that the server does not know, is refused by name: an
answer without it would be wrong in silence. Types are checked strictly.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from steps.data.rows.rows import EXTRA_KEYS, Message
from steps.serving.replies import Drawing

_WITHOUT_EFFECT = ("none", "auto", {"type": "text"})
"""What clients write into fields that are not supported, to ask for nothing."""
_COMPLETION_TOKENS = 16
"""The most tokens of a plain completion if a request names no number, as at OpenAI."""
_NO_LIMIT = 2**31


def _require_unset(value: Any) -> Any:
    if value and value not in _WITHOUT_EFFECT:
        raise ValueError("this server does not support it; leave it out")
    return value


Unsupported = Annotated[Any, AfterValidator(_require_unset)]
Count = Annotated[int, Field(ge=1)]
Stop = Annotated[str, Field(min_length=1)]


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Turn(BaseModel):
    """A message; clients send fields of answers back, of which those without a use are left out."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> "_Turn":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of the {self.role} needs content")
        return self

    def message(self) -> Message:
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        role = "system" if self.role == "developer" else self.role
        extra = self.model_dump(include=set(EXTRA_KEYS))
        given = {key: value for key, value in extra.items() if value}
        return Message(role=role, content=text, **given)  # type: ignore[typeddict-item]


class Asked(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool] | None = None
    user: Any = None
    logprobs: Unsupported = None
    logit_bias: Unsupported = None
    frequency_penalty: Unsupported = None
    presence_penalty: Unsupported = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def most_tokens(self) -> int:
        return self.max_tokens or _COMPLETION_TOKENS

    def drawing(self, seed: int) -> Drawing:
        """How an answer is sampled; temperature and top_p are 1 by default, as at OpenAI."""
        top_p = 1.0 if self.top_p is None else self.top_p
        temperature = 1.0 if self.temperature is None else self.temperature
        if top_p == 0:  # only the likeliest token is left
            return Drawing(self.most_tokens, 0.0, seed=seed)
        return Drawing(self.most_tokens, temperature, top_p, seed)


class ChatAsked(Asked):
    """A request for the next message of a conversation."""

    messages: Annotated[list[_Turn], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    service_tier: Any = None
    store: Any = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    response_format: Unsupported = None
    tool_choice: Unsupported = None
    tools: Unsupported = None
    top_logprobs: Unsupported = None

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or _NO_LIMIT


class CompletionAsked(Asked):
    """A request for continuations of texts."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=128)]
    echo: Unsupported = None
    suffix: Unsupported = None

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt
