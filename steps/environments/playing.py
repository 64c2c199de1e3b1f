"""Runs environments in the processes that run checkers.

Each request contains an episode with all of its turns, and the process plays it from `reset`. A
remembered state only saves time. So a process may be killed at any time, and any process can reply
to any turn. Playing an episode again also shows whether equal turns get equal replies. If not, the
episode has no verdict, and nothing is trained on it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from steps.checking.config import JudgeConfig
from steps.checking.judges import Judges
from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, no_verdict
from steps.environments.environment import Environment, Observation, Turn
from steps.shared.checks import require_method

Played = tuple[tuple[Turn, Observation], ...]
"""Earlier turns, each with its reply."""
_STATES_REMEMBERED = 1024


@contextmanager
def replying(environment: Environment | None, config: JudgeConfig) -> Iterator[Judges | None]:
    """Processes that reply to turns; None without an environment.

    Raises ValueError for an environment without a method `step`, of which every episode would fail.
    """
    if environment is None:
        yield None
        return
    require_method(environment, Environment, "step")
    playing = Playing(environment.name, environment)
    with Judges(playing, config.processes, config.time_limit) as judges:
        yield judges


@dataclass(frozen=True)
class Over(Judgement):
    """The episode has ended, and the checker is to judge its last turn."""

    verdict: Verdict = Verdict.none


@dataclass(frozen=True, kw_only=True)
class Episode(Answered):
    """An episode up to a turn that needs a reply; `text` is the text of that turn.

    played: the earlier turns.
    ids: the tokens of the turn.
    """

    row: str
    k: int
    played: Played = ()
    ids: tuple[int, ...] = ()

    @property
    def turn(self) -> Turn:
        """The turn that needs a reply."""
        return Turn(self.ids, self.text)


@dataclass(frozen=True)
class Playing(Checker):
    """An environment in the form of a checker, so that the same processes can run it.

    It takes an `Episode`, and its judgement may be an `Observation`. It has the name of its
    environment, and is in no registry.
    """

    name: str = field()  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    environment: Environment

    def check(self, answered: Answered) -> Judgement:
        """The reply to the episode's last turn."""
        assert isinstance(answered, Episode)
        place, task = (answered.row, answered.k), Answered("", answered.answer, answered.prompt)
        left = _states.pop(place, None)
        if left and left[:2] == (task, answered.played):
            state = left[2]
        else:
            state = self.environment.reset(task, answered.k)
            for number, (turn, replied) in enumerate(answered.played):
                if (again := self.environment.step(state, turn)) != replied:
                    return no_verdict(f"turn {number + 1} got two different replies: {again!r}")
        reply = self.environment.step(state, answered.turn)
        if isinstance(reply, Observation):
            _states[place] = task, (*answered.played, (answered.turn, reply)), state
            while len(_states) > _STATES_REMEMBERED:
                _states.popitem(last=False)
        return Over() if reply is None else reply


_states: OrderedDict[tuple[str, int], tuple[Answered, Played, Any]] = OrderedDict()
"""The latest state of each episode of this process, by row and number, with the task and turns that
led to it. A state that is missing here is computed again."""
