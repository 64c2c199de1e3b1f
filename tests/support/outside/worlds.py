"""Environments and checkers of the tests. Every process that runs one imports this module, which is
why it imports little."""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, judged, no_verdict
from steps.environments.environment import Environment, Graded, Observation, Turn, says


@dataclass(frozen=True)
class Counter(Environment):
    """Counts turns aloud, and does as the turn's text says."""

    name: ClassVar[str] = "counter"

    def reset(self, task: Answered, k: int) -> list[int]:
        return [100 * k]

    def step(self, state: list[int], turn: Turn) -> Observation | Judgement | None:
        state[0] += 1
        match turn.text:
            case "done":
                return None
            case "right":
                return judged(True)
            case "half":
                return Graded(judged(False).verdict, grade=0.5)
            case "raise":
                raise KeyError("no such thing")
            case "die":
                os._exit(7)
            case "moody":
                return says(str(os.getpid()))
            case "nothing":
                return no_verdict("it says nothing")
        return says(str(state[0]))


@dataclass(frozen=True)
class Share(Judgement):
    """A verdict whose reward is a fraction."""

    share: Fraction = Fraction(0)

    @property
    def reward(self) -> Any:
        return self.share


@dataclass(frozen=True)
class Echo(Environment):
    """Repeats a turn's first tokens, and after a few turns is content if most tokens were even. It
    ends its process at a turn that begins with the token `fails`."""

    name: ClassVar[str] = "echo"

    turns: int = 3
    fails: int = -1

    def reset(self, task: Answered, k: int) -> list[Turn]:
        return []

    def step(self, state: list[Turn], turn: Turn) -> Observation | Judgement | None:
        state.append(turn)
        if turn.ids[0] == self.fails:
            os._exit(1)
        if len(state) < self.turns:
            return Observation(ids=(*turn.ids[:2], 1))
        even = [token % 2 == 0 for turn in state for token in turn.ids]
        share = Fraction(sum(even), len(even))
        return Share(judged(share > 0.5).verdict, share=Fraction(1) if share > 0.5 else share)


@dataclass(frozen=True)
class Said(Checker):
    """Judges by the number of words, and says what it was given."""

    name: ClassVar[str] = "said"

    def check(self, answered: Answered) -> Judgement:
        return judged(len(answered.text.split()) <= 1, answered.text)


@dataclass(frozen=True)
class ShortWords(Checker):
    """Right if there is an even number of words; no verdict on an empty text."""

    name: ClassVar[str] = "short words"

    def check(self, answered: Answered) -> Judgement:
        words = answered.text.split()
        return judged(len(words) % 2 == 0) if words else no_verdict("there is no word")


@dataclass(frozen=True)
class Halves(Checker):
    """Gives every text half of the reward, under the name of another checker."""

    name = "exact"

    def check(self, answered: Answered) -> Judgement:
        return Share(Verdict.right, share=Fraction(1, 2))


@dataclass(frozen=True)
class OddLength(Checker):
    """Right if the text has an odd number of words; raises for an empty one."""

    name = "odd_length"

    def check(self, answered: Answered) -> Judgement:
        return judged(len(answered.text.split()) % 2 == 1 // len(answered.text[:1]))
