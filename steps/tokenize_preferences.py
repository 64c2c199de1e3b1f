"""``tokenize_preferences``: pairs as text become pairs as token ids, in Parquet."""

from pipeline import Metrics, Output, TemperError, step
from steps.data.tokenizing import TokenizeConfig
from steps.kinds import Model, Preferences, TokenizedPreferences


@step(makes=TokenizedPreferences)
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
    from steps.data.tokens import tokenize_folders
    from steps.data.workers import ShardFailed

    splits = sorted({path.parent.name for path in pairs.path.glob("*/pairs-*.parquet")})
    if not splits:
        raise TemperError(f"{pairs.step} holds no SPLIT/pairs-*.parquet; pass the whole artifact")
    try:
        return tokenize_folders(
            "pairs", pairs.path, splits, tokenizer.path, config, out.path, out.scratch, out.progress
        )
    except (ShardFailed, ValueError) as error:
        raise TemperError(str(error)) from error
