"""``load_texts``: read raw rows as plain texts."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import TextRow
from steps.kinds import TextSplits
from steps.sources import DataSource


@step(makes=TextSplits, estimate="steps.step_needs:loads", converts="steps.sources:as_sources")
def load_texts(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(),
) -> Metrics:
    """Write ``SPLIT/texts-*.parquet`` and ``ledger.parquet``.

    Works like :func:`steps.load_preferences.load_preferences`, but holds out nothing by default.
    """
    from steps.core_adapters.load import write_splits

    return write_splits(out, TextRow, train, test, config)
