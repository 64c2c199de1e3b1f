"""``load_prompts``: read raw rows as prompts for a model to answer."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import PromptRow
from steps.kinds import PromptSplits
from steps.sources import DataSource


@step(
    makes=PromptSplits, estimate="steps.prices.of_rows:LOADED", converts="steps.sources:as_sources"
)
def load_prompts(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(),
) -> Metrics:
    """Write ``SPLIT/prompts-*.parquet`` and ``ledger.parquet``.

    Works like :func:`steps.load_preferences.load_preferences`, but holds out nothing by default.
    """
    from steps.glue.load import write_splits

    return write_splits(out, PromptRow, train, test, config)
