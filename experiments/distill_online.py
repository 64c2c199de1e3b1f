"""On-policy distillation: a model learns from what a larger one says of the model's own answers.

    temper run distill-online --data prompts.jsonl --model MODEL teacher.path=FOLDER
    temper run distill-online --data prompts.jsonl --model MODEL teacher.path=FOLDER \\
        rl.method.beta=1
    temper run distill-online --data problems.jsonl --model MODEL teacher.path=FOLDER \\
        checker=boxed rl.method.reward_weight=1

A row is {"prompt": …}, with an "answer" for a checker. A teacher of the Hub is teacher.hub=NAME
teacher.revision=COMMIT.
"""

from dataclasses import dataclass, field
from functools import partial

from pipeline import Step
from pipeline.experiment import main
from steps.checking.checkers import CHECKERS
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.generation.config import SamplingConfig
from steps.import_model import import_model
from steps.judge import judge
from steps.load_prompts import load_prompts
from steps.models.config import ADAPTERS
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.sample_rollouts import sample_rollouts
from steps.segments import Segmented
from steps.sources import ModelSource, PreferenceData, load_model, load_rows, load_teacher
from steps.train_online import train_online


@dataclass
class Config(Segmented):
    """On-policy distillation.

    Args:
        teacher: the model to learn from, with the vocabulary of ``model``.
        checker: the rule that says which answers are right, if there are any.
        answering: how the held-out prompts are answered, for the checker.
    """

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    teacher: ModelSource = field(default_factory=ModelSource)
    checker: Checker | None = None
    rl: RlConfig = field(default_factory=RlConfig)
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def distill_online(cfg: Config) -> dict[str, Step]:
    """Prompts → segments of sampling, the teacher's scores and learning → held-out prompts."""
    teacher = load_teacher(import_model, cfg.teacher, dtype=cfg.rl.dtype)
    load = partial(load_prompts, checker=cfg.checker, most_without=cfg.judging.most_without)
    rows = load_rows(load, cfg.data, cfg.checker is not None)
    policy = load_model(import_model, cfg.model, dtype=cfg.rl.dtype)
    results, start = dict[str, Step](), None
    for length, done in cfg.segments():
        trained = train_online(
            rows["train"],
            policy,
            length,
            cfg.checker,
            cfg.rl,
            cfg.judging,
            start,
            teacher=teacher,
        )
        results[f"model after {done}"] = trained
        if cfg.checker is not None:
            drawn = sample_rollouts(rows["test"], trained["model"], cfg.answering, cfg.rl.dtype)
            results[f"after {done}"] = judge(drawn, cfg.checker, cfg.judging)
        start = trained["state"]
    return results


if __name__ == "__main__":
    main(distill_online, {"checker": CHECKERS, "rl.method": METHODS, "rl.lora": ADAPTERS})
