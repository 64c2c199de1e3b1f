"""A reward model from your own preference pairs, and its accuracy on held-out pairs.

    temper run reward --data pairs.jsonl --model MODEL
    temper run reward --data pairs.jsonl --model MODEL reward.loss.center_rewards_coefficient=0.01

A row is {"prompt": …, "chosen": …, "rejected": …}.
"""

from dataclasses import dataclass, field

from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.evaluate_reward_model import evaluate_reward_model
from steps.import_model import import_model
from steps.jax_backend.backend_choice import training_choices
from steps.load_preferences import load_preferences
from steps.reward_models.config import RewardConfig, RewardScoring
from steps.score_with_reward_model import score_with_reward_model
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_preferences import tokenize_preferences
from steps.train_reward_model import train_reward_model


@dataclass
class Config(ExperimentConfig):
    """A reward model."""

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    scoring: RewardScoring = field(default_factory=RewardScoring)


def reward(cfg: Config) -> dict[str, Step]:
    """Pairs → tokens → reward model → accuracy on held-out pairs."""
    base = load_model(import_model, cfg.model, dtype=cfg.reward.dtype)
    rows = load_rows(load_preferences, cfg.data)
    tokens = tokenize_preferences(rows, tokenizer=base, config=cfg.tokenize)
    trained = train_reward_model(tokens["train"], init=base, config=cfg.reward)
    scores = score_with_reward_model(tokens["test"], trained, cfg.scoring, cfg.tokenize)
    return {"reward model": trained, "evaluation": evaluate_reward_model(scores)}


if __name__ == "__main__":
    main(reward, training_choices("reward"))
