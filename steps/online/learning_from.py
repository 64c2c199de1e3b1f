"""Convert rollouts to an iteration's experience. Completions without a reward are left out and
counted."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, islice

import torch
from torch import Tensor

from steps.environments.environment import turns_of
from steps.online.methods.experience import Experience
from steps.online.methods.grpo import has_signal
from steps.online.rollouts import OF_DATA, Rollout, by_row
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.training.metrics import StepMetrics


def experience_of(
    rollouts: Sequence[Rollout],
    longest: int,
    overlong_buffer: int | None = None,
    needs_rewards: bool = True,
) -> Experience:
    """One iteration's rollouts as the input of methods, in the same order.

    A completion's reward is the sum of its rewards by name, less what `overlong` subtracts. A
    completion that lacks one of them (its checker gave no verdict) where a method `needs_rewards`,
    or has no token that the policy sampled, is left out, and so is a prompt without any other
    completion. The sampler's logps are rounded to float32, as in a recording.
    """
    kept = partial(_teaches, needs_rewards=needs_rewards)
    rows = {row: list(filter(kept, drawn)) for (_, row), drawn in by_row(rollouts).items()}
    rows = {row: drawn for row, drawn in rows.items() if drawn}
    most = max(map(len, rows.values()), default=1)
    rewards = torch.zeros((len(rows), most), dtype=torch.float64)
    cut, unrewarded = (torch.zeros(rewards.shape, dtype=torch.bool) for _ in range(2))
    for n, drawn in enumerate(rows.values()):
        given = [r.reward - overlong(len(r.ids), longest, overlong_buffer) for r in drawn]
        rewards[n, : len(drawn)] = torch.tensor(given, dtype=torch.float64)
        cut[n, : len(drawn)] = torch.tensor([rollout.is_cut for rollout in drawn])
        unrewarded[n, : len(drawn)] = torch.tensor([not rollout.is_rewarded for rollout in drawn])
    groups = (_group(row, drawn) for row, drawn in rows.items())
    sampler = (torch.tensor(_rounded(drawn), dtype=torch.float64) for drawn in rows.values())
    rewards = rewards.masked_fill(unrewarded, 0.0)
    return Experience(
        tuple(groups), rewards, longest, tuple(sampler), cut=cut, unrewarded=unrewarded
    )


def overlong(length: int, longest: int, buffer: int | None) -> float:
    """What is subtracted from the reward of a completion of `length` tokens, replies counted. It
    rises from 0 at `longest` − `buffer` tokens to 1 at `longest` (Yu et al. 2025, DAPO, equation
    13); without a buffer it is 0."""
    if buffer is None:
        return 0.0
    return min(1.0, max(0, length - longest + buffer) / buffer)


def with_policy_logps(
    rollouts: Sequence[Rollout], policy: tuple[Tensor, ...] | None, needs_rewards: bool = True
) -> list[Rollout]:
    """The rollouts with the trainer's own logps, for those that the trainer has scored.

    Args:
        policy: as `Experience.policy` of these rollouts.
    """
    if policy is None:
        return list(rollouts)
    tokens = iter(torch.cat(policy).tolist())

    def own(rollout: Rollout) -> tuple[float, ...]:
        drawn = tuple(islice(tokens, sum(rollout.scored)))
        if len(drawn) == len(rollout.scored):
            return drawn
        rest = iter(drawn)
        return tuple(next(rest) if scored else 0.0 for scored in rollout.scored)

    return [replace(r, policy_logps=own(r)) if _teaches(r, needs_rewards) else r for r in rollouts]


def describe(rollouts: Sequence[Rollout], experience: Experience) -> StepMetrics:
    """The metrics of an iteration's rollouts, under TRL's names.

    reward, reward_std: the mean, and the mean over prompts of the standard deviation among their
        completions.
    rewards/NAME/mean, std: of one of the rewards that add up, over all completions that have it.
    frac_reward_zero_std: the share of prompts whose completions have equal rewards.
    entropy: the mean of −log q over the tokens drawn by the sampler q, in nats; its expectation is
        the entropy of q at these tokens.
    completions/mean_length, min_length, max_length: in tokens that the policy drew;
        mean_terminated_length: of those that ended by themselves; clipped_ratio: the share that did
        not; unscorable: how many have no reward.
    completions/of_data: the share that are answers of data, if there are any.
    completions/mean_turns, mean_reply_length: of episodes, where any was replied to.
    """
    lengths = [sum(rollout.scored) for rollout in rollouts]
    ended = [length for length, r in zip(lengths, rollouts, strict=True) if not r.is_cut]
    told: StepMetrics = {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        **({"completions/mean_terminated_length": sum(ended) / len(ended)} if ended else {}),
        "completions/clipped_ratio": sum(r.is_cut for r in rollouts) / len(rollouts),
        "completions/unscorable": sum(not _teaches(rollout) for rollout in rollouts),
        **_turns(rollouts),
        **_each_reward(rollouts),
    }
    drawn = [rollout for rollout in rollouts if rollout.weights != OF_DATA]
    if len(drawn) < len(rollouts):
        told["completions/of_data"] = 1 - len(drawn) / len(rollouts)
    if logps := _rounded(drawn):
        told["entropy"] = -math.fsum(logps) / len(logps)
    if not experience.groups:
        return told
    rewarded = experience.rewarded
    some = rewarded.any(dim=1)
    if not some.any():
        return told
    of_prompts = [
        rewards[there]
        for rewards, there in zip(experience.rewards[some], rewarded[some], strict=True)
    ]
    spreads = [r.std(correction=min(1, len(r) - 1)).item() for r in of_prompts]
    equal = ~has_signal(experience.rewards[some], rewarded[some])
    return {
        "reward": torch.cat(of_prompts).mean().item(),
        "reward_std": sum(spreads) / len(spreads),
        "frac_reward_zero_std": equal.double().mean().item(),
        **told,
    }


def _each_reward(rollouts: Sequence[Rollout]) -> StepMetrics:
    given: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, reward in rollout.rewards.items():
            if reward is not None:
                given.setdefault(name, []).append(reward)
    told: StepMetrics = {}
    for name, values in sorted(given.items()):
        rewards = torch.tensor(values, dtype=torch.float64)
        told[f"rewards/{name}/mean"] = rewards.mean().item()
        if len(rewards) > 1:
            told[f"rewards/{name}/std"] = rewards.std().item()
    return told


def _turns(rollouts: Sequence[Rollout]) -> StepMetrics:
    if all(all(rollout.scored) for rollout in rollouts):
        return {}
    turns = sum(len(turns_of(rollout.ids, rollout.scored)) for rollout in rollouts)
    read = sum(len(rollout.scored) - sum(rollout.scored) for rollout in rollouts)
    return {
        "completions/mean_turns": turns / len(rollouts),
        "completions/mean_reply_length": read / len(rollouts),
    }


def _teaches(rollout: Rollout, needs_rewards: bool = True) -> bool:
    return any(rollout.scored) and (rollout.is_rewarded or not needs_rewards)


def _rounded(rollouts: Sequence[Rollout]) -> list[float]:
    """The sampler's logps of all tokens that the policy drew, rounded as in a recording: a run that
    goes on reads some from there."""
    logps = [logp for r in rollouts for logp in compress(r.logps, r.scored)]
    return torch.tensor(logps, dtype=torch.float32).tolist()


def _group(row: str, drawn: Sequence[Rollout]) -> TokenGroup:
    responses = (TokenResponse(r.ids, None if all(r.scored) else r.scored) for r in drawn)
    return TokenGroup(row, row, drawn[0].prompt_ids, tuple(responses))
