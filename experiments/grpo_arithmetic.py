"""Learning from one's own answers: online training on a task whose answers can be checked.

The model of ``dpo_arithmetic``, taught by annotators half of whom forget the carry, samples
answers, a checker says which are right, and the policy learns from that, twelve times over, in
segments of six iterations.

    python experiments/grpo_arithmetic.py
    python experiments/grpo_arithmetic.py rl=raft           another method; conf/rl has them all
    python experiments/grpo_arithmetic.py iterations=18     goes on where twelve ended
    python experiments/grpo_arithmetic.py replay=true       each segment again, from its rollouts
    python experiments/grpo_arithmetic.py seed=1

On this task all methods arrive in seconds: the right answer is already half of what the model was
taught. With one update a sampling and answers of one length, GRPO, DAPO, GSPO and CISPO are one
algorithm here. It shows that the plumbing is right, and not which method is better.
"""

from dataclasses import dataclass, field

from pipeline import Input, Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.tokenizing import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.make_arithmetic import make_arithmetic
from steps.models.config import ADAPTERS
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.tokenize_conversations import tokenize_conversations
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(ExperimentConfig):
    """Addition from careless annotators, then online training with a checker.

    Args:
        seed: of the task, the weights, the training and the draws.
        train_problems: how many problems there are to train on.
        test_problems: how many are held out.
        iterations: how often the policy draws and learns.
        segment: how many iterations are one step.
        replay: make each segment again from the rollouts that it recorded.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.iterations, self.segment) < 1:
            raise ValueError("iterations and segment must be at least 1")


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
    for done in range(0, cfg.iterations, cfg.segment):
        length = min(cfg.segment, cfg.iterations - done)
        run = train_online(task["train"], sft, length, config=cfg.rl, start=start)
        results[f"after {done + length}"] = exact_match(run["model"])
        if cfg.replay:
            again = train_on_rollouts(run["rollouts"], sft, cfg.rl, start=start)
            results[f"after {done + length}, replayed"] = exact_match(again["model"])
        start = run["state"]
    return results


if __name__ == "__main__":
    main(grpo_arithmetic, {"rl.method": METHODS, "sft.lora": ADAPTERS})
