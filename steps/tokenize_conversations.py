"""``tokenize_conversations``: demonstrations as text become token ids, in Parquet."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pipeline import Metrics, Output, TemperError, step
from steps.data.ledger import dropped_metrics
from steps.data.parquet import DROPPED, RESPONSE_TOKENS, read_rows, write_rows
from steps.data.preferences import DroppedRow, MalformedRow
from steps.data.templating import LengthLimits, load_tokenizer, tokenize_conversation
from steps.kinds import Conversations, ConversationTokens, Model


@step(makes=ConversationTokens)
def tokenize_conversations(
    out: Output,
    conversations: Conversations,
    tokenizer: Model,
    limits: LengthLimits = LengthLimits(),
) -> Metrics:
    """Write ``tokens.parquet`` (prompt and response ids) and ``dropped.parquet``.

    Raises:
        TemperError: no conversation is left.
    """
    encoder = load_tokenizer(str(tokenizer.path))
    rows = read_rows(conversations / "conversations.parquet")
    dropped: list[DroppedRow] = []

    def encoded() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, start=1):
            out.progress(number, len(rows))
            try:
                tokens = tokenize_conversation(encoder, row["prompt"], row["response"], limits)
            except MalformedRow as problem:
                dropped.append(DroppedRow("train", row["row"], problem.reason, problem.detail))
                continue
            yield {
                "row": row["row"],
                "prompt_ids": tokens.prompt_ids,
                "response_ids": tokens.response_ids,
            }

    kept = write_rows(out.path / "tokens.parquet", RESPONSE_TOKENS, encoded())
    if not kept:
        raise TemperError(f"all {len(rows)} conversations were dropped; the first: {dropped[0]}")
    write_rows(out.path / "dropped.parquet", DROPPED, map(asdict, dropped))
    return {"conversations": kept, **dropped_metrics(dropped, len(rows))}
