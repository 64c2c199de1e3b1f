"""The columns of token files; see :mod:`steps.data.rows.tables` for those of rows."""

import pyarrow as pa

from steps.data.rows.tables import FOR_TEMPLATE, MESSAGES, ROW, SCORES, WEIGHT, required


def _tokens(*parts: str) -> list[pa.Field]:
    """The ids and the mask of each part; then the number of tokens of each, which can be read
    without the tokens."""
    ids, mask = (pa.list_(*required(kind, "element")) for kind in (pa.int32(), pa.bool_()))
    both = [(*required(ids, f"{part}_ids"), *required(mask, f"{part}_mask")) for part in parts]
    columns = [column for pair in both for column in pair]
    return columns + required(pa.int32(), *(f"{part}_length" for part in parts))


PAIR_TOKENS = pa.schema(
    [
        ROW,
        *required(pa.string(), "pair_id"),
        *_tokens("prompt", "chosen", "rejected"),
        *required(pa.int32(), "shared_prefix"),
        *SCORES,
        *WEIGHT,
        *required(MESSAGES, "prompt", "chosen", "rejected"),
        *FOR_TEMPLATE,
    ]
)
"""Preference pairs as tokens, with the messages, from which prompts can be rendered again.

The full sequence of a side is `prompt_ids` followed by its own ids. Masks are True on trained
tokens. `shared_prefix` is the number of tokens that both full sequences share at their start.
"""

_IDS, _MASK, _LENGTH = _tokens("all")
CONVERSATION_TOKENS = pa.schema(
    [ROW, _IDS.with_name("input_ids"), _MASK.with_name("mask"), _LENGTH.with_name("length")]
)
"""Conversations or texts as tokens; `mask` is True on trained tokens."""

COMPLETION_TOKENS = pa.schema(
    [
        ROW,
        *required(pa.string(), "completion_id"),
        *_tokens("prompt", "completion"),
        *required(pa.bool_(), "label"),
        *WEIGHT,
        *required(MESSAGES, "prompt", "completion"),
        *FOR_TEMPLATE,
    ]
)
"""Single completions as tokens, `label` true for a good one; equal `completion_id`s mean equal
tokens and masks, whatever the label."""
