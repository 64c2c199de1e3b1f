"""Episodes of several turns: an environment replies while the policy writes on elsewhere.

    engine ── turn ──► asked ──► processes that can be killed ──► tokens, or how it ended ──► engine

A thread waits for the processes, so that slots go on with other completions meanwhile. What is
replied depends on an episode's own turns, and never on when it is asked for.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steps.checking.judges import Judges
from steps.checking.verdicts import Judgement, Verdict, judged, no_verdict, reward_of
from steps.data.rows.rows import PromptRow
from steps.environments.environment import Observation, Turn, turns_of
from steps.environments.playing import Episode, Over, Played
from steps.generation.engine import Ended, Finish, Place, Reply
from steps.generation.sampling import decoded
from steps.online.environment_tokens import Observed
from steps.online.rollouts import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Judged = list[tuple[Place, Episode, Judgement]]


@dataclass(frozen=True)
class World:
    """What episodes are played in.

    judges: have a `Playing` as their checker.
    rows: the prompts, by their ids.
    """

    judges: Judges
    rows: Mapping[str, PromptRow]
    tokenizer: "PreTrainedTokenizerBase"

    def episodes(self) -> "Episodes":
        """Episodes that none has begun."""
        return Episodes(self)


class Episodes:
    """The `Replies` of an environment to the completions of one call of an engine, and what it says
    of those that are over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._observed = Observed(world.tokenizer)
        self._played: dict[Place, Played] = {}
        self._asked: list[tuple[Place, Episode]] = []
        self._replying: Future[Judged] | None = None
        self._thread = ThreadPoolExecutor(1, "environment")
        self._over: dict[Place, Judgement] = {}

    def ask(self, ended: Ended) -> None:
        """As `Replies.ask`."""
        row = self._world.rows[ended.request.row]
        ids = turns_of(ended.ids, ended.scored)[-1]
        said = decoded(self._world.tokenizer, ids)
        episode = Episode(
            said, row.answer, row.prompt,
            row=row.row, k=ended.request.k, played=self._played.get(ended.place, ()), ids=ids,
        )  # fmt: skip
        self._asked.append((ended.place, episode))

    def given(self, wait: bool) -> Sequence[tuple[Place, Reply]]:
        """As `Replies.given`.

        Raises:
            JudgeError: no process can be started.
        """
        if self._replying is None and self._asked:
            self._replying = self._thread.submit(self._reply_to, self._asked)
            self._asked = []
        if self._replying is None or not (wait or self._replying.done()):
            return ()
        replies, self._replying = self._replying.result(), None
        return [(place, self._taken(place, episode, said)) for place, episode, said in replies]

    def of(self, rollout: Rollout) -> Rollout:
        """A completion with what the environment says of it: right or wrong, where it judges for
        itself; that it has no verdict, where it failed; that it is wrong, where it was cut."""
        place = rollout.row, rollout.k
        said = self._over.pop(place, None)
        self._played.pop(place, None)
        if rollout.finish is Finish.length:
            said = judged(False, "cut at max_new_tokens")
        if said is None:
            return rollout
        rewards = {self._world.judges.name: reward_of(said)}
        return replace(rollout, verdict=said.verdict, reason=said.reason or None, rewards=rewards)

    def close(self) -> None:
        """Waits for replies that nobody takes any more."""
        self._thread.shutdown()

    def _reply_to(self, asked: Sequence[tuple[Place, Episode]]) -> Judged:
        replies = self._world.judges.judge([episode for _, episode in asked])
        pairs = zip(asked, replies, strict=True)
        return [(place, episode, reply) for (place, episode), reply in pairs]

    def _taken(self, place: Place, episode: Episode, reply: Judgement) -> Reply:
        """What is replied, as the engine takes it."""
        if isinstance(reply, Observation):
            try:
                ids = self._observed.ids(reply, self._world.rows[episode.row])
            except ValueError as error:
                reply = no_verdict(str(error))
            else:
                self._played[place] = (*episode.played, (Turn(episode.ids, episode.text), reply))
                return ids
        if isinstance(reply, Over):
            return Finish.stop
        self._over[place] = reply
        return Finish.error if reply.verdict is Verdict.none else Finish.stop
