"""A checker of your own, at three settings, over the same answers.

    python examples/own_checker.py

You learn what a checker sees and says, and that judging is a step of its own: another setting, or
an edit of ``check``, judges again and samples nothing. The same checker can be the reward of
``train_online``; ``docs/online.md`` says which checkers ship.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipeline import run
from steps.checking.boxed import boxed_answer
from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict
from steps.generation.config import SamplingConfig
from steps.judge import judge
from steps.sample_rollouts import sample_rollouts


@dataclass(frozen=True)
class Near(Checker):
    """Right if the number in the box is at most ``off`` from the row's answer."""

    name: ClassVar[str] = "near"

    off: int = 0

    def check(self, answered: Answered) -> Judgement:
        """Judge one completion. No verdict is not the same as wrong: nobody is to learn from it."""
        if answered.answer is None:
            return no_verdict("the row has no answer")
        found = boxed_answer(answered.text)
        if found is None or not found.isdecimal():
            return judged(False, "no number in a box")
        return judged(abs(int(found) - int(answered.answer)) <= self.off, f"{found} was said")


if __name__ == "__main__":
    # Imported here: above, what these modules run would be part of the checker's code.
    from sums import model, questions

    drawing = SamplingConfig(max_new_tokens=16, temperature=1.0, num_completions=8)
    drawn = sample_rollouts(questions, model, drawing)
    made = run({f"off by {off}": judge(drawn, Near(off)) for off in (0, 1, 2)})
    table = made["off by 1"].load("rollouts-00000.parquet")
    print(table.select(["row", "verdict", "reason"]).to_pandas().head(8).to_string())
