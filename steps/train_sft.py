"""``train_sft``: supervised fine-tuning on demonstrations, or on the chosen responses of pairs."""

from pipeline import Metrics, Output, step
from steps.data.parquet import read_rows
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
        tokens: ``tokens.parquet`` with ``response_ids``, or preference pairs, whose
            ``chosen_ids`` are then the responses.
        init: the model to start from.
    """
    from steps.training.sft import run_sft

    rows = [
        {**row, "response_ids": row.get("response_ids", row.get("chosen_ids"))}
        for row in read_rows(tokens / "tokens.parquet")
    ]
    return run_sft(
        init.path, rows, config, output=out.path, scratch=out.scratch, on_progress=out.progress
    )
