"""``load_conversations``: read raw rows as conversations for supervised fine-tuning."""

from pipeline import Metrics, Output, step
from steps.data.load.config import LoadConfig
from steps.data.rows.rows import ConversationRow
from steps.kinds import ConversationSplits
from steps.sources import DataSource


@step(
    makes=ConversationSplits,
    estimate="steps.step_needs:loads",
    converts="steps.sources:as_sources",
)
def load_conversations(
    out: Output,
    train: DataSource,
    test: DataSource | None = None,
    config: LoadConfig = LoadConfig(),
) -> Metrics:
    """Write ``SPLIT/conversations-*.parquet`` and ``ledger.parquet``.

    Works like :func:`steps.load_preferences.load_preferences`, but holds out nothing by default.
    """
    from steps.core_adapters.load import write_splits

    return write_splits(out, ConversationRow, train, test, config)
