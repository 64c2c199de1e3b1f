"""``train_sft``: supervised fine-tuning on demonstrations, or on the chosen responses of pairs."""

from pipeline import Metrics, Output, step
from steps.data.parquet import iter_rows
from steps.kinds import ConversationTokens, Model, PairTokens
from steps.training.config import TrainConfig


@step(makes=Model)
def train_sft(
    out: Output,
    tokens: PairTokens | ConversationTokens,
    init: Model,
    config: TrainConfig = TrainConfig(),
) -> Metrics:
    """Write a model folder and its ``metrics.jsonl``; resumes from checkpoints in scratch.

    Args:
        tokens: conversations, or preference pairs, whose chosen responses are then imitated.
        init: the model to start from.
    """
    from steps.training.examples import chosen_as_demonstration
    from steps.training.sft import run_sft

    rows = (
        chosen_as_demonstration(record) if "chosen_ids" in record else record
        for record in iter_rows(tokens.path)
    )
    return run_sft(
        init.path, rows, config, output=out.path, scratch=out.scratch, on_progress=out.progress
    )
