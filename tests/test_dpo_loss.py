"""The DPO loss as a function of four numbers a pair."""

import math

import pytest
import torch
from torch import Tensor

from steps.training.config import DpoLoss
from steps.training.losses.dpo import dpo_loss, dpo_metrics


def four_logps(pairs: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the policy (chosen, rejected), then of the reference."""
    generator = torch.Generator().manual_seed(seed)
    logps = -20 * torch.rand((4, pairs), generator=generator, dtype=torch.float64) - 1
    return logps[0], logps[1], logps[2], logps[3]


def test_is_exactly_ln_2_when_the_policy_is_the_reference() -> None:
    chosen, rejected, *_ = four_logps()
    for smoothing in (0.0, 0.1):
        losses, chosen_rewards, rejected_rewards = dpo_loss(
            chosen, rejected, chosen, rejected, DpoLoss(label_smoothing=smoothing)
        )
        torch.testing.assert_close(losses, torch.full_like(losses, math.log(2)), rtol=1e-15, atol=0)
        assert not chosen_rewards.any()
        assert not rejected_rewards.any()


def test_equals_the_paper_s_formula() -> None:
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = four_logps(1)
    ratio_chosen = policy_chosen.item() - reference_chosen.item()
    ratio_rejected = policy_rejected.item() - reference_rejected.item()
    margin = 0.3 * ratio_chosen - 0.3 * ratio_rejected
    right, wrong = (-math.log(1 / (1 + math.exp(-m))) for m in (margin, -margin))
    losses, *rewards = dpo_loss(*four_logps(1), DpoLoss(beta=0.3, label_smoothing=0.2))
    assert losses.item() == pytest.approx(0.8 * right + 0.2 * wrong, rel=1e-12)
    assert [r.item() for r in rewards] == pytest.approx([0.3 * ratio_chosen, 0.3 * ratio_rejected])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_equals_finite_differences(smoothing: float) -> None:
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = four_logps()
    config = DpoLoss(beta=0.5, label_smoothing=smoothing)

    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        return dpo_loss(chosen, rejected, reference_chosen, reference_rejected, config)[0]

    inputs = (policy_chosen.requires_grad_(), policy_rejected.requires_grad_())
    assert torch.autograd.gradcheck(losses, inputs)


def test_swapping_chosen_and_rejected_negates_the_margin() -> None:
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = four_logps()
    config = DpoLoss()
    _, *rewards = dpo_loss(
        policy_chosen, policy_rejected, reference_chosen, reference_rejected, config
    )
    _, *swapped = dpo_loss(
        policy_rejected, policy_chosen, reference_rejected, reference_chosen, config
    )
    assert torch.equal(rewards[0] - rewards[1], -(swapped[0] - swapped[1]))


def test_the_gradient_vanishes_with_beta() -> None:
    norms = []
    for beta in (1e-1, 1e-4, 1e-7):
        policy_chosen, policy_rejected, reference_chosen, reference_rejected = four_logps()
        policy_chosen.requires_grad_()
        losses, *_ = dpo_loss(
            policy_chosen, policy_rejected, reference_chosen, reference_rejected, DpoLoss(beta)
        )
        losses.sum().backward()
        assert policy_chosen.grad is not None
        norms.append(policy_chosen.grad.norm().item())
    assert norms[1] < 1e-2 * norms[0]
    assert norms[2] < 1e-6


def test_the_gradient_prefers_the_chosen_response() -> None:
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = four_logps()
    policy_chosen.requires_grad_()
    policy_rejected.requires_grad_()
    losses, *_ = dpo_loss(
        policy_chosen, policy_rejected, reference_chosen, reference_rejected, DpoLoss()
    )
    losses.sum().backward()
    assert policy_chosen.grad is not None
    assert policy_rejected.grad is not None
    assert (policy_chosen.grad < 0).all()  # descent raises the chosen logps
    assert torch.equal(policy_rejected.grad, -policy_chosen.grad)


def test_a_tie_is_not_counted_as_accurate() -> None:
    logps, rewards = torch.zeros(3), torch.tensor([1.0, 0.0, -1.0])
    metrics = dpo_metrics(logps, logps, rewards, torch.zeros(3))
    assert metrics["rewards/accuracies"].tolist() == [1, 0, 0]
    assert metrics["rewards/margins"].tolist() == [1, 0, -1]


@pytest.mark.parametrize("settings", [{"beta": 0.0}, {"label_smoothing": 0.5}])
def test_settings_without_a_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        DpoLoss(**settings)
