"""Requests of OpenAI's interface, as far as this server knows them.

A field that would change the answer, and that the server does not know, is refused by name: an
answer without it would be wrong in silence. Types are checked strictly.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from steps.data.rows.rows import EXTRA_KEYS, Message
from steps.serving.replies import Drawing

_COMPLETION_TOKENS = 16
"""The most tokens of a plain completion if a request names no number, as at OpenAI."""
_NO_LIMIT = 2**31


def _unless(*without_effect: Any) -> AfterValidator:
    """Refuses a field, unless its value is empty or one that asks for nothing."""

    def require(value: Any) -> Any:
        if value and value not in without_effect:
            raise ValueError(UNSUPPORTED)
        return value

    return AfterValidator(require)


def _require_unset(value: Any) -> Any:
    if value is not None:
        raise ValueError(UNSUPPORTED)
    return value


UNSUPPORTED = "this server does not support it; leave it out"
Unsupported = Annotated[Any, _unless()]
NotEvenZero = Annotated[Any, AfterValidator(_require_unset)]
Called = Annotated[Any, _unless("none", "auto")]
Format = Annotated[Any, _unless({"type": "text"})]
Modalities = Annotated[Any, _unless(["text"])]
BestOf = Annotated[Any, _unless(1)]
Ignored = Any
"""A field without an effect on the answer."""
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""A text stands for the list of it."""
Parted = BeforeValidator(lambda value: [_Text(text=value)] if isinstance(value, str) else value)


class _Known(BaseModel):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Text(_Known):
    type: Literal["text"] = "text"
    text: str


class _Function(_Known):
    name: str
    arguments: str


class _Call(_Known):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(_Known):
    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class _Turn(_Known):
    """A message; clients send answers back, with all fields that those have."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[_Text], Parted] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    annotations: Ignored = None
    refusal: Ignored = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="after")
    def _has_content(self) -> "_Turn":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of the {self.role} needs content")
        return self

    def message(self) -> Message:
        text = "".join(part.text for part in self.content or [])
        role = "system" if self.role == "developer" else self.role
        extra = self.model_dump(include=set(EXTRA_KEYS))
        given = {key: value for key, value in extra.items() if value}
        return Message(role=role, content=text, **given)  # type: ignore[typeddict-item]


class Asked(_Known):
    """What both kinds of requests have."""

    continues: ClassVar[bool] = False
    """Whether an answer continues the text of its prompt."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[list[Text], Field(max_length=4), Listed] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: Ignored = None
    logprobs: Unsupported = None
    logit_bias: Unsupported = None
    frequency_penalty: Unsupported = None
    presence_penalty: Unsupported = None

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
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    audio: Unsupported = None
    function_call: Called = None
    functions: Unsupported = None
    modalities: Modalities = None
    response_format: Format = None
    tool_choice: Called = None
    tools: Unsupported = None
    top_logprobs: Unsupported = None

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or _NO_LIMIT


class CompletionAsked(Asked):
    """A request for continuations of texts."""

    continues = True

    prompt: Annotated[list[str], Field(min_length=1, max_length=128), Listed]
    best_of: BestOf = None
    echo: Unsupported = None
    logprobs: NotEvenZero = None  # 0 asks for the logprobs of the tokens that are drawn
    suffix: Unsupported = None
