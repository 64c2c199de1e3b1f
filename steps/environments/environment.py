"""The protocol of environments: one answers the turns of a policy until the episode ends.

    reset ──► state ─┐
    turn ──► step(state, turn) ──► Observation   what the policy reads before its next turn
                                   Judgement     the episode is over: right, wrong or no verdict
                                   None          it is over, and the checker judges the last turn

Its replies must depend only on its settings, the task and the turns. Then another process can play
an episode again up to any turn, for example after a kill.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.checking.verdicts import Answered, Judgement, Verdict
from steps.shared.checks import ClassName, require


@dataclass(frozen=True)
class Turn:
    """One turn of a policy.

    ids: its tokens, with the one that ended the turn.
    text: the decoded tokens, without special tokens.
    """

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Observation(Judgement):
    """What a policy reads before its next turn; there is no verdict yet.

    messages: each with `role` and `content`. The chat template renders them, and everything else
        that it writes between two turns of the assistant.
    ids: instead of messages, the tokens before the next turn.

    Raises ValueError unless exactly one of the two is given; TypeError for ids that are no whole
    numbers, and for messages that are no mappings.
    """

    verdict: Verdict = Verdict.none
    messages: tuple[Mapping[str, Any], ...] = ()
    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.ids):
            raise ValueError("an observation has either messages or ids; give one of the two")
        object.__setattr__(self, "ids", tuple(map(operator.index, self.ids)))
        object.__setattr__(self, "messages", tuple(map(dict, self.messages)))


@dataclass(frozen=True)
class Graded(Judgement):
    """A verdict with a reward of its own, such as the share of a task that was done.

    Raises ValueError for a grade that is not finite.
    """

    grade: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.grade), "grade must be finite", self.grade)
        object.__setattr__(self, "grade", float(self.grade))  # a tensor's number is a number too

    @property
    def reward(self) -> float | None:
        """The grade; None without a verdict."""
        return None if self.verdict is Verdict.none else self.grade


@dataclass(frozen=True)
class Environment:
    """The base class of environments: frozen settings and two functions.

    Define a subclass at the top level of a module, because other processes import it. `name` is its
    name in a config and the name of its reward.
    """

    name: ClassVar[str] = ClassName()  # type: ignore[assignment]

    def reset(self, task: Answered, k: int) -> Any:
        """The initial state of an episode, which is completion number `k` of a row.

        Args:
            task: the row's `prompt` and `answer`; its `text` is empty.
        """
        return None

    def step(self, state: Any, turn: Turn) -> Observation | Judgement | None:
        """Answer a turn.

        It may change the state. It runs in a process that can be killed
        (``steps.checking.judges``), so it may also take long, raise or crash.
        """
        raise NotImplementedError


def says(content: str, role: str = "tool") -> Observation:
    """An observation of one message."""
    return Observation(messages=({"role": role, "content": content},))


def turns_of(ids: Sequence[int], scored: Sequence[bool]) -> list[tuple[int, ...]]:
    """The runs of tokens that the policy wrote, without the tokens between them."""
    turns: list[list[int]] = [[]]
    for token, is_drawn in zip(ids, scored, strict=True):
        if is_drawn:
            turns[-1].append(token)
        elif turns[-1]:
            turns.append([])
    return [tuple(turn) for turn in turns if turn]
