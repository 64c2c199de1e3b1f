"""Online training on a task whose answers can be checked: a model learns from its own answers.

The model of ``dpo_arithmetic``, which learnt from annotators half of whom forget the carry, samples
answers, a checker decides which are right, and the model learns from them. This is repeated twelve
times, in segments of six iterations.

    python experiments/grpo_arithmetic.py
    python experiments/grpo_arithmetic.py rl=raft           another method; conf/rl has them all
    python experiments/grpo_arithmetic.py iterations=18     continues after the first twelve
    python experiments/grpo_arithmetic.py replay=true       repeats each segment from its rollouts
    python experiments/grpo_arithmetic.py seed=1

On this task all methods succeed in seconds, because half of the demonstrations are right already.
With one update per iteration and answers of equal length, GRPO, DAPO, GSPO and CISPO are the same
algorithm here. So this experiment tests the implementation; it does not compare the methods.
"""

from dataclasses import dataclass, field

from pipeline import Input, Step
from pipeline.experiment import main
from steps.data.tokens.config import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.jax_backend.backend_choice import training_choices
from steps.make_arithmetic import make_arithmetic
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.segments import Segmented
from steps.tokenize_conversations import tokenize_conversations
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(Segmented):
    """Addition from careless annotators, then online training with a checker.

    Args:
        seed: the seed of the task, the weights, the training and the sampling.
        train_problems: the number of problems for training.
        test_problems: the number of held-out problems.
        replay: also repeat each segment from its recorded rollouts.
    """

    seed: int = 0
    train_problems: int = 1100
    test_problems: int = 500
    iterations: int = 12
    segment: int = 6
    replay: bool = False
    shape: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def grpo_arithmetic(cfg: Config) -> dict[str, Step]:
    """SFT from scratch → segments of sampling, checking and learning → exact match on held-out."""
    task = make_arithmetic(cfg.train_problems, cfg.test_problems, cfg.seed)
    base = init_model(cfg.shape, cfg.seed)
    demonstrations = tokenize_conversations(task["sft"], tokenizer=base, config=cfg.tokenize)
    sft = train_sft(demonstrations, init=base, config=cfg.sft)

    def exact_match(model: Step | Input) -> Step:
        return score_completions(sample_completions(task["test"], model, cfg.answering))

    results = {"SFT": exact_match(sft)}
    start = None
    for length, done in cfg.segments():
        run = train_online(task["train"], sft, length, config=cfg.rl, start=start)
        results[f"after {done}"] = exact_match(run["model"])
        if cfg.replay:
            again = train_on_rollouts(run["rollouts"], sft, cfg.rl, start=start)
            results[f"after {done}, replayed"] = exact_match(again["model"])
        start = run["state"]
    return results


if __name__ == "__main__":
    main(grpo_arithmetic, {"rl.method": METHODS, **training_choices("sft")})
