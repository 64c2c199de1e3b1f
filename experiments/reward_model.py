"""How far can a reward model be trusted? A task whose answers can be checked, from scratch.

A small Llama learns two-digit addition from annotators, half of whom forget the carry, and samples
answers; a rule decides which are right. A reward model learns to prefer right to wrong answers on
training prompts. On held-out prompts, the reward model, a majority vote and the checker each pick
the best of n samples. With more samples, the reward model's errors also matter more: where its
curve falls, it is over-optimised.

    python experiments/reward_model.py
    python experiments/reward_model.py seed=1
    python experiments/reward_model.py reward.loss.center_rewards_coefficient=0.01
    python experiments/reward_model.py reward/lora=lora            adapters
    python experiments/reward_model.py shuffle_labels=true         the control: nothing to learn
"""

from dataclasses import dataclass, field

from pipeline import Input, Step
from pipeline.experiment import ExperimentConfig, main
from steps.build_pairs import PairConfig, build_pairs
from steps.data.tokens.config import TokenizeConfig
from steps.evaluate_reward_model import BestOfConfig, evaluate_reward_model
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.jax_backend.backend_choice import training_choices
from steps.make_arithmetic import make_arithmetic
from steps.reward_models.config import RewardConfig, RewardScoring
from steps.sample_completions import sample_completions
from steps.score_with_reward_model import score_with_reward_model
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.train_reward_model import train_reward_model
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(ExperimentConfig):
    """Addition from careless annotators, then a reward model from a checker's verdicts.

    Args:
        seed: the seed of the task, the weights, the training and the sampling.
        shuffle_labels: shuffle the labels of training pairs, as a control without anything to
            learn.
        train_problems: the number of problems for training.
        test_problems: the number of held-out problems.
        max_pairs: the most pairs for the reward model; null: all.
    """

    seed: int = 0
    shuffle_labels: bool = False
    train_problems: int = 1100
    test_problems: int = 500
    max_pairs: int | None = None
    shape: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    scoring: RewardScoring = field(default_factory=RewardScoring)
    trying: SamplingConfig = field(default_factory=SamplingConfig)
    best_of: BestOfConfig = field(default_factory=BestOfConfig)


@dataclass(frozen=True)
class Learnt:
    """The task, the policy after SFT, its samples, and the reward model that learnt from them."""

    task: Step
    policy: Step
    held_out: Step
    held_out_pairs: Step | Input
    reward: Step


def learn(cfg: Config) -> Learnt:
    """SFT from scratch → sample → check and pair → reward model."""
    task = make_arithmetic(cfg.train_problems, cfg.test_problems, cfg.seed)
    base = init_model(cfg.shape, cfg.seed)
    demonstrations = tokenize_conversations(task["sft"], tokenizer=base, config=cfg.tokenize)
    sft = train_sft(demonstrations, init=base, config=cfg.sft)

    def pairs(samples: Step, labels: PairConfig) -> Step | Input:
        return tokenize_preferences(build_pairs(samples, labels), base, cfg.tokenize)["train"]

    learnt_from = sample_completions(task["train"], model=sft, config=cfg.sampling)
    held_out = sample_completions(task["test"], model=sft, config=cfg.trying)
    labels = PairConfig(cfg.max_pairs, cfg.shuffle_labels, cfg.seed)
    reward = train_reward_model(pairs(learnt_from, labels), init=sft, config=cfg.reward)
    return Learnt(task, sft, held_out, pairs(held_out, PairConfig()), reward)


def reward_model(cfg: Config) -> dict[str, Step]:
    """The reward model → its accuracy on held-out pairs, and best of n."""
    learnt = learn(cfg)

    def scores(responses: Step | Input) -> Step:
        return score_with_reward_model(responses, learnt.reward, cfg.scoring, cfg.tokenize)

    of_pairs, of_samples = scores(learnt.held_out_pairs), scores(learnt.held_out)
    evaluation = evaluate_reward_model(of_pairs, of_samples, cfg.best_of)
    return {"reward model": learnt.reward, "evaluation": evaluation}


if __name__ == "__main__":
    main(reward_model, training_choices("reward", "sft"))
