"""The policy-gradient losses against the same formulas in 50 digits, and in the limits that theory
knows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import mpmath
import pytest
import torch
from made_up import LENGTHS, MadeUp, made_up
from mpmath import mp, mpf
from torch import Tensor

from steps.online.methods.grpo import PolicyBatch, scales
from steps.online.methods.policy_gradient import Kl, Over, PolicyGradient, Ratio
from steps.scoring.logps import TokenLogps

mp.dps = 50
LONGEST = 8
UNCLIPPED: dict[str, Any] = {"clip_low": None, "clip_high": None}


def batch_of(method: PolicyGradient, data: MadeUp, weighted: bool = False) -> PolicyBatch:
    return PolicyBatch(
        method,
        data.lengths,
        data.advantages,
        scales(data.lengths, method.over, LONGEST),
        data.old,
        data.reference,
        (data.old - data.sampler).exp() if weighted else None,
    )


def loss_and_gradient(
    method: PolicyGradient, data: MadeUp, weighted: bool = False
) -> tuple[float, Tensor, dict[str, float]]:
    tokens = data.policy.clone().requires_grad_()
    batch = batch_of(method, data, weighted)
    losses, metrics = batch(TokenLogps(tokens, data.lengths), torch.arange(len(data.lengths)))
    losses.sum().backward()
    assert tokens.grad is not None
    return losses.sum().item(), tokens.grad, {n: v.sum().item() for n, v in metrics.items()}


# --- the same in 50 digits ------------------------------------------------------------------------


def in_50_digits(
    method: PolicyGradient, data: MadeUp, weighted: bool
) -> tuple[Callable[[Sequence[Any]], Any], list[Any]]:
    """The loss as a function of all tokens' logps, and where it is to be evaluated."""
    old, reference, sampler = (
        [mpf(x) for x in values.tolist()] for values in (data.old, data.reference, data.sampler)
    )
    low = None if method.clip_low is None else 1 - mpf(method.clip_low)
    high = None if method.clip_high is None else 1 + mpf(method.clip_high)

    def clip(ratio: Any) -> Any:
        ratio = ratio if low is None else max(ratio, low)
        return ratio if high is None else min(ratio, high)

    def loss(policy: Sequence[Any], held: Sequence[Any]) -> Any:
        """`held` has the values of what no gradient goes through."""
        total, place = mpf(0), 0
        flat = [length for group in LENGTHS for length in group]
        for response, length in enumerate(flat):
            advantage = mpf(data.advantages.flatten()[response].item())
            span = range(place, place + length)
            mean = sum((policy[t] - old[t] for t in span), mpf(0)) / length
            scale = {
                Over.response: mpf(1) / (len(flat) * length),
                Over.token: mpf(1) / sum(flat),
                Over.constant: mpf(1) / (len(flat) * LONGEST),
            }[method.over]
            for t in span:
                ratio = mpmath.exp(policy[t] - old[t])
                own = mpmath.exp(mean) if method.ratio is Ratio.sequence else ratio
                match method.ratio:
                    case Ratio.none:
                        gain = advantage * policy[t]
                    case Ratio.detached:
                        gain = clip(mpmath.exp(held[t] - old[t])) * advantage * policy[t]
                    case _:
                        gain = min(own * advantage, clip(own) * advantage)
                term = -gain * (mpmath.exp(old[t] - sampler[t]) if weighted else 1)
                behind = reference[t] - policy[t]
                k3 = mpmath.exp(behind) - behind - 1
                if method.kl is Kl.k3:
                    term += mpf(method.kl_weight) * k3
                elif method.kl is Kl.k3_weighted:
                    term += mpf(method.kl_weight) * ratio * k3
                total += scale * term
            place += length
        return total

    at = [mpf(x) for x in data.policy.tolist()]
    return (lambda policy: loss(policy, at)), at


