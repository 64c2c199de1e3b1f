"""``tokenize_conversations``: demonstrations as text become token ids, in Parquet."""

from pipeline import Metrics, Output, TemperError, step
from steps.data.tokenizing import TokenizeConfig
from steps.kinds import Conversations, ConversationTokens, Model


@step(makes=ConversationTokens)
def tokenize_conversations(
    out: Output,
    conversations: Conversations,
    tokenizer: Model,
    config: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write ``tokens-00000.parquet`` and so on, ``ledger.parquet``, and a ``summary.md``.

    Finished shards are kept in scratch, so an interrupted step goes on from the shard it was at.

    Raises:
        TemperError: no conversation is left, or more were dropped than allowed.
    """
    from steps.data.tokens import tokenize_folders
    from steps.data.workers import ShardFailed

    try:
        return tokenize_folders(
            "conversations",
            conversations.path,
            [""],
            tokenizer.path,
            config,
            out.path,
            out.scratch,
            out.progress,
        )
    except (ShardFailed, ValueError) as error:
        raise TemperError(str(error)) from error
