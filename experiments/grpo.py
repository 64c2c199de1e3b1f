"""GRPO and related methods: a model learns from its own answers, which a rule checks.

    temper run grpo --data problems.jsonl --model MODEL
    temper run grpo --data problems.jsonl --model MODEL checker=pattern checker.expression='^Yes'
    temper run grpo --data problems.jsonl --model MODEL rl=raft iterations=20
    temper run grpo --data problems.jsonl --model MODEL segment=10  a checkpoint to keep every 10
    temper run grpo --data problems.jsonl --model MODEL "engine.addresses=['http://127.0.0.1:8471']"

A row is {"prompt": …, "answer": …}.
"""

from dataclasses import dataclass, field
from functools import partial

from pipeline import Input, Step
from pipeline.experiment import main
from steps.checking.boxed import Boxed
from steps.checking.checkers import CHECKERS
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.generation.config import SamplingConfig
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.engines_by_name import ENGINES
from steps.import_model import import_model
from steps.judge import judge
from steps.load_prompts import load_prompts
from steps.models.config import ADAPTERS
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.sample_rollouts import sample_rollouts
from steps.segments import Segmented
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.train_online import train_online


@dataclass
class Config(Segmented):
    """Online training with a checker.

    Args:
        checker: the rule that says which answers are right.
        answering: how the held-out prompts are answered.
        engine: who draws what the policy learns from.
    """

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    checker: Checker = field(default_factory=Boxed)
    rl: RlConfig = field(default_factory=RlConfig)
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=OwnEngine)


def grpo(cfg: Config) -> dict[str, Step]:
    """Prompts → segments of sampling, checking and learning → held-out prompts before and after."""
    load = partial(load_prompts, checker=cfg.checker, most_without=cfg.judging.most_without)
    rows = load_rows(load, cfg.data)
    policy = load_model(import_model, cfg.model, dtype=cfg.rl.dtype)

    def judged(model: Step | Input) -> Step:
        answers = sample_rollouts(rows["test"], model, cfg.answering, cfg.rl.dtype)
        return judge(answers, cfg.checker, cfg.judging)

    results, start = {"before": judged(policy)}, None
    for length, done in cfg.segments():
        trained = train_online(
            rows["train"],
            policy,
            length,
            cfg.checker,
            cfg.rl,
            cfg.judging,
            start=start,
            engine=cfg.engine,
        )
        results[f"model after {done}"] = trained
        results[f"after {done}"] = judged(trained["model"])
        start = trained["state"]
    return results


if __name__ == "__main__":
    main(
        grpo,
        {"checker": CHECKERS, "rl.method": METHODS, "rl.lora": ADAPTERS, "engine": ENGINES},
    )
