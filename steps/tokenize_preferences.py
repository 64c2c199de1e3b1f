"""``tokenize_preferences``: pairs as text become pairs as token ids, in Parquet."""

from pipeline import Metrics, Output, step
from steps.data.tokens.tokenizing import TokenizeConfig
from steps.glue.tokenize import write_split_tokens
from steps.kinds import Model, Preferences, TokenizedPreferences


@step(makes=TokenizedPreferences, estimate="steps.prices.of_rows:TOKENIZED_PAIRS")
def tokenize_preferences(
    out: Output,
    pairs: Preferences,
    tokenizer: Model,
    config: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write ``SPLIT/tokens-00000.parquet`` and so on for every split of ``pairs``, what became of
    each row in ``ledger.parquet``, and a ``summary.md`` of lengths.

    Finished shards are kept in scratch, so an interrupted step goes on from the shard it was at.

    Args:
        tokenizer: a model artifact, whose chat template and tokenizer are used.

    Raises:
        TemperError: no pair of a split is left, or more rows were dropped than allowed.
    """
    return write_split_tokens(out, "pairs", pairs, tokenizer, config)
