"""``load_unpaired``: read raw rows as single completions labelled good or bad."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import UnpairedRow
from steps.kinds import UnpairedSplits
from steps.sources import DataSource


@step(
    makes=UnpairedSplits,
    estimate="steps.step_needs:loads",
    converts="steps.sources:as_sources",
)
def load_unpaired(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(),
) -> Metrics:
    """Write ``SPLIT/completions-*.parquet`` and ``ledger.parquet``.

    Works like :func:`steps.load_preferences.load_preferences`, but holds out nothing by default.
    """
    from steps.core_adapters.load import write_splits

    return write_splits(out, UnpairedRow, train, test, config)
