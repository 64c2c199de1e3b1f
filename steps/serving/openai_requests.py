"""Requests of OpenAI's interface, as far as this server knows them.

A field that would change the answer, and that the server does not know, is refused by name: an
answer without it would be wrong in silence. Types are checked strictly.
"""

from collections.abc import Sequence
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
_MOST_PROMPTS = 128
_NO_LIMIT = 2**31


def _unless(*without_effect: Any) -> AfterValidator:
    """Refuses a field, unless its value is empty or one that asks for nothing."""

    def require(value: Any) -> Any:
        if value and value not in without_effect:
            raise ValueError(UNSUPPORTED)
        return value

    return AfterValidator(require)


def _prompts(value: Any) -> Any:
    """A text, or a list of token ids, stands for the list of it."""
    prompts = [value] if isinstance(value, str) or _is_tokens(value) else value
    if not isinstance(prompts, list) or not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise ValueError(f"give 1 to {_MOST_PROMPTS} prompts")
    if not all(isinstance(prompt, str) or _is_tokens(prompt) for prompt in prompts):
        raise ValueError("a prompt is a text or a list of token ids")
    return prompts


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value) and bool(value)


UNSUPPORTED = "this server does not support it; leave it out"
Unsupported = Annotated[Any, _unless()]
Called = Annotated[Any, _unless("none", "auto")]
Format = Annotated[Any, _unless({"type": "text"})]
Modalities = Annotated[Any, _unless(["text"])]
BestOf = Annotated[Any, _unless(1)]
Ignored = Any
"""A field without an effect on the answer."""
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Prompt = str | list[int]
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
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[list[Text], Listed] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: Ignored = None
    logit_bias: Unsupported = None
    frequency_penalty: Unsupported = None
    presence_penalty: Unsupported = None

    @property
    def most_tokens(self) -> int:
        return _COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def echoed(self) -> Sequence[Prompt]:
        """The prompts that answers begin with; empty if they do not."""
        return ()

    @property
    def likeliest(self) -> int | None:
        """How many tokens to name in each place with their log-probabilities; None for neither."""
        return None

    def drawing(self, seed: int) -> Drawing:
        """How an answer is sampled; temperature and top_p are 1 by default, as at OpenAI. top_k and
        min_p are vLLM's, where a top_k of -1 leaves out no token."""
        top_p = 1.0 if self.top_p is None else self.top_p
        temperature = 1.0 if self.temperature is None else self.temperature
        if top_p == 0:  # only the likeliest token is left
            return Drawing(self.most_tokens, 0.0, seed=seed)
        top_k, min_p = max(self.top_k or 0, 0), self.min_p or 0.0
        return Drawing(self.most_tokens, temperature, top_p, seed, top_k, min_p)


class ChatAsked(Asked):
    """A request for the next message of a conversation."""

    max_tokens: Count | None = None
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
    logprobs: Unsupported = None
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

    prompt: Annotated[list[Prompt], BeforeValidator(_prompts)]
    best_of: BestOf = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _is_whole(self) -> "CompletionAsked":
        if self.stream and self.logprobs is not None:
            raise ValueError("logprobs come with whole answers: leave out stream")
        return self

    @property
    def echoed(self) -> Sequence[Prompt]:
        return self.prompt if self.echo else ()

    @property
    def likeliest(self) -> int | None:
        return self.logprobs