CLIPPED: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
KLS = (Kl.none, Kl.k3, Kl.k3_weighted)
GSPO = (Ratio.sequence, Over.response, Kl.none)
METHODS = [
    pytest.param(
        PolicyGradient(
            ratio=ratio,
            over=over,
            kl=kl,
            kl_weight=0.0 if kl is Kl.none else 0.3,
            **(UNCLIPPED if ratio is Ratio.none else CLIPPED),
        ),
        marks=()
        if (row + column + depth) % 3 == 0 or (ratio, over, kl) == GSPO
        else pytest.mark.attack,
        id=f"{ratio}-{over}-{kl}",
    )
    for (row, ratio), (column, over), (depth, kl) in product(
        enumerate(Ratio), enumerate(Over), enumerate(KLS)
    )
]
"""A third of all, in which every two settings meet, and GSPO; the others are for long searches."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_50_digits(method: PolicyGradient, weighted: bool) -> None:
    data = made_up()
    found, gradient, _ = loss_and_gradient(method, data, weighted)
    loss, at = in_50_digits(method, data, weighted)
    assert found == pytest.approx(float(loss(at)), rel=1e-10, abs=1e-13)
    for t, value in enumerate(gradient.tolist()):

        def along(x: Any, t: int = t) -> Any:
            return loss([*at[:t], x, *at[t + 1 :]])

        assert value == pytest.approx(float(mpmath.diff(along, at[t])), rel=1e-10, abs=1e-12)


def test_the_made_up_policy_is_clipped_on_both_sides() -> None:
    """Without which the comparisons above would say nothing of clipping."""
    for ratio in (Ratio.token, Ratio.detached):
        _, _, metrics = loss_and_gradient(PolicyGradient(ratio=ratio), made_up())
        assert metrics["clip_ratio/low_mean"] > 0
        assert metrics["clip_ratio/high_mean"] > 0


# --- limits ---------------------------------------------------------------------------------------


def test_the_loss_does_not_depend_on_how_a_batch_is_cut_into_forwards() -> None:
    data = made_up()
    method = PolicyGradient(kl=Kl.k3_weighted, kl_weight=0.1, ratio=Ratio.sequence)
    batch = batch_of(method, data, weighted=True)
    whole, metrics = batch(TokenLogps(data.policy, data.lengths), torch.tensor([0, 1]))
    cut = int(data.lengths[0].sum())
    parts = [
        batch(TokenLogps(tokens, data.lengths[[group]]), torch.tensor([group]))
        for group, tokens in ((1, data.policy[cut:]), (0, data.policy[:cut]))
    ]
    assert whole.tolist() == [parts[1][0].item(), parts[0][0].item()]
    for name, values in metrics.items():
        assert values.tolist() == [parts[1][1][name].item(), parts[0][1][name].item()]


def test_a_completion_that_is_left_out_changes_nothing_for_the_others() -> None:
    data = made_up()
    padded = torch.nn.functional.pad(data.lengths, (0, 1))
    wider = replace(
        data, lengths=padded, advantages=torch.nn.functional.pad(data.advantages, (0, 1), value=9.0)
    )
    for over in Over:
        method = PolicyGradient(ratio=Ratio.sequence, over=over, kl=Kl.k3, kl_weight=0.2)
        narrow, wide = (loss_and_gradient(method, one) for one in (data, wider))
        assert narrow[0] == wide[0]
        assert torch.equal(narrow[1], wide[1])


@pytest.mark.parametrize("ratio", Ratio)
def test_tokens_of_weight_0_are_counted_as_clipped_and_change_nothing_else(ratio: Ratio) -> None:
    method = PolicyGradient(ratio=ratio, **(UNCLIPPED if ratio is Ratio.none else CLIPPED))
    data = made_up()
    masked = torch.arange(len(data.old)) % 3 == 0
    unmasked = batch_of(method, data)

    def found(policy: Tensor, **kl: Any) -> tuple[Tensor, Tensor, dict[str, float]]:
        batch = replace(unmasked, weight=(~masked).double(), method=replace(method, **kl))
        tokens = policy.clone().requires_grad_()
        losses, metrics = batch(TokenLogps(tokens, data.lengths), torch.arange(len(data.lengths)))
        losses.sum().backward()
        assert tokens.grad is not None
        return losses, tokens.grad, {n: v.sum().item() for n, v in metrics.items()}

    _, gradient, metrics = found(data.policy)
    if ratio is not Ratio.sequence:  # in which every token bears on the ratio of all
        assert not gradient[masked].any()
    _, counted = unmasked(TokenLogps(data.policy, data.lengths), torch.arange(len(data.lengths)))
    assert metrics == {n: v.sum().item() for n, v in counted.items()}
    for kl in KLS:
        losses, gradient, metrics = found(
            data.policy.masked_fill(masked, -torch.inf), kl=kl, kl_weight=0.3 * (kl is not Kl.none)
        )
        assert losses.isfinite().all()
        assert gradient.isfinite().all()
        assert not gradient[masked].any()
        assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("kl", [Kl.k3, Kl.k3_weighted])
def test_tokens_that_do_not_count_may_have_any_logps(kl: Kl) -> None:
    """Of completions that were cut, with ``mask_cut``: infinity times 0 was not a number."""
    data = made_up()
    whole = batch_of(PolicyGradient(kl=kl, kl_weight=0.3), data)
    batch = replace(whole, scale=torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]).double())
    cut = torch.zeros(len(data.old), dtype=torch.bool)
    cut[: LENGTHS[0][0]] = cut[-LENGTHS[1][2] :] = True

    def found(policy: Tensor) -> list[Tensor]:
        tokens = policy.clone().requires_grad_()
        losses, metrics = batch(TokenLogps(tokens, data.lengths), torch.arange(len(data.lengths)))
        losses.sum().backward()
        assert tokens.grad is not None
        return [losses, tokens.grad, *metrics.values()]

    expected = found(data.policy)
    for far in (-torch.inf, -1e4):
        changed = found(data.policy.masked_fill(cut, far))
        assert all(map(torch.equal, changed, expected))


def test_the_unclipped_kl_penalty_weighted_by_the_ratio_has_the_gradient_of_the_reverse_kl() -> (
    None
):
    """Over all outcomes of one token, weighted as the old policy draws them: β ∇ KL(π ‖ π_ref)."""
    generator = torch.Generator().manual_seed(3)
    logits, shifted, reference = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    old = (logits + 0.3 * shifted).log_softmax(0)
    reference = reference.log_softmax(0)
    free = logits.clone().requires_grad_()
    policy = free.log_softmax(0)
    method = PolicyGradient(kl=Kl.k3_weighted, kl_weight=1.0, over=Over.token, **UNCLIPPED)
    lengths = torch.ones((5, 1), dtype=torch.int64)
    nothing = torch.zeros((5, 1), dtype=torch.float64)
    batch = PolicyBatch(method, lengths, nothing, old.exp()[:, None], old, reference, None)
    batch(TokenLogps(policy, lengths), torch.arange(5))[0].sum().backward()
    direct = logits.clone().requires_grad_()
    policy = direct.log_softmax(0)
    (policy.exp() * (policy - reference)).sum().backward()
    torch.testing.assert_close(free.grad, direct.grad, rtol=1e-12, atol=1e-15)


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"clip_high": 0.0}, "clip_high must be above 0, or null"),
        ({"ratio": "none"}, "clip_low must be null: with ratio=none nothing is clipped"),
        ({"kl": "k3"}, "kl_weight must be above 0"),
        ({"kl_weight": 0.1}, "kl_weight must be 0"),
        ({"off_policy_limit": 1.0}, "off_policy_limit must be above 1"),
        ({"advantage": "best"}, "advantage must be one of group_mean, group_std, leave_one_out"),
    ],
)
def test_a_setting_that_would_mean_nothing_is_refused(settings: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PolicyGradient(**settings)


@pytest.mark.parametrize("ratio", [Ratio.token, Ratio.sequence, Ratio.detached])
def test_a_ratio_beyond_all_numbers_is_clipped_and_has_no_gradient(ratio: Ratio) -> None:
    data = made_up()
    data.old[:8] = -1e4
    data.advantages[0, :2] = torch.tensor([1.0, 0.0])
    require_50_digits(PolicyGradient(ratio=ratio), data)


def test_a_policy_far_below_its_reference_has_a_weighted_kl() -> None:
    data = made_up()
    data.policy[8:10], data.reference[8:10] = -1e4, 0.0
    require_50_digits(PolicyGradient(kl=Kl.k3_weighted, kl_weight=0.3), data)


def require_50_digits(method: PolicyGradient, data: MadeUp) -> None:
    found, gradient, _ = loss_and_gradient(method, data)
    loss, at = in_50_digits(method, data, weighted=False)
    assert found == pytest.approx(float(loss(at)), rel=1e-10)
    assert gradient.isfinite().all()
