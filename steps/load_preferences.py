"""``load_preferences``: raw rows become preference pairs; what cannot be used is named."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import PreferenceRow
from steps.kinds import Preferences
from steps.sources import DataSource


@step(makes=Preferences, estimate="steps.prices.of_rows:LOADED")
def load_preferences(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(test_fraction=0.1),
) -> Metrics:
    """Write ``train/pairs-*.parquet``, ``test/pairs-*.parquet`` and ``ledger.parquet``.

    Without a ``test`` source a tenth of the prompts is held out, or ``config.test_fraction``. A
    killed step goes on from the shard it was at.

    Raises:
        TemperError: a source has no valid row, or too few; a split comes out empty.
    """
    from steps.glue.load import write_splits

    return write_splits(out, PreferenceRow, train, test, config)
