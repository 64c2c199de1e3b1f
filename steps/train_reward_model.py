"""``train_reward_model``: train a Bradley-Terry reward model on preference pairs."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.data.rows.parquet import iter_rows
from steps.kinds import Model, PairTokens, RewardModel
from steps.reward_models.config import RewardConfig


@step(makes=RewardModel, estimate="steps.step_needs:of_model")
def train_reward_model(
    out: Output,
    tokens: PairTokens,
    init: Model | RewardModel,
    config: RewardConfig = RewardConfig(),
    held_out: PairTokens | None = None,
) -> Metrics:
    """Write the folder of a sequence classifier, ``metrics.jsonl`` and ``summary.md``. An
    interrupted step resumes from its last checkpoint.

    Args:
        init: a language model, which gets a score head of zeros; or a reward model to train
            further.
        held_out: other pairs, for evaluation during training.
    """
    from steps.reward_models.reward_training import run_reward_training

    with at_work(out) as place:
        metrics = run_reward_training(
            init.path,
            iter_rows(tokens_for(init, tokens)),
            config,
            place,
            None if held_out is None else iter_rows(tokens_for(init, held_out)),
        )
        return with_template_of(tokens, place, metrics)
