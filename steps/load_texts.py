"""``load_texts``: raw rows become plain texts."""

from pipeline import Metrics, Output, step
from steps.data.formats.registry import FormatChoice
from steps.data.rows import TextRow
from steps.kinds import TextSplits
from steps.rows import write_splits
from steps.sources import DataSource


@step(makes=TextSplits)
def load_texts(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    test_fraction: float = 0.0,
    max_train: int | None = None,
    max_test: int | None = None,
    format: FormatChoice = FormatChoice(),
    deduplicate: bool = False,
    max_dropped: float = 0.5,
) -> Metrics:
    """Write ``SPLIT/texts-*.parquet`` and ``ledger.parquet``.

    As :func:`steps.load_preferences.load_preferences`; by default nothing is held out.
    """
    return write_splits(
        out,
        TextRow,
        train,
        test,
        test_fraction=test_fraction,
        max_train=max_train,
        max_test=max_test,
        format=format,
        deduplicate=deduplicate,
        max_dropped=max_dropped,
    )
