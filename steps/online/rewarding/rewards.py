"""Who gives completions their rewards: a checker, a reward model, or both.

Rewards have names, and those of a completion add up. The reward of one that cannot judge the
completion is None, and nothing learns from the completion then: a part of a sum cannot be compared
with the whole sums of others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from steps.checking.config import JudgeConfig
from steps.checking.judges import Judges
from steps.checking.verdicts import Checker, require_checkable
from steps.data.rows.rows import PromptRow
from steps.generation.engine import Finish
from steps.online.rewarding.judging import (
    judge_rollouts,
    read_prompts,
    require_prompts,
    require_verdicts,
)
from steps.online.rollouts import Rollout

Rows = Mapping[str, PromptRow]
"""The prompts, by their ids."""
Reward = Callable[[Sequence[Rollout], Sequence[str], Rows], list[Rollout]]
"""Gives rollouts their rewards; it gets the rollouts, the text of each, and the prompts."""
Score = Callable[[Sequence[Mapping[str, Any]]], Sequence[Sequence[float | None]]]
"""The scores of a reward model: for each record of a ``completions.jsonl``, those of its
completions; None for one that cannot be scored."""


@contextmanager
def checking(
    checker: Checker, config: JudgeConfig, scratch: Path, prompts: Path | None = None
) -> Iterator[Reward]:
    """A checker's verdicts and rewards for the rollouts that have no verdict yet, while the block
    runs; an environment may have given some verdicts.

    The reward raises ValueError if a larger share than `config.most_without` has no verdict.

    Args:
        scratch: where verdicts of a costly checker are kept.
        prompts: a folder of prompts that only the checker judges.

    Raises:
        ValueError: the checker finds nothing right for too many of `prompts`.
    """
    if prompts is not None:
        answers = {row.row: row.answer for row in read_prompts(prompts).values()}
        require_checkable(checker, answers, config.most_without)
    kept, most_without = scratch / "verdicts", config.most_without
    judges = Judges(checker, config.processes, config.time_limit, kept, most_without)

    def reward(rollouts: Sequence[Rollout], said: Sequence[str], rows: Rows) -> list[Rollout]:
        pairs = list(zip(rollouts, said, strict=True))
        unjudged = [pair for pair in pairs if pair[0].verdict is None]
        drawn, texts = [pair[0] for pair in unjudged], [pair[1] for pair in unjudged]
        judged = iter(judge_rollouts(judges, drawn, texts, rows, judges.name))
        every = [next(judged) if r.verdict is None else r for r in rollouts]
        require_verdicts(every, most_without)
        return every

    with judges:
        yield reward


@contextmanager
def unrewarded() -> Iterator[Reward]:
    """No rewards beside those of an environment."""
    yield lambda rollouts, said, rows: list(rollouts)


def by_model(score: Score, of_cut: float | None, name: str) -> Reward:
    """A reward model's score of the text behind its prompt, as the reward `name`.

    Args:
        of_cut: the reward of a completion that was cut.
    """

    def reward(rollouts: Sequence[Rollout], said: Sequence[str], rows: Rows) -> list[Rollout]:
        require_prompts(rollouts, rows)
        pairs = zip(rollouts, said, strict=True)
        whole = [(rollout, text) for rollout, text in pairs if not rollout.is_cut]
        records = _records(whole, rows)
        scores = iter([s for of_row in (score(records) if records else ()) for s in of_row])
        others = {Finish.length: of_cut, Finish.error: None}
        given = [others[r.finish] if r.is_cut else next(scores) for r in rollouts]
        return [
            replace(rollout, rewards={**rollout.rewards, name: score})
            for rollout, score in zip(rollouts, given, strict=True)
        ]

    return reward


def one_after_the_other(rewards: Sequence[Reward]) -> Reward:
    """Rewards of several, which add up."""

    def reward(rollouts: Sequence[Rollout], said: Sequence[str], rows: Rows) -> list[Rollout]:
        found = list(rollouts)
        for give in rewards:
            found = give(found, said, rows)
        return found

    return reward


def _records(whole: Sequence[tuple[Rollout, str]], rows: Rows) -> list[dict[str, Any]]:
    """Records of a ``completions.jsonl``: neighbours that answer one row are one record."""
    return [
        {**vars(rows[row]), "completions": [text for _, text in of_row]}
        for row, of_row in groupby(whole, key=lambda pair: pair[0].row)
    ]
