"""The falsifiable claim: a fixed set of prompts is learnt to the optimum, and noise is not."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from online_bed import ASKED, EAGER, rl, run
from tiny_models import log_of, model_folder

from steps.online.methods.policy_gradient import Advantage, PolicyGradient
from steps.online.rollouts import Rollout

OPTIMUM = 1.0


def third(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The share of tokens that leave the remainder of three that the prompt's number leaves."""

    def reward(rollout: Rollout) -> float:
        wanted = int(rollout.row.removeprefix("row-")) % 3
        return sum(token % 3 == wanted for token in rollout.ids) / len(rollout.ids)

    return [replace(rollout, rewards={"third": reward(rollout)}) for rollout in rollouts]


def dealt_out_anew(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same rewards, each to some other completion of the iteration."""
    judged = third(rollouts)
    rewards = [rollout.rewards for rollout in judged]
    random.Random(rollouts[0].iteration).shuffle(rewards)
    return [replace(r, rewards=reward) for r, reward in zip(judged, rewards, strict=True)]


SHOWS, REACHES = 20, 50
"""After so many iterations the signal shows, and the optimum is reached."""


@pytest.mark.parametrize(
    ("judge", "iterations"),
    [
        pytest.param(third, REACHES, marks=pytest.mark.slow),
        (dealt_out_anew, SHOWS),
        pytest.param(dealt_out_anew, REACHES, marks=pytest.mark.attack),
    ],
)
def test_the_optimum_is_reached_with_rewards_and_not_with_shuffled_ones(
    tmp_path: Path, judge, iterations: int
) -> None:
    policy = model_folder(tmp_path / "policy")
    config = rl(
        method=PolicyGradient(advantage=Advantage.group_std),
        prompts=len(ASKED.prompts),
        completions=16,
        max_new_tokens=4,
        slots=160,
        tokens_per_forward=512,
        optimizer=EAGER,
    )
    run(policy, tmp_path, config, iterations, judge=judge)
    rewards = [step["reward"] for step in log_of(tmp_path / "out")]
    at_first, at_last, gained = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5, 0.1
    if judge is third:
        assert at_first < 0.6 * OPTIMUM
        assert sum(rewards[SHOWS - 5 : SHOWS]) / 5 > at_first + 2 * gained
        assert at_last >= 0.99 * OPTIMUM
    else:
        assert at_last < at_first + gained
