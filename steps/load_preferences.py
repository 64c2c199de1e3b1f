"""``load_preferences``: raw rows become preference pairs; what cannot be used is named."""

from pipeline import Metrics, Output, step
from steps.data.formats.registry import FormatChoice
from steps.data.rows import PreferenceRow
from steps.kinds import Preferences
from steps.rows import write_splits
from steps.sources import DataSource


@step(makes=Preferences)
def load_preferences(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    test_fraction: float = 0.1,
    max_train: int | None = None,
    max_test: int | None = None,
    format: FormatChoice = FormatChoice(),
    deduplicate: bool = False,
    max_dropped: float = 0.5,
) -> Metrics:
    """Write ``train/pairs-*.parquet``, ``test/pairs-*.parquet`` and ``ledger.parquet``.

    Without a ``test`` source, ``test_fraction`` of the prompts is held out by a stable hash. A
    killed step goes on from the shard it was at.

    Args:
        format: how the rows are spelled; ``auto`` where that is plain.
        deduplicate: leave out pairs that an earlier one equals, in either split.
        max_dropped: how many rows may be unusable: below 1 a fraction of them, from 1 on a number.

    Raises:
        TemperError: a source has no valid row, or too few; a split comes out empty.
    """
    return write_splits(
        out,
        PreferenceRow,
        train,
        test,
        test_fraction=test_fraction,
        max_train=max_train,
        max_test=max_test,
        format=format,
        deduplicate=deduplicate,
        max_dropped=max_dropped,
    )
