"""The loss of reward models: beside fifty digits, beside TRL's formula, and cut into pieces."""

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steps.losses.base import Shares
from steps.reward_models.bradley_terry import BradleyTerry

DIGITS = 50
CASES = [  # chosen, rejected, margin
    (0.0, 0.0, 0.0),
    (1.25, -0.5, 0.0),
    (-3.0, 2.0, 0.75),
    (1e-9, -1e-9, 0.0),
    (40.0, -40.0, 1.5),
    (-40.0, 40.0, 0.5),
    (700.0, -80.0, 0.0),
    (-700.0, 80.0, 3.0),
]


def shares(loss: BradleyTerry, chosen: Tensor, rejected: Tensor, margins: Tensor) -> Shares:
    weights = torch.ones_like(chosen)
    return loss.shares(chosen, rejected, margins, weights, len(chosen))


def columns() -> tuple[Tensor, Tensor, Tensor]:
    chosen, rejected, margins = torch.tensor(CASES, dtype=torch.float64).unbind(1)
    return chosen.clone().requires_grad_(), rejected.clone().requires_grad_(), margins


@pytest.mark.parametrize("coefficient", [0.0, 0.01, 2.0])
def test_loss_and_gradients_agree_with_fifty_digits(coefficient: float) -> None:
    chosen, rejected, margins = columns()
    found = shares(BradleyTerry(coefficient), chosen, rejected, margins).losses * len(CASES)
    found.sum().backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    with mpmath.workdps(DIGITS):
        for i, (c, r, m) in enumerate(CASES):
            c, r, m, k = map(mpmath.mpf, (c, r, m, coefficient))
            gap = c - r - m
            loss = mpmath.log1p(mpmath.exp(-gap)) + k * (c + r) ** 2
            slope = -1 / (1 + mpmath.exp(gap))
            pull = 2 * k * (c + r)
            for actual, exact in (
                (found[i].item(), loss),
                (chosen.grad[i].item(), slope + pull),
                (rejected.grad[i].item(), -slope + pull),
            ):
                assert abs(actual - exact) <= 1e-14 * max(abs(exact), mpmath.mpf(10) ** -300)


@pytest.mark.parametrize("coefficient", [0.0, 0.01])
def test_a_batch_s_loss_is_trl_s_reward_trainer_s(coefficient: float) -> None:
    chosen, rejected, margins = columns()
    with torch.no_grad():
        expected = -logsigmoid(chosen - rejected - margins).mean()
        expected += coefficient * torch.mean((chosen + rejected) ** 2)
        found = shares(BradleyTerry(coefficient), chosen, rejected, margins)
    torch.testing.assert_close(found.losses.sum(), expected, rtol=1e-14, atol=0)
    for name, value in {
        "rewards/accuracies": (chosen > rejected).double().mean(),
        "rewards/margins": (chosen - rejected).detach().mean(),
    }.items():
        torch.testing.assert_close(found.metrics[name].sum(), value, rtol=1e-12, atol=0)


def test_equal_scores_lose_ln_2_and_are_no_hit() -> None:
    zeros = torch.zeros(3, dtype=torch.float64)
    found = shares(BradleyTerry(), zeros, zeros, zeros)
    assert (found.losses * 3).tolist() == [math.log(2)] * 3
    assert found.metrics["rewards/accuracies"].sum() == 0
    assert "loss/centering" not in found.metrics


def test_twice_the_weight_is_twice_the_loss_and_no_other_metric() -> None:
    chosen, rejected, margins = columns()
    loss, ones = BradleyTerry(0.1), torch.ones(len(CASES), dtype=torch.float64)
    once, twice = (loss.shares(chosen, rejected, margins, w, 8) for w in (ones, 2 * ones))
    assert torch.equal(twice.losses, 2 * once.losses)
    for name, metric in once.metrics.items():
        assert torch.equal(twice.metrics[name], metric)


def test_a_margin_is_asked_of_the_pair_s_ratings_and_missed_by_row() -> None:
    loss = BradleyTerry(margin_per_score=0.5)
    rated = {"row": "a:1", "score_chosen": 8.0, "score_rejected": 3.0}
    assert loss.margin(rated) == 2.5
    assert BradleyTerry().margin({"row": "a:1"}) == 0
    with pytest.raises(ValueError, match=r"row 'a:2' has no score_chosen or no score_rejected"):
        loss.margin({"row": "a:2", "score_chosen": 8.0, "score_rejected": None})


@pytest.mark.parametrize("score", [math.nan, math.inf, "9"])
def test_a_rating_that_is_no_finite_number_is_told_by_row_and_field(score: object) -> None:
    told = r"row 'a:3': score_rejected is .*; it must be a finite number"
    with pytest.raises(ValueError, match=told):
        BradleyTerry(margin_per_score=0.5).margin(
            {"row": "a:3", "score_chosen": 8.0, "score_rejected": score}
        )
