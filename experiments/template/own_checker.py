"""A checker of one's own: a rule that says whether a completion is right, without a model.

It serves ``judge`` and, as a reward, ``train_online``.
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict


@dataclass(frozen=True)
class ShortAnswer(Checker):
    """Right if the row's answer is in a text of few words.

    Args:
        most_words: that a right text may have.
    """

    name: ClassVar[str] = "short_answer"

    most_words: int = 12

    def check(self, answered: Answered) -> Judgement:
        """Judge one completion; the reason is shown to people."""
        if answered.answer is None:
            return no_verdict("the row has no answer")
        words = len(answered.text.split())
        if words > self.most_words:
            return judged(False, f"{words} words")
        return judged(answered.answer.lower() in answered.text.lower())
