"""The columns of token files; see :mod:`steps.data.rows.tables` for those of rows."""

import pyarrow as pa

from steps.data.rows.tables import FOR_TEMPLATE, MESSAGES, ROW, SCORES, WEIGHT


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


def _lengths(*parts: str) -> list[pa.Field]:
    """Columns with the number of tokens of each part, which can be read without the tokens."""
    return [_required(f"{part}_length", pa.int32()) for part in parts]


_IDS, _MASK = _list_of(pa.int32()), _list_of(pa.bool_())

PAIR_TOKENS = pa.schema(
    [
        ROW,
        _required("pair_id", pa.string()),
        _required("prompt_ids", _IDS),
        _required("prompt_mask", _MASK),
        _required("chosen_ids", _IDS),
        _required("chosen_mask", _MASK),
        _required("rejected_ids", _IDS),
        _required("rejected_mask", _MASK),
        *_lengths("prompt", "chosen", "rejected"),
        _required("shared_prefix", pa.int32()),
        *SCORES,
        WEIGHT,
        _required("prompt", MESSAGES),
        _required("chosen", MESSAGES),
        _required("rejected", MESSAGES),
        *FOR_TEMPLATE,
    ]
)
"""Preference pairs as tokens, with the messages, from which prompts can be rendered again.

The full sequence of a side is `prompt_ids` followed by its own ids. Masks are True on trained
tokens. `shared_prefix` is the number of tokens that both full sequences share at their start.
"""

CONVERSATION_TOKENS = pa.schema(
    [
        ROW,
        _required("input_ids", _IDS),
        _required("mask", _MASK),
        _required("length", pa.int32()),
    ]
)
"""Conversations or texts as tokens; `mask` is True on trained tokens."""

COMPLETION_TOKENS = pa.schema(
    [
        ROW,
        _required("completion_id", pa.string()),
        _required("prompt_ids", _IDS),
        _required("prompt_mask", _MASK),
        _required("completion_ids", _IDS),
        _required("completion_mask", _MASK),
        *_lengths("prompt", "completion"),
        _required("label", pa.bool_()),
        WEIGHT,
        _required("prompt", MESSAGES),
        _required("completion", MESSAGES),
        *FOR_TEMPLATE,
    ]
)
"""Single completions as tokens, `label` true for a good one; equal `completion_id`s mean equal
tokens, whatever the label."""
