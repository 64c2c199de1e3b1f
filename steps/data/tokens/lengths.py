"""How long a sequence may be, and what is done with one that is longer.

Two limits, in tokens: on the prompt, and on prompt and response together. Each has a policy of its
own. A prompt is shared by the responses of a pair, so it is cut once for both; a response is cut
by itself. No policy ever leaves a response without a trained token, or a prompt without a token:
such a row is dropped, for its reason.

A prompt that is cut at its start loses BOS and system prompt; one cut at its end loses the header
after which the model is to write. A response cut at its end loses its end-of-turn token, so that
nothing teaches the model to stop there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from steps.data.rows.reasons import MalformedRow


class TooLong(StrEnum):
    """What to do with what is over its limit."""

    keep_start = "keep_start"
    keep_end = "keep_end"
    drop = "drop"
    error = "error"


class RowTooLong(ValueError):
    """A row is over a limit whose policy is `error`."""


@dataclass(frozen=True)
class LengthLimits:
    """Limits in tokens, and policies.

    Args:
        max_length: of the prompt and any one response together.
        max_prompt_length: of the prompt alone.
        prompt_too_long: for prompts over `max_prompt_length`.
        too_long: for what is then still over `max_length`: `keep_start` cuts the response at its
            end, `keep_end` cuts the prompt at its start.
    """

    max_length: int = 1024
    max_prompt_length: int = 512
    prompt_too_long: TooLong = field(default=TooLong.drop, metadata={"before": TooLong.drop})
    too_long: TooLong = field(default=TooLong.keep_start, metadata={"before": TooLong.keep_start})

    def __post_init__(self) -> None:
        if self.max_length < 1 or self.max_prompt_length < 1:
            raise ValueError(f"length limits must be at least 1 token: {self}")


@dataclass(frozen=True)
class Fit:
    """What is kept: tokens `start` to `stop` of the prompt, and `room` tokens of each response."""

    start: int
    stop: int
    room: int


def fit(prompt: int, responses: Sequence[int], limits: LengthLimits) -> Fit:
    """How much is kept of a prompt and its responses of so many tokens.

    Raises:
        MalformedRow: the row is to be dropped.
        RowTooLong: a limit's policy is `error`.
    """
    start, stop = 0, prompt
    if prompt > limits.max_prompt_length:
        what = f"{prompt} tokens, over max_prompt_length={limits.max_prompt_length}"
        match limits.prompt_too_long:
            case TooLong.drop:
                raise MalformedRow("prompt too long", what)
            case TooLong.error:
                raise RowTooLong(f"the prompt has {what}")
            case TooLong.keep_start:
                stop = limits.max_prompt_length
            case TooLong.keep_end:
                start = prompt - limits.max_prompt_length
    over = (stop - start) + max(responses) - limits.max_length
    if over > 0:
        what = f"{over + limits.max_length} tokens, over max_length={limits.max_length}"
        match limits.too_long:
            case TooLong.drop:
                raise MalformedRow("too long", what)
            case TooLong.error:
                raise RowTooLong(f"prompt and response have {what}")
            case TooLong.keep_end:
                start += over
    room = limits.max_length - (stop - start)
    if stop <= start or room <= 0:
        raise MalformedRow(
            "no room for the response",
            f"a prompt of {prompt} tokens and a response of {max(responses)} cannot both keep some "
            f"of theirs within max_length={limits.max_length} (too_long={limits.too_long})",
        )
    return Fit(start, stop, room)
