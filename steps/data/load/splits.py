"""Which prompts are held out: a pure function of the prompt, so that a split never shifts.

A prompt's place is a number in [0, 1) taken from a hash of its messages, in the normal form in
which duplicates are found; it is held out when that number is below the fraction. So rows added
later move no old row, the order of rows is irrelevant, rows with equal prompts fall on the same
side (no prompt is both trained on and tested), and a larger fraction only adds to the held-out set.
A system prompt that a config gives to all rows is none of the row's own: it is added after the
split, and changing it moves nothing.
"""

import hashlib
import json
from collections.abc import Sequence

from steps.data.images.finding import images_of
from steps.data.load.overlap import normal_text
from steps.data.rows.rows import ConversationRow, Message, Row, TextRow


def in_test_split(prompt: Sequence[Message], fraction: float) -> bool:
    """Whether `prompt` belongs to the held-out part, of expected size `fraction` (0 to 1).

    Raises:
        ValueError: `fraction` is outside [0, 1].
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"the test fraction is {fraction}; it must lie between 0 and 1")
    return _place(prompt) < fraction


def prompt_of(row: Row) -> Sequence[Message]:
    """What is held out together: of a conversation all before the first answer; of a text, it."""
    if isinstance(row, TextRow):
        return ({"role": "user", "content": row.text},)
    if isinstance(row, ConversationRow):
        roles = [message["role"] for message in row.messages]
        return row.messages[: roles.index("assistant", roles.index("user"))]
    return row.prompt


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """The sha256 of a prompt and its images, which prompts share that differ in spelling alone."""
    messages = [[message["role"], normal_text(message["content"])] for message in prompt]
    messages += [[image["sha256"]] for image in images_of(prompt)]
    return hashlib.sha256(json.dumps(messages).encode()).digest()


def _place(prompt: Sequence[Message]) -> float:
    """A number in [0, 1), uniform over prompts: the leading 53 bits (a float's worth) of a hash."""
    return (int.from_bytes(prompt_key(prompt)[:8], "big") >> 11) / 2**53
