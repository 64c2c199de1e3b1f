"""Apply the limits of sequence lengths, with the policies for longer sequences.

The responses of a pair share the prompt, so it is cut once for both; each response is cut
separately. If a policy would leave a response without a trained token, or a prompt without a token,
the row is dropped with a reason.

A prompt that is cut at its start loses BOS and system prompt; one that is cut at its end loses the
header after which the model writes. A response that is cut at its end loses its end-of-turn token,
so the model does not learn to stop there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from steps.data.rows.reasons import MalformedRow
from steps.data.tokens.config import LengthLimits, TooLong


class RowTooLong(ValueError):
    """A row exceeds a limit whose policy is `error`."""


@dataclass(frozen=True)
class Fit:
    """The kept tokens: `start` to `stop` of the prompt, and the first `room` of each response."""

    start: int
    stop: int
    room: int


def fit(prompt: int, responses: Sequence[int], limits: LengthLimits) -> Fit:
    """Apply the limits to a prompt of `prompt` tokens and responses of `responses` tokens.

    Raises:
        MalformedRow: the row must be dropped.
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
