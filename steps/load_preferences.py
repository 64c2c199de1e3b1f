"""``load_preferences``: read raw rows as preference pairs; a ledger lists unusable rows."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import PreferenceRow
from steps.kinds import Preferences
from steps.sources import DataSource


@step(makes=Preferences, estimate="steps.step_needs:loads", converts="steps.sources:as_sources")
def load_preferences(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(test_fraction=0.1),
) -> Metrics:
    """Write ``train/pairs-*.parquet``, ``test/pairs-*.parquet`` and ``ledger.parquet``.

    Without a ``test`` source, the share ``config.test_fraction`` of the prompts is held out. A
    killed step resumes at the first unfinished shard.

    Raises:
        TemperError: a source has no valid rows or too few, or a split is empty.
    """
    from steps.core_adapters.load import write_splits

    return write_splits(out, PreferenceRow, train, test, config)
