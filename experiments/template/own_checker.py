"""A checker of your own: a rule, without a model, that decides whether a completion is right.

``judge`` uses it, and ``train_online`` uses it as a reward.
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict


@dataclass(frozen=True)
class ShortAnswer(Checker):
    """Right if the text contains the row's answer and has few words.

    Args:
        most_words: the most words of a right text.
    """

    name: ClassVar[str] = "short_answer"

    most_words: int = 12

    def check(self, answered: Answered) -> Judgement:
        """Judge one completion; the reason is for people."""
        if answered.answer is None:
            return no_verdict("the row has no answer")
        words = len(answered.text.split())
        if words > self.most_words:
            return judged(False, f"{words} words")
        return judged(answered.answer.lower() in answered.text.lower())
