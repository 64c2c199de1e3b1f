"""GRPO: a few iterations of drawing answers and learning from what a checker says of them.

    python examples/grpo.py

You learn how an online run is made of segments: each is a step that goes on from the state of the
one before, so a third segment runs neither of the first two again. ``conf/rl`` has the settings of
other methods, and ``docs/online_training.md`` explains them.
"""

from pipeline import run
from steps.checking.boxed import Boxed
from steps.online.config import RlConfig
from steps.online.methods.policy_gradient import Advantage, Over, PolicyGradient
from steps.train_online import train_online
from steps.training.config import OptimizerConfig, Schedule
from sums import model, questions

config = RlConfig(
    method=PolicyGradient(advantage=Advantage.group_std, over=Over.response),  # GRPO
    prompts=36,
    completions=8,
    max_new_tokens=16,
    optimizer=OptimizerConfig(learning_rate=1e-3, schedule=Schedule.constant),
)
first = train_online(questions, model, iterations=4, checker=Boxed(), config=config)
second = train_online(questions, model, 4, Boxed(), config, start=first["state"])

if __name__ == "__main__":
    made = run({"iterations 1 to 4": first, "iterations 5 to 8": second})
    for segment in made.values():
        for line in segment.load("metrics.jsonl"):
            print(line["step"], f"{line['reward']:.2f}")
