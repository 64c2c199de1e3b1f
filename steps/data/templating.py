"""Conversations become token ids, with the line between prompt and response derived, not assumed.

The chat template is rendered twice: the prompt with its generation header, and the prompt with the
response. The second text must start with the first, and its tokens with the first's tokens; what
is left over is the response, up to and including the end-of-turn token. So a loss mask needs no
help from the template (most have no `{% generation %}` tags), the model is trained on exactly the
positions it generates from, and a template or a tokenizer for which that cannot be is refused.

Templates write their own BOS, hence `add_special_tokens=False` throughout: it is never doubled.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from steps.data.preferences import MalformedRow, Message, PreferencePair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class LengthLimits:
    """Limits in tokens. A longer prompt drops its row; a response is cut to what room is left."""

    max_length: int = 1024
    max_prompt_length: int = 512

    def __post_init__(self) -> None:
        if self.max_length < 1 or self.max_prompt_length < 1:
            raise ValueError(f"length limits must be at least 1 token: {self}")


@dataclass(frozen=True)
class TokenizedPair:
    """A pair as token ids. `chosen_ids` and `rejected_ids` end in the end-of-turn token unless cut.

    `pair_id` is a function of the three id sequences alone. `truncated`: either response was cut.
    """

    row: str
    pair_id: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True)
class TokenizedResponse:
    """One prompt and one response as token ids; `truncated`: the response was cut."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    truncated: bool


def tokenize_pair(
    tokenizer: "PreTrainedTokenizerBase", pair: PreferencePair, limits: LengthLimits
) -> TokenizedPair:
    """Both responses of `pair` after its prompt.

    Raises:
        MalformedRow: template and tokenizer allow no clean line between prompt and response, the
            prompt is over its limit, or the two responses come out with equal tokens.
    """
    chosen = tokenize_conversation(tokenizer, pair.prompt, pair.chosen, limits)
    rejected = tokenize_conversation(tokenizer, pair.prompt, pair.rejected, limits)
    truncated = chosen.truncated or rejected.truncated
    if chosen.response_ids == rejected.response_ids:
        raise MalformedRow(
            "identical after truncation" if truncated else "identical responses",
            f"both responses are the same {len(chosen.response_ids)} tokens",
        )
    parts = (chosen.prompt_ids, chosen.response_ids, rejected.response_ids)
    return TokenizedPair(pair.row, pair_id(*parts), *parts, truncated)


def tokenize_conversation(
    tokenizer: "PreTrainedTokenizerBase",
    prompt: Sequence[Message],
    response: str,
    limits: LengthLimits,
) -> TokenizedResponse:
    """`response` after `prompt`.

    Raises:
        MalformedRow: as `tokenize_pair`.
    """
    prompt_text, response_text = _render_response(tokenizer, prompt, response)
    prompt_ids = _encode(tokenizer, prompt_text)
    full_ids = _encode(tokenizer, prompt_text + response_text)
    if full_ids[: len(prompt_ids)] != prompt_ids:
        raise MalformedRow(
            "prompt is not a token prefix",
            "the tokenizer merges the end of the prompt with the start of the response",
        )
    if len(prompt_ids) > limits.max_prompt_length:
        raise MalformedRow(
            "prompt too long",
            f"{len(prompt_ids)} tokens, over max_prompt_length={limits.max_prompt_length}",
        )
    response_ids = _up_to_end_of_turn(full_ids[len(prompt_ids) :], tokenizer.eos_token_id)
    room = limits.max_length - len(prompt_ids)
    if room <= 0:
        raise MalformedRow(
            "no room for the response",
            f"the prompt's {len(prompt_ids)} tokens fill max_length={limits.max_length}",
        )
    return TokenizedResponse(prompt_ids, response_ids[:room], len(response_ids) > room)


def pair_id(
    prompt_ids: Sequence[int], chosen_ids: Sequence[int], rejected_ids: Sequence[int]
) -> str:
    """16 hex digits that two pairs share when, and but for hash collisions only when, they hold
    the same tokens: sha256 over the three lengths and then the ids."""
    parts = (prompt_ids, chosen_ids, rejected_ids)
    lengths = struct.pack("<3q", *map(len, parts))
    ids = struct.pack(f"<{sum(map(len, parts))}i", *chain(*parts))
    return hashlib.sha256(lengths + ids).hexdigest()[:16]


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer saved in the folder `path`; nothing is downloaded and no code in it is run.

    A template that asks for today's date is given a fixed one, so that equal rows have equal
    tokens on any day: prompts for generation must come from this tokenizer too.

    Raises:
        FileNotFoundError: `path` is no folder.
        ValueError: the tokenizer has no chat template or no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    if not Path(path).is_dir():
        raise FileNotFoundError(f"{path}: no such folder; expected one with a saved tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=False
    )
    if not tokenizer.chat_template:
        raise ValueError(
            f"{path}: the tokenizer has no chat template, so it cannot tell turns apart; use the "
            "model's chat or instruct variant, or put a chat_template.jinja into the folder"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{path}: the tokenizer has no eos_token, so responses would have no end; name one in "
            "tokenizer_config.json"
        )
    template = tokenizer.get_chat_template()
    if "strftime_now" in template:
        tokenizer.chat_template = _FIXED_CLOCK + template
    return tokenizer


_DATE = {"%d": "26", "%m": "07", "%b": "Jul", "%B": "July", "%Y": "2024"}
"""Llama 3.1's own fallback date, for the format letters that published templates use."""

_FIXED_CLOCK = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f" | replace('{letter}', '{value}')" for letter, value in _DATE.items())
    + " }}{%- endmacro -%}"
)
"""A macro of the template's own, which hides transformers' global of the same name."""


def _render_response(
    tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[Message], response: str
) -> tuple[str, str]:
    # Written out in a response, this token would end the turn early, or end it twice.
    if str(tokenizer.eos_token) in response:
        raise MalformedRow(
            "end-of-turn inside the response", f"the text contains {tokenizer.eos_token}"
        )
    answered: list[Message] = [*prompt, {"role": "assistant", "content": response}]
    prompt_text = _render(tokenizer, prompt, add_generation_prompt=True)
    full_text = _render(tokenizer, answered, add_generation_prompt=False)
    response_text = full_text.removeprefix(prompt_text)
    if not full_text.startswith(prompt_text) or not response_text:
        raise MalformedRow(
            "template does not extend the prompt",
            "with the response added, the chat template writes what comes before it differently",
        )
    return prompt_text, response_text


def _render(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], add_generation_prompt: bool
) -> str:
    try:
        text = tokenizer.apply_chat_template(
            [{"role": turn["role"], "content": turn["content"]} for turn in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    except TemplateError as error:
        raise MalformedRow("template refuses the conversation", str(error)) from None
    assert isinstance(text, str)
    return text


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[int, ...]:
    # `verbose=False`: rows longer than the model's context are cut later, not worth a warning.
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _up_to_end_of_turn(ids: tuple[int, ...], eos: object) -> tuple[int, ...]:
    """`ids` without what a template writes after the turn, such as SmolLM2's line break.

    Where the template ends turns in a token other than `eos`, all of `ids`.
    """
    ends = [index for index, token in enumerate(ids) if token == eos]
    return ids[: ends[-1] + 1] if ends else ids
