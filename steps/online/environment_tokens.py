"""What an environment replies, as the tokens that a policy reads.

Messages go through the tokenizer's own chat template, between an answer and the header of the next
one. The answer is a stand-in, of which nothing is kept: what the policy drew is never tokenised
again, and the tokens of a reply begin behind the very stop token that it drew.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, PromptRow
from steps.data.tokens.encoding import Encoder, encoder
from steps.data.tokens.rendering import Chat, ChatFormat, chat_format, render
from steps.environments.environment import Observation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWER = "Temper takes this turn out again"


class Observed:
    """Makes tokens of observations."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._format: ChatFormat = chat_format(tokenizer)
        self._encoder: Encoder = encoder(tokenizer)
        self._vocabulary = len(tokenizer)

    def ids(self, observation: Observation, asked: PromptRow) -> tuple[int, ...]:
        """The tokens from behind a turn's stop token to the first of the next turn.

        Raises:
            ValueError: there are no such tokens, and why: the template refuses the messages, leaves
                out what they say, or writes no stop token behind an answer; a message has the text
                of a special token; the vocabulary lacks something.
        """
        if observation.ids:
            if not all(0 <= token < self._vocabulary for token in observation.ids):
                raise ValueError("an observation has ids that the tokenizer does not have")
            return observation.ids
        text = self._between(observation.messages, asked)
        (ids,) = self._encoder.ids([text])
        if self._encoder.unknown is not None and self._encoder.unknown in ids:
            raise ValueError(f"the tokenizer cannot write the observation {text!r}")
        return tuple(ids)

    def _between(self, messages: tuple[Mapping[str, Any], ...], asked: PromptRow) -> str:
        """What the template writes between two answers."""
        said: list[Message] = [_message(message) for message in messages]
        for message in said:
            if found := self._format.special.search(message["content"]):
                raise ValueError(f"the observation has the special token {found.group()!r} in it")
        answer: Message = {"role": "assistant", "content": _ANSWER}
        chat = Chat((*asked.prompt, answer, *said), asked.tools, asked.template_kwargs)
        try:
            text = render(self._format, chat, header=True)
        except MalformedRow as error:
            raise ValueError(f"the chat template refuses the observation: {error}") from error
        _, found, rest = text.rpartition(_ANSWER)
        rest = rest.lstrip()  # Llama 2's template writes a space before its stop token
        closed = next((end for end in self._format.ends if rest.startswith(end)), "")
        if not found or not closed:
            raise ValueError(
                f"the chat template ends an answer with {rest[:20]!r}, and not with one of the "
                f"tokens {', '.join(self._format.ends)}; reply with ids instead of messages"
            )
        if lost := [message["role"] for message in said if not _is_in(rest, message["content"])]:
            raise ValueError(f"the chat template leaves out messages of the role {lost[0]!r}")
        return rest.removeprefix(closed)


def _is_in(text: str, content: str) -> bool:
    """Whether a template has written what a message says: as it is, or as JSON, as Llama 3.1's."""
    return any(form in text for form in (content.strip(), json.dumps(content)[1:-1]))


def _message(message: Mapping[str, Any]) -> Message:
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
        raise ValueError(f"a message of an observation has no role and content: {message!r}")
    message["content"].encode()  # ValueError: it has half a character, which is no text
    return {**message}  # pyright: ignore[reportReturnType]
