"""Learning to use a tool: online training on sums of several numbers, with a calculator.

A model is taught by annotators who call the calculator, and often lose patience before the end.
It draws episodes, in which the calculator replies to its calls; a checker says which last answers
are right, and the policy learns from that. Long sums are seldom right at first, and episodes are
of unequal lengths.

    python experiments/grpo_tools.py
    python experiments/grpo_tools.py rl=raft               another method; conf/rl has them all
    python experiments/grpo_tools.py iterations=48         goes on where twenty-four ended
    python experiments/grpo_tools.py replay=true           each segment again, from its rollouts
    python experiments/grpo_tools.py tool.most_calls=3     too few for the longest sums
"""

from dataclasses import dataclass, field

from pipeline import Input, Step
from pipeline.experiment import main
from steps.checking.boxed import Boxed
from steps.data.rows.sums import TOOL_ROLE
from steps.data.tokens.config import TokenizeConfig
from steps.environments.calculator import Calculator
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.jax_backend.backend_choice import training_choices
from steps.judge import judge
from steps.make_sums import make_sums
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.sample_rollouts import sample_rollouts
from steps.segments import Segmented
from steps.tokenize_conversations import tokenize_conversations
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(Segmented):
    """Sums with a calculator: impatient demonstrations, then online training with a checker.

    Args:
        seed: of the task, the weights, the training and the draws.
        train_problems: how many problems there are to train on.
        test_problems: how many are held out.
        replay: make each segment again from the rollouts that it recorded.
        tool: the calculator.
    """

    seed: int = 0
    train_problems: int = 1100
    test_problems: int = 500
    iterations: int = 24
    segment: int = 12
    replay: bool = False
    shape: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    tool: Calculator = field(
        default_factory=lambda: Calculator(most_operations=1, role=TOOL_ROLE, mistake="?")
    )
    rl: RlConfig = field(default_factory=RlConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def grpo_tools(cfg: Config) -> dict[str, Step]:
    """SFT from scratch → segments of episodes, checking and learning → held-out sums."""
    task = make_sums(cfg.train_problems, cfg.test_problems, cfg.seed)
    base = init_model(cfg.shape, cfg.seed)
    demonstrations = tokenize_conversations(task["sft"], tokenizer=base, config=cfg.tokenize)
    sft = train_sft(demonstrations, init=base, config=cfg.sft)

    def right(model: Step | Input) -> Step:
        return judge(sample_rollouts(task["test"], model, cfg.answering, environment=cfg.tool))

    results = {"SFT": right(sft)}
    start = None
    for length, done in cfg.segments():
        run = train_online(
            task["train"], sft, length, Boxed(), cfg.rl, start=start, environment=cfg.tool
        )
        results[f"after {done}"] = right(run["model"])
        if cfg.replay:
            again = train_on_rollouts(run["rollouts"], sft, cfg.rl, start=start)
            results[f"after {done}, replayed"] = right(again["model"])
        start = run["state"]
    return results


if __name__ == "__main__":
    main(grpo_tools, {"rl.method": METHODS, **training_choices("sft")})
