"""Verdicts on rollouts, and on a whole recording.

What was drawn is decoded, judged, and written again with the verdicts. Nothing is sampled, so
another checker judges an old recording in the time that checking takes. Of an episode of several
turns, a checker is given the last one: what a tool said is nobody's answer.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steps.checking.config import JudgeConfig
from steps.checking.judges import Judges
from steps.checking.verdicts import (
    UNREADABLE,
    Answered,
    Checker,
    Judgement,
    Verdict,
    no_verdict,
    require_checkable,
    reward_of,
)
from steps.data.rows.parquet import iter_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import from_record
from steps.data.vocabularies import copy_tokenizer
from steps.generation.engine import Finish
from steps.online.rollouts import (
    OF_DATA,
    Rollout,
    by_row,
    read_rollouts,
    texts,
    write_rollouts,
)
from steps.shared.counts import share_of

_REASONS_TOLD = 5


def judge_recording(
    recording: Path,
    checker: Checker,
    config: JudgeConfig,
    output: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    scratch: Path | None = None,
) -> tuple[list[Rollout], list[str]]:
    """Writes a recording to another folder, with the checker's verdicts and rewards; its rollouts,
    and what is to be told of them.

    Args:
        scratch: where verdicts of a costly checker are kept, for a run that goes on.

    Raises:
        ValueError: too many completions have no verdict, or there is no completion.
    """
    drawn = read_some(recording)
    rows = read_prompts(recording)
    require_checkable(checker, {row.row: row.answer for row in rows.values()}, config.most_without)
    with Judges(
        checker, config.processes, config.time_limit, scratch, config.most_without
    ) as judges:
        said = texts(recording, (rollout.last_turn for rollout in drawn))
        rollouts = judge_rollouts(judges, drawn, said, rows, checker.name, on_progress)
    require_verdicts(rollouts, config.most_without)
    write_judged(recording, rollouts, output)
    return rollouts, replaced(drawn, checker.name)


def replaced(rollouts: Iterable[Rollout], name: str) -> list[str]:
    """A notice, if rollouts that get a reward of this name have one already."""
    if not (count := sum(name in rollout.rewards for rollout in rollouts)):
        return []
    return [
        f"{count} completions had a reward named {name} already, which was replaced: only rewards "
        "of different names add up"
    ]


def read_some(recording: Path) -> list[Rollout]:
    """The rollouts of a recording, without answers of data; raises ValueError if it has none."""
    if not (drawn := [r for r in read_rollouts(recording) if r.weights != OF_DATA]):
        raise ValueError(f"{recording} has no completions to judge; sample some")
    return drawn


def write_judged(recording: Path, judged: Iterable[Rollout], output: Path) -> None:
    """Write a recording again, with these rollouts in place of those that :func:`read_some` gives.
    Answers of data, which answer none of its prompts, stay as they are."""
    each = iter(judged)
    kept = (r if r.weights == OF_DATA else next(each) for r in read_rollouts(recording))
    write_rollouts(output, list(kept))
    copy_tokenizer(recording, output)
    for pattern in ("prompts-*.parquet", "engine.json"):
        for file in recording.glob(pattern):
            shutil.copyfile(file, output / file.name)


def read_prompts(recording: Path) -> dict[str, PromptRow]:
    """The rows that were asked, by their ids."""
    files = sorted(recording.glob("prompts-*.parquet"))
    rows = (from_record(PromptRow, record) for file in files for record in iter_rows(file))
    return {row.row: row for row in rows}


def judge_rollouts(
    judges: Judges,
    rollouts: Sequence[Rollout],
    said: Sequence[str],
    rows: Mapping[str, PromptRow],
    name: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Rollout]:
    """The rollouts with their verdicts, and with the reward `name`, None without a verdict.

    Args:
        said: the text of each rollout.
        rows: the prompts, by their ids.

    Raises:
        ValueError: a rollout answers none of `rows`.
    """
    require_prompts(rollouts, rows)
    asked = [
        Answered(text, rows[rollout.row].answer, rows[rollout.row].prompt)
        for rollout, text in zip(rollouts, said, strict=True)
    ]
    judgements = judges.judge(asked, on_progress)
    return [_with(*both, name) for both in zip(rollouts, judgements, strict=True)]


def require_prompts(rollouts: Iterable[Rollout], rows: Mapping[str, PromptRow]) -> None:
    """Raise ValueError if a rollout answers none of `rows`."""
    if lacking := {rollout.row for rollout in rollouts} - rows.keys():
        raise ValueError(f"there is no prompt for row {min(lacking)!r}; sample the rollouts again")


def _with(rollout: Rollout, judgement: Judgement, name: str) -> Rollout:
    if rollout.finish is Finish.error:
        judgement = no_verdict(rollout.reason or "sampling it failed")
    rewards = {**rollout.rewards, name: reward_of(judgement)}
    return replace(
        rollout, verdict=judgement.verdict, reason=judgement.reason or None, rewards=rewards
    )


def require_verdicts(rollouts: Sequence[Rollout], most_without: float) -> None:
    """Raise ValueError, with the most frequent reason, if a larger share than `most_without` of the
    rollouts has no verdict; texts that cannot be read do not count."""
    without = [
        rollout
        for rollout in rollouts
        if rollout.verdict is Verdict.none and not (rollout.reason or "").startswith(UNREADABLE)
    ]
    if len(without) > share_of(most_without, len(rollouts)):
        count, why = Counter(r.reason for r in without).most_common(1)[0][::-1]
        raise ValueError(
            f"{len(without)} of {len(rollouts)} completions have no verdict, {count} of them "
            f"because: {why}; mend the rows, the checker or the environment, or raise most_without"
        )


def right_of_prompts(rollouts: Sequence[Rollout]) -> list[list[bool]]:
    """For each prompt of each iteration, which of its completions have the verdict right."""
    of_prompts = by_row(rollouts).values()
    return [[rollout.verdict is Verdict.right for rollout in drawn] for drawn in of_prompts]


def count_verdicts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """How many there are of each verdict, and the reasons where there is none."""
    verdicts = Counter(rollout.verdict for rollout in rollouts)
    reasons = Counter(r.reason for r in rollouts if r.verdict is Verdict.none)
    return {
        "completions": len(rollouts),
        "right": verdicts[Verdict.right],
        "wrong": verdicts[Verdict.wrong],
        "no_verdict": verdicts[Verdict.none],
        "cut": sum(rollout.is_cut for rollout in rollouts),
        **({"reasons": dict(reasons.most_common(_REASONS_TOLD))} if reasons else {}),
    }
