"""``tokenize_preferences``: convert preference pairs from text to token ids, in Parquet."""

from pipeline import Metrics, Output, step
from steps.core_adapters.tokenize import write_split_tokens
from steps.data.tokens.config import TokenizeConfig
from steps.kinds import Model, Preferences, TokenizedPreferences


@step(makes=TokenizedPreferences, estimate="steps.step_needs:tokenizes")
def tokenize_preferences(
    out: Output, pairs: Preferences, tokenizer: Model, config: TokenizeConfig = TokenizeConfig()
) -> Metrics:
    """Write ``SPLIT/tokens-00000.parquet`` and so on for every split of ``pairs``, the outcome of
    each row in ``ledger.parquet``, and a ``summary.md`` of lengths.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard.

    Args:
        tokenizer: a model; this step uses its chat template and tokenizer.

    Raises:
        TemperError: no pair of a split is left, or more rows were dropped than allowed.
    """
    return write_split_tokens(out, "pairs", pairs, tokenizer, config)
