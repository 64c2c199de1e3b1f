"""What becomes of a policy that pleases a reward model? A task whose answers can be checked.

The reward model of ``reward_model.py`` learns from a checker's verdicts on the samples of a small
Llama. Then it alone gives the rewards of online training, and never the checker. On held-out sums
both are measured: the score, which is trained on, and the share of right answers, which is wanted.
Where the score rises and the share falls, the reward model is over-optimised.

    python experiments/rlhf_arithmetic.py
    python experiments/rlhf_arithmetic.py iterations=48            goes on after the first 24
    python experiments/rlhf_arithmetic.py rl.method.kl=none rl.method.kl_weight=0  without KL
    python experiments/rlhf_arithmetic.py max_pairs=100            a reward model that saw less
    python experiments/rlhf_arithmetic.py seed=1
"""

from dataclasses import dataclass, field

from experiments.reward_model import Config as OfReward
from experiments.reward_model import learn
from pipeline import Input, Step
from pipeline.experiment import main
from steps.generation.config import SamplingConfig
from steps.jax_backend.backend_choice import training_choices
from steps.judge import judge
from steps.judge_with_reward_model import judge_with_reward_model
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.reward_models.model_rewards import ModelRewards
from steps.sample_rollouts import sample_rollouts
from steps.segments import Segmented
from steps.train_online_with_reward_model import train_online_with_reward_model


@dataclass
class Config(Segmented, OfReward):
    """A reward model from a checker's verdicts, then online training with the reward model.

    Args:
        of_cut: the reward of an answer that was cut.
    """

    iterations: int = 24
    segment: int = 12
    of_cut: float | None = None
    rl: RlConfig = field(default_factory=RlConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def rlhf_arithmetic(cfg: Config) -> dict[str, Step]:
    """Reward model → segments of sampling, scoring and learning → both measures on held-out."""
    learnt = learn(cfg)
    scoring = ModelRewards(cfg.scoring, cfg.tokenize, cfg.of_cut)
    results: dict[str, Step] = {}

    def measure(name: str, model: Step | Input) -> None:
        answers = sample_rollouts(learnt.task["test"], model, cfg.answering)
        results[name] = judge(answers)
        results[f"{name}, scored"] = judge_with_reward_model(answers, learnt.reward, scoring)

    measure("SFT", learnt.policy)
    start = None
    for length, done in cfg.segments():
        run = train_online_with_reward_model(
            learnt.task["train"], learnt.policy, learnt.reward, length, cfg.rl, scoring, start=start
        )
        measure(f"after {done}", run["model"])
        start = run["state"]
    return results


if __name__ == "__main__":
    main(rlhf_arithmetic, {"rl.method": METHODS, **training_choices("reward", "sft")})
