"""The reasons why a row is dropped: short stable strings, for reports and the ledger."""

from typing import Literal

Reason = Literal[
    # --- reading: the bytes give no record
    "broken JSON",  # a line or element that is no JSON, or too deep or large a number to read
    "not valid UTF-8",  # a line, or a text in a table, whose bytes are no text
    "not an object",  # JSON, but a list, a number, a string …
    "broken table",  # a row of CSV with more or fewer cells than columns
    "unreadable value",  # a table's value that Python cannot hold, such as a date of year 300000
    "row too large",  # more bytes than `lines.MAX_ROW_BYTES`
    "damaged row group",  # of a Parquet file: a line for each of its rows
    "file cut off",  # nothing after it could be read: one line for all that is lost with it
    # --- parsing: the record is no row of the format
    "no prompt",
    "no chosen",
    "no rejected",
    "no messages",
    "no completion",
    "no text",
    "no label",
    "empty conversation",
    "empty response",
    "wrong role order",
    "unknown role",
    "content not a string",
    "not valid Unicode",  # text that cannot be written as UTF-8: a lone surrogate
    "label not a boolean",
    "label is a rating",  # a number that is neither 0 nor 1: then those are ratings, too
    "score not a number",
    "weight not a number",  # or below 0, or missing in a field that was named
    "trained not a boolean",  # of a message, or its keys contradict each other
    "answer not a string",
    "answer without its end",  # a solution that ends with an empty #### or in a box that is cut
    "tools not a list of objects",
    "template arguments not an object",
    "no turn markers",  # a dialogue string without "\n\nHuman:" and "\n\nAssistant:"
    "dialogue in one string",  # such markers, in a format whose strings are single messages
    "verdict not understood",  # of a column that says which side is better
    "different prompts",
    "one completion",  # where pairs need several, in rows beside each other
    "identical responses",
    # --- images of a row
    "no image",  # missing, or its file is
    "broken image",
    "image too large",
    "images not matched",  # a text has places for more of them, or for fewer, or none is read
    # --- choosing: a good row that was not wanted; never counted against `max_dropped`
    "duplicate",  # the same prompt and responses as an earlier row
    "contradictory pair",  # the same but for its sides, which are exchanged
    "near duplicate",  # nearly the same
    "tie",  # neither side is better, or all completions are equally good
    "over the limit",  # more rows than were asked for
    "margin too small",  # less than was asked for, or no scores to tell
    "response too short",
    "response too long",
    "lengths too different",  # of the two responses
    "other language",  # than those asked for
    "overlaps evaluation",  # shares an n-gram with the evaluation set
    "cut",  # a sampled completion without an end
    "no reward",
    "not among the best",  # of its prompt's completions, or in no pair
    "low influence",  # on what is learnt of held-out pairs
    # --- tokenising
    "template refuses the conversation",
    "tokenizer refuses the text",
    "template does not extend the prompt",
    "template marks no assistant turn",
    "template leaves out a message",  # where such rows are to be dropped
    "assistant turn not found in the rendered text",
    "end-of-turn inside the response",
    "doubled special token",
    "no prompt token",
    "no trained token",
    "prompt too long",
    "too long",
    "no room for the response",
    "identical after truncation",
]

CHOICES: frozenset[Reason] = frozenset(
    {
        "duplicate", "contradictory pair", "near duplicate", "tie", "over the limit",
        "overlaps evaluation", "margin too small", "response too short", "response too long",
        "lengths too different", "other language", "cut", "no reward", "not among the best",
        "low influence",
    }
)  # fmt: skip
"""Reasons for dropping a valid row by choice."""

CONTRADICTORY: Reason = "contradictory pair"
REST_LOST: Reason = "file cut off"
"""The reason that stands for an unknown number of lost rows."""


class MalformedRow(ValueError):
    """A row that cannot be used. `reason` is one of `Reason`, `detail` names field and finding."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)  # another process may find it
