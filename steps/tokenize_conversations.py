"""``tokenize_conversations``: convert conversations from text to token ids, in Parquet."""

from pipeline import Metrics, Output, step
from steps.core_adapters.tokenize import write_tokens
from steps.data.tokens.config import TokenizeConfig
from steps.kinds import Conversations, ConversationTokens, Model


@step(makes=ConversationTokens, estimate="steps.step_needs:tokenizes")
def tokenize_conversations(
    out: Output,
    conversations: Conversations,
    tokenizer: Model,
    config: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write ``tokens-00000.parquet`` and so on, ``ledger.parquet``, and a ``summary.md``.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard.

    Raises:
        TemperError: no conversation is left, or more were dropped than allowed.
    """
    return write_tokens(out, "conversations", conversations, tokenizer, config)
