"""What a checker is, and what it says of a completion: right, wrong, or nothing.

*No verdict* is a third answer: a checker that hangs, dies or cannot read the right answer has not
found the completion wrong. Who trains on verdicts leaves such completions out, and counts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class Verdict(StrEnum):
    """Of a completion."""

    right = "right"
    wrong = "wrong"
    none = "none"


@dataclass(frozen=True)
class Judgement:
    """A verdict, and why: a sentence for people, and the reason where there is no verdict."""

    verdict: Verdict
    reason: str = ""

    @property
    def reward(self) -> float | None:
        """1 for right, 0 for wrong, nothing for no verdict."""
        return None if self.verdict is Verdict.none else float(self.verdict is Verdict.right)


@dataclass(frozen=True)
class Answered:
    """A completion as a checker sees it.

    text: what was written, without special tokens.
    answer: the right answer, as the prompt's row has it; None if it has none.
    prompt: the conversation before it; messages with `role` and `content`.
    """

    text: str
    answer: str | None = None
    prompt: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Checker:
    """A rule that judges completions: frozen settings and a function.

    It is defined at the top of a module, as it is handed to processes of its own. `name` is its
    name in a config, and that of its reward. What `is_costly` is not asked twice: its verdicts are
    kept, so that an interrupted run pays for the rest only.
    """

    name: ClassVar[str]
    is_costly: ClassVar[bool] = False

    def check(self, answered: Answered) -> Judgement:
        """Judges one completion. It may take long, hang, raise or end its process: it runs in one
        that can be killed (``judges``)."""
        raise NotImplementedError


def judged(is_right: bool, reason: str = "") -> Judgement:
    """Right or wrong."""
    return Judgement(Verdict.right if is_right else Verdict.wrong, reason)


def no_verdict(reason: str) -> Judgement:
    """Neither, and why."""
    return Judgement(Verdict.none, reason)
