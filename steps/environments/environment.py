"""What an environment is: it answers the turns of a policy, until an episode is over.

    reset ──► state ─┐
    turn ──► step(state, turn) ──► Observation   what the policy reads before its next turn
                                   Judgement     the episode is over: right, wrong or no verdict
                                   None          it is over, and the checker judges the last turn

What an environment says must follow from its settings, the task and the turns alone. Then an
episode can be played again up to any turn, in another process or after a kill.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.checking.verdicts import Answered, Judgement, Verdict
from steps.shared.checks import require


@dataclass(frozen=True)
class Turn:
    """What a policy wrote until it ended its turn.

    ids: its tokens, with the one that ended the turn.
    text: what they say, without special tokens.
    """

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Observation(Judgement):
    """What a policy reads before its next turn; there is no verdict yet.

    messages: with `role` and `content`; the chat template renders them, with all that it writes
        between two turns of the assistant.
    ids: in their place, the tokens themselves, up to the next turn's first.

    Raises ValueError unless there is one of the two.
    """

    verdict: Verdict = Verdict.none
    messages: tuple[Mapping[str, Any], ...] = ()
    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.ids):
            raise ValueError("an observation has either messages or ids; give one of the two")


@dataclass(frozen=True)
class Graded(Judgement):
    """A verdict with a reward of its own, such as the share of a task that was done.

    Raises ValueError for a grade that is not finite.
    """

    grade: float = 0.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.grade), "grade must be finite", self.grade)

    @property
    def reward(self) -> float | None:
        """The grade; nothing for no verdict."""
        return None if self.verdict is Verdict.none else self.grade


@dataclass(frozen=True)
class Environment:
    """A rule that answers turns: frozen settings and two functions.

    It is defined at the top of a module, as it is handed to processes of its own. `name` is its
    name in a config, and that of its reward.
    """

    name: ClassVar[str]

    def reset(self, task: Answered, k: int) -> Any:
        """The state in which an episode begins: completion number `k` of a row.

        Args:
            task: the row's `prompt` and `answer`; its `text` is empty.
        """
        return None

    def step(self, state: Any, turn: Turn) -> Observation | Judgement | None:
        """Answers a turn. It may change the state, take long, raise or end its process: it runs in
        one that can be killed (``steps.checking.judges``)."""
        raise NotImplementedError


def says(content: str, role: str = "tool") -> Observation:
    """An observation of one message."""
    return Observation(messages=({"role": role, "content": content},))


def turns_of(ids: Sequence[int], scored: Sequence[bool]) -> list[tuple[int, ...]]:
    """The stretches of tokens that a policy drew, between those that it did not."""
    turns: list[list[int]] = [[]]
    for token, is_drawn in zip(ids, scored, strict=True):
        if is_drawn:
            turns[-1].append(token)
        elif turns[-1]:
            turns.append([])
    return [tuple(turn) for turn in turns if turn]
