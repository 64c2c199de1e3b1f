"""What each method makes of an iteration's experience."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from steps.losses.dpo import Dpo
from steps.online.methods.experience import Experience, mismatch
from steps.online.methods.method import Method
from steps.online.methods.online_dpo import OnlineDpo
from steps.online.methods.policy_gradient import (
    Advantage,
    Kl,
    OffPolicy,
    Over,
    PolicyGradient,
    Ratio,
)
from steps.online.methods.raft import Raft
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of

RESPONSES = (((5, 6), (7,), (5, 6)), ((8, 9, 2), (9,)), ((4,), (3, 3), (2,)))
REWARDS = [[1.0, 0.0, 1.0], [0.5, 2.0, 0.0], [1.0, 1.0, 1.0]]


def experience() -> Experience:
    """Of three prompts: one with two right answers that are equal, one with two completions, one
    that is always right."""
    groups = tuple(
        TokenGroup(f"row-{n}", f"{n}", (1, n), tuple(map(TokenResponse, responses)))
        for n, responses in enumerate(RESPONSES)
    )
    sizes = [sum(map(len, responses)) for responses in RESPONSES]
    generator = torch.Generator().manual_seed(0)

    def logps() -> tuple[Tensor, ...]:
        flat = -torch.rand(sum(sizes), generator=generator, dtype=torch.float64) - 0.1
        return flat.split(sizes)

    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    return Experience(groups, rewards, 8, logps(), logps(), logps())


def trained(method: Method) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    objective = method.objective(experience())
    assert objective is not None
    return [(g.row, tuple(r.ids for r in g.responses)) for g in objective.groups]


def loss_of(
    method: Method, *indices: int, given: Experience | None = None
) -> tuple[float, dict[str, float]]:
    """The loss of these examples as one batch, by a policy that has not moved."""
    given = given or experience()
    objective = method.objective(given)
    assert objective is not None
    rows = [objective.groups[index].row for index in indices]
    assert given.policy is not None
    own = [given.policy[int(row.removeprefix("row-"))] for row in rows]
    logps = TokenLogps(torch.cat(own), lengths_of([objective.groups[i] for i in indices], 3))
    losses, metrics = objective.batch_loss(indices, None)(logps, torch.arange(len(indices)))
    return losses.sum().item(), {name: values.sum().item() for name, values in metrics.items()}


def test_raft_imitates_one_right_completion_of_each_prompt() -> None:
    assert trained(Raft()) == [
        ("row-0", ((5, 6),)),
        ("row-1", ((9,),)),
        ("row-2", ((4,),)),
    ]


def test_online_dpo_pairs_the_first_of_the_best_with_the_first_of_the_worst() -> None:
    method = OnlineDpo(loss=Dpo(beta=0.5))
    assert trained(method) == [("row-0", ((5, 6), (7,))), ("row-1", ((9,), (8, 9, 2)))]
    given = experience()
    assert given.reference is not None
    sums = given.sums(given.reference)
    objective = method.objective(given)
    assert objective is not None
    tokens = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)  # of (5, 6) and of (7,)
    logps = TokenLogps(tokens, torch.tensor([[2, 1]]))
    losses, _ = objective.batch_loss([0], None)(logps, torch.tensor([0]))
    margin = 0.5 * ((-3 - sums[0, 0]) - (-3 - sums[0, 1]))
    assert losses.item() == pytest.approx(-torch.nn.functional.logsigmoid(margin).item())


def test_prompts_without_signal_are_skipped_and_not_counted_or_kept_and_counted() -> None:
    skipping = PolicyGradient(over=Over.token, ratio=Ratio.none, clip_low=None, clip_high=None)
    keeping = PolicyGradient(
        over=Over.token,
        ratio=Ratio.none,
        clip_low=None,
        clip_high=None,
        skip_without_signal=False,
    )
    assert [row for row, _ in trained(skipping)] == ["row-0", "row-1"]
    assert [row for row, _ in trained(keeping)] == ["row-0", "row-1", "row-2"]
    skipped, kept = loss_of(skipping, 0, 1)[0], loss_of(keeping, 0, 1, 2)[0]
    assert skipped * 9 == pytest.approx(kept * 13)  # so many tokens each has


CUT = torch.tensor([[False, True, False], [True, True, False], [False, False, True]])
"""Of the three prompts: the wrong completion of the first, all of the second, one of the third."""


@pytest.mark.parametrize("over", Over)
def test_completions_that_were_cut_are_compared_with_and_count_nowhere_in_the_loss(
    over: Over,
) -> None:
    given = replace(experience(), cut=CUT)
    method = PolicyGradient(advantage=Advantage.group_mean, over=over, skip_without_signal=False)
    masked = replace(method, mask_cut=True)
    objective = masked.objective(given)
    assert objective is not None
    assert [group.row for group in objective.groups] == ["row-0", "row-2"]
    # At ratio 1 the loss of a token is −A. Of row-0, both right ones of 2 tokens have A = 1 − 2/3;
    # row-2 has no signal, and completions of 1 and 2 tokens that ended.
    divided = {Over.response: 2 / 4, Over.token: 4 / 7, Over.constant: 4 / (4 * 8)}[over]
    loss, metrics = loss_of(masked, 0, 1, given=given)
    assert loss == pytest.approx(-divided / 3, rel=1e-12)
    assert metrics["clip_ratio/low_mean"] == metrics["ratio/deviation"] == 0
    assert loss_of(method, 0, 1, 2, given=given) == loss_of(method, 0, 1, 2)


def test_where_everything_was_cut_there_is_nothing_to_learn() -> None:
    given = replace(experience(), cut=torch.ones(3, 3, dtype=torch.bool))
    for skip in (True, False):
        method = PolicyGradient(mask_cut=True, skip_without_signal=skip)
        assert method.objective(given) is None


def test_metrics_are_of_the_tokens_that_count() -> None:
    given = replace(experience(), cut=CUT)
    method = PolicyGradient(kl=Kl.k3, kl_weight=0.1, mask_cut=True, over=Over.token)
    assert given.policy is not None
    assert given.reference is not None
    ahead = given.policy[0] - given.reference[0]
    kept = torch.cat([ahead[:2], ahead[3:]])  # (5, 6), and behind (7,) the other (5, 6)
    assert loss_of(method, 0, given=given)[1]["kl/k1"] == pytest.approx(kept.mean().item())


def test_a_kl_penalty_in_the_reward_lowers_it_by_what_the_policy_is_ahead() -> None:
    given = experience()
    assert given.policy is not None
    assert given.reference is not None
    ahead = given.sums(given.policy) - given.sums(given.reference)
    method = PolicyGradient(advantage=Advantage.group_mean, kl=Kl.k1_in_reward, kl_weight=0.1)
    objective = method.objective(given)
    assert objective is not None
    assert len(objective.groups) == 3  # equal rewards differ in how far the policy has moved
    found = objective.batch_loss([0], None).advantages[0]  # pyright: ignore
    rewards = given.rewards[0] - 0.1 * ahead[0]
    torch.testing.assert_close(found, rewards - rewards.mean())


@pytest.mark.parametrize("how", [OffPolicy.truncate, OffPolicy.mask])
def test_off_policy_weights_are_bounded(how: OffPolicy) -> None:
    given = experience()
    assert given.policy is not None
    ratios = torch.cat([p - s for p, s in zip(given.policy[:2], given.sampler[:2], strict=True)])
    ratios = ratios.exp()
    limit = 1.3
    assert (ratios > limit).any()
    assert (ratios < 1 / limit).any()
    objective = PolicyGradient(off_policy=how, off_policy_limit=limit).objective(given)
    assert objective is not None
    weight = objective.batch_loss([0, 1], None).weight  # pyright: ignore
    inside = (ratios <= limit) & (ratios >= 1 / limit)
    if how is OffPolicy.truncate:
        assert torch.equal(weight, ratios.clamp(max=limit))
    else:
        assert torch.equal(weight, torch.where(inside, ratios, 0.0))


def test_the_mismatch_between_sampler_and_trainer_is_measured() -> None:
    sampler, policy = (torch.tensor([[-1.0, -2.0]], dtype=torch.float64) + x for x in (0.0, 0.5))
    assert mismatch((policy[0],), (policy[0],)) == {"mismatch/k3": 0, "mismatch/largest": 0}
    apart = mismatch((policy[0],), (sampler[0],))
    assert apart["mismatch/largest"] == pytest.approx(0.5)
    assert apart["mismatch/k3"] == pytest.approx(math.expm1(0.5) - 0.5)
