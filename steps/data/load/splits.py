"""Decide which prompts are held out, as a pure function of the prompt.

A hash of a prompt's messages, in the normal form of :mod:`steps.data.load.overlap`, gives a number
in [0, 1); the prompt is held out if this number is below the fraction. So new rows never move old
rows to the other split, the order of rows is irrelevant, rows with equal prompts are in the same
split, and a larger fraction only adds to the held-out set. A system prompt from the config is added
after the split, so a change of it moves no row.
"""

import hashlib
import json
from collections.abc import Sequence

from steps.data.load.overlap import normal_text
from steps.data.rows.rows import ConversationRow, Message, Row, TextRow


def in_test_split(prompt: Sequence[Message], fraction: float) -> bool:
    """Whether `prompt` belongs to the held-out part, of expected size `fraction` (0 to 1).

    Raises:
        ValueError: `fraction` is outside [0, 1].
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"the test fraction is {fraction}; it must lie between 0 and 1")
    # A number in [0, 1), uniform over prompts: the leading 53 bits (a float's worth) of a hash.
    return (int.from_bytes(prompt_key(prompt)[:8], "big") >> 11) / 2**53 < fraction


def prompt_of(row: Row) -> Sequence[Message]:
    """The prompt that decides a row's split: for a conversation, all messages before the first
    answer; for a text, the text itself."""
    if isinstance(row, TextRow):
        return ({"role": "user", "content": row.text},)
    if isinstance(row, ConversationRow):
        roles = [message["role"] for message in row.messages]
        return row.messages[: roles.index("assistant", roles.index("user"))]
    return row.prompt


def prompt_key(prompt: Sequence[Message]) -> bytes:
    """The sha256 of a prompt and its images, which prompts share that differ in spelling alone."""
    messages = [[message["role"], normal_text(message["content"])] for message in prompt]
    messages += [[image["sha256"]] for turn in prompt for image in turn.get("images", ())]
    return hashlib.sha256(json.dumps(messages).encode()).digest()
