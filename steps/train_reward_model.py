"""``train_reward_model``: a model that scores responses, from pairs (Bradley and Terry)."""

from pipeline import Metrics, Output, step
from steps.data.rows.parquet import iter_rows
from steps.glue.workplace_of import at_work
from steps.kinds import Model, PairTokens, RewardModel
from steps.reward_models.config import RewardConfig


@step(makes=RewardModel)
def train_reward_model(
    out: Output,
    tokens: PairTokens,
    init: Model | RewardModel,
    config: RewardConfig = RewardConfig(),
    held_out: PairTokens | None = None,
) -> Metrics:
    """Write a sequence classifier's folder, its ``metrics.jsonl`` and a ``summary.md``; resumes
    from checkpoints.

    Args:
        init: the language model whose body is trained on, under a head of zeros; or a reward model
            to train further.
        held_out: other pairs, to evaluate on during training.
    """
    from steps.reward_models.reward_training import run_reward_training

    with at_work(out) as place:
        return run_reward_training(
            init.path,
            iter_rows(tokens.path),
            config,
            place,
            None if held_out is None else iter_rows(held_out.path),
        )
