"""``judge_with_reward_model``: give existing rollouts the scores of a reward model as rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipeline import Metrics, Output, step
from steps.data.tokens.tokenizing import TokenizeConfig
from steps.glue.workplace_of import at_work
from steps.kinds import Judged, RewardModel, Rollouts
from steps.reward_models.config import RewardScoring

if TYPE_CHECKING:
    from steps.data.rows.rows import PromptRow
    from steps.online.rollouts import Rollout

REWARD = "reward_model"
"""The name of the reward."""


@step(makes=Judged, estimate="steps.prices.of_training:REWARDED")
def judge_with_reward_model(
    out: Output,
    rollouts: Rollouts,
    model: RewardModel,
    config: RewardScoring = RewardScoring(),
    tokenize: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write the rollouts with a reward named ``reward_model``: the score of the completion's text
    behind its prompt. Rewards of other names and verdicts stay; the rewards of a completion add up.

    A reward model knows whole answers only. So a completion that was cut, or that the chat template
    or a limit refuses, gets no such reward.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard.

    Args:
        tokenize: how texts become tokens. It should equal the setting for the pairs that the
            reward model was trained on.
    """
    from steps.online.judging import copy_beside, read_prompts
    from steps.online.rollouts import read_rollouts, texts, write_rollouts
    from steps.reward_models.reward_scores import score_answers

    drawn = list(read_rollouts(rollouts.path))
    said = texts(rollouts.path, (rollout.last_turn for rollout in drawn))
    whole = [pair for pair in zip(drawn, said, strict=True) if not pair[0].is_cut]
    records = _records(whole, read_prompts(rollouts.path))
    with at_work(out) as place:
        scored, metrics = score_answers(records, model.path, config, tokenize, place)
    if place.ranks.is_first:
        scores = iter([score for record in scored for score in record["scores"]])
        given = [None if rollout.is_cut else next(scores) for rollout in drawn]
        write_rollouts(out.path, map(_with, drawn, given))
        copy_beside(rollouts.path, out.path)
    return {**metrics, "cut": len(drawn) - len(whole)} if metrics else {}


def _records(
    drawn: Sequence[tuple["Rollout", str]], prompts: Mapping[str, "PromptRow"]
) -> list[dict[str, Any]]:
    """As those of a ``completions.jsonl``: neighbours that answer one row are one record."""
    return [
        {**vars(prompts[row]), "completions": [text for _, text in of_row]}
        for row, of_row in groupby(drawn, key=lambda pair: pair[0].row)
    ]


def _with(rollout: "Rollout", score: float | None) -> "Rollout":
    rewards = {name: value for name, value in rollout.rewards.items() if name != REWARD}
    return replace(rollout, rewards=rewards if score is None else {**rewards, REWARD: score})
