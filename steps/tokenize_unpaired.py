"""``tokenize_unpaired``: convert labelled completions from text to token ids, in Parquet."""

from pipeline import Metrics, Output, step
from steps.core_adapters.tokenize import write_split_tokens
from steps.data.tokens.config import TokenizeConfig
from steps.kinds import Model, TokenizedUnpaired, UnpairedSplits


@step(makes=TokenizedUnpaired, estimate="steps.step_needs:tokenizes")
def tokenize_unpaired(
    out: Output,
    unpaired: UnpairedSplits,
    tokenizer: Model,
    config: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write ``SPLIT/tokens-00000.parquet`` and so on, ``ledger.parquet``, and a ``summary.md``.

    Works like :func:`steps.tokenize_preferences.tokenize_preferences`. A row is a prompt, one
    completion, and a label: good or bad.

    Raises:
        TemperError: no row of a split is left, or more were dropped than allowed.
    """
    return write_split_tokens(out, "completions", unpaired, tokenizer, config)
