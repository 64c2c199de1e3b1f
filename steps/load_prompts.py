"""``load_prompts``: read raw rows as prompts for a model to answer."""

from pipeline import Metrics, Output, step
from steps.checking.verdicts import Checker
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import PromptRow
from steps.kinds import PromptSplits
from steps.sources import DataSource


@step(makes=PromptSplits, estimate="steps.step_needs:loads", converts="steps.sources:as_sources")
def load_prompts(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(),
    checker: Checker | None = None,
    most_without: float = 0.05,
) -> Metrics:
    """Write ``SPLIT/prompts-*.parquet`` and ``ledger.parquet``.

    Works like :func:`steps.load_preferences.load_preferences`, but holds out nothing by default.

    Args:
        checker: what will judge completions; it says now which answers it cannot compare with.
        most_without: the largest share of rows with such an answer.

    Raises:
        TemperError: a split has more of them.
    """
    from steps.core_adapters.load import require_splits, write_splits

    metrics = write_splits(out, PromptRow, train, test, config)
    require_splits(out, checker, most_without)
    return metrics
