"""Does a teacher's distribution teach more than demonstrations do? A task that can be checked.

A teacher of about a million weights learns two-digit addition from annotators, half of whom forget
the carry, and then from its own answers, which a checker judges. A student with a quarter of its
weights learns from the same annotators: by SFT, or from what the teacher would have said at each of
their tokens. In rounds, the student then learns from the teacher at the tokens of its own answers.

    python experiments/distill_arithmetic.py
    python experiments/distill_arithmetic.py loss=reverse_kl      the teacher is not run again
    python experiments/distill_arithmetic.py loss.temperature=2
    python experiments/distill_arithmetic.py rounds=2             on the student's own answers
    python experiments/distill_arithmetic.py online=12            the same online, beside GRPO
    python experiments/distill_arithmetic.py seed=1
"""

from dataclasses import dataclass, field, replace

from pipeline import Input, Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.distillation.config import TeacherConfig
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.judge import judge
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.registry import DISTILLATION_LOSSES
from steps.make_arithmetic import make_arithmetic
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.online.methods.distill import Distill
from steps.online.methods.policy_gradient import Over
from steps.online.selection import Best
from steps.sample_completions import sample_completions
from steps.sample_rollouts import sample_rollouts
from steps.score_completions import score_completions
from steps.select_demonstrations import select_demonstrations
from steps.teacher_logprobs import teacher_logprobs
from steps.tokenize_conversations import tokenize_conversations
from steps.train_online import train_online
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(ExperimentConfig):
    """Addition from careless annotators, and from a teacher that knows better.

    Args:
        seed: the seed of the task, the weights, the training and the sampling.
        train_problems: the number of problems for training.
        test_problems: the number of held-out problems.
        iterations: of the teacher's online training.
        teacher: the size of the teacher.
        student: the size of the students.
        teaching: the supervised fine-tuning of the teacher.
        sft: that of the first student.
        distill: the distillation of the second student.
        rounds: how often that student also learns from its own answers, right or wrong.
        sampling: how it draws them.
        round: the distillation of one round.
        online: the iterations of on-policy distillation, and of GRPO, of the first student.
    """

    seed: int = 0
    train_problems: int = 1100
    test_problems: int = 500
    iterations: int = 6
    teacher: LlamaShape = field(default_factory=lambda: LlamaShape(160, 3, 4, 448))
    student: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    teaching: TrainConfig = field(default_factory=TrainConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    scoring: TeacherConfig = field(default_factory=TeacherConfig)
    distill: TrainConfig = field(default_factory=TrainConfig)
    loss: DistillationLoss = field(default_factory=ForwardKl)
    rounds: int = 0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    round: TrainConfig = field(default_factory=TrainConfig)
    online: int = 0
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def distill_arithmetic(cfg: Config) -> dict[str, Step]:
    """A teacher by SFT and online training → its distribution → students → exact match."""
    task = make_arithmetic(cfg.train_problems, cfg.test_problems, cfg.seed)
    large, small = (init_model(shape, cfg.seed) for shape in (cfg.teacher, cfg.student))
    shown = tokenize_conversations(task["sft"], tokenizer=small, config=cfg.tokenize)
    begun = train_sft(shown, init=large, config=cfg.teaching)
    teacher = train_online(task["train"], begun, cfg.iterations, config=cfg.rl)["model"]

    def exact_match(model: Step | Input) -> Step:
        return score_completions(sample_completions(task["test"], model, cfg.answering))

    def distilled(tokens: Step, init: Step, config: TrainConfig) -> Step:
        scores = teacher_logprobs(tokens, teacher, cfg.scoring)
        return train_sft(tokens, init=init, config=config, loss=cfg.loss, teacher=scores)

    sft = train_sft(shown, init=small, config=cfg.sft)
    student = distilled(shown, small, cfg.distill)
    results = {
        "teacher": exact_match(teacher),
        "SFT": exact_match(sft),
        "distilled": exact_match(student),
    }
    for number in range(1, cfg.rounds + 1):
        sampling = replace(cfg.sampling, seed=cfg.sampling.seed + number)
        drawn = judge(sample_rollouts(task["train"], student, sampling))
        every = select_demonstrations(drawn, Best(least_reward=None, per_prompt=None))
        student = distilled(every, student, cfg.round)
        results[f"after round {number}"] = exact_match(student)
    if cfg.online:
        alone = train_online(task["train"], sft, cfg.online, config=cfg.rl)
        taught = replace(cfg.rl, method=Distill(over=Over.token))
        beside = train_online(task["train"], sft, cfg.online, None, taught, teacher=teacher)
        results["SFT, then GRPO"] = exact_match(alone["model"])
        results["SFT, then on-policy distillation"] = exact_match(beside["model"])
    return results


if __name__ == "__main__":
    main(distill_arithmetic, {"loss": DISTILLATION_LOSSES, "rl.method": METHODS})
