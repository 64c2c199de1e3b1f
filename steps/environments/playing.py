"""Replies to turns, from the processes that judge.

A process is handed an episode with all of its turns, and plays it from `reset`; it keeps no state
from one request to the next that it could not do without. So a process may be killed at any time,
and any process may reply to any turn. Playing again also shows whether an environment gives equal
turns equal replies: where it does not, nobody learns from the episode.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from steps.checking.config import JudgeConfig
from steps.checking.judges import Judges
from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, no_verdict
from steps.environments.environment import Environment, Observation, Turn

Played = tuple[tuple[Turn, Observation], ...]
"""Earlier turns, and what was replied to each."""
_STATES_REMEMBERED = 1024


@contextmanager
def replying(environment: Environment | None, config: JudgeConfig) -> Iterator[Judges | None]:
    """Processes that reply to turns; none without an environment."""
    if environment is None:
        yield None
        return
    playing = Playing(environment.name, environment)
    with Judges(playing, config.processes, config.time_limit) as judges:
        yield judges


@dataclass(frozen=True)
class Over(Judgement):
    """An episode has ended, and whoever asks is to judge the last turn."""

    verdict: Verdict = Verdict.none


@dataclass(frozen=True, kw_only=True)
class Episode(Answered):
    """An episode up to a turn that is to be replied to; `text` is that turn's.

    played: the turns before it.
    ids: of the turn.
    """

    row: str
    k: int
    played: Played = ()
    ids: tuple[int, ...] = ()

    @property
    def turn(self) -> Turn:
        """The turn that is to be replied to."""
        return Turn(self.ids, self.text)


@dataclass(frozen=True)
class Playing(Checker):
    """An environment as something that processes judge with: it is given an `Episode`, and its
    judgement may be an `Observation`. It is called as its environment is, and is in no registry."""

    name: str  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
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
                    return no_verdict(f"turn {number + 1} was replied to in two ways: {again!r}")
        reply = self.environment.step(state, answered.turn)
        if isinstance(reply, Observation):
            _states[place] = task, (*answered.played, (answered.turn, reply)), state
            while len(_states) > _STATES_REMEMBERED:
                _states.popitem(last=False)
        return Over() if reply is None else reply


_states: OrderedDict[tuple[str, int], tuple[Answered, Played, Any]] = OrderedDict()
"""Of this process, by row and number: the state that an episode was left in, and all that it
follows from. One that is not here is made again."""
