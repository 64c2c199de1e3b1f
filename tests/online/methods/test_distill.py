"""Learning from a teacher at one's own tokens, beside dense formulas over whole distributions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from steps.distillation.cached_teacher import Teacher
from steps.distillation.distributions import values_at
from steps.online.methods.distill import Distill
from steps.online.methods.experience import Experience
from steps.online.methods.policy_gradient import Advantage, Over
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of

VOCABULARY = 11
COMPLETIONS = (((5, 6, 1), (7,), (5, 2)), ((8, 9, 2), (10,)))
REWARDS = torch.tensor([[1.0, 0.0, 9.0], [0.5, 2.0, 0.0]], dtype=torch.float64)
UNREWARDED = torch.tensor([[False, False, True], [False, False, False]])
ADVANTAGES = torch.tensor([[0.5, -0.5, 0.0], [-0.75, 0.75, 0.0]], dtype=torch.float64)
"""Of `REWARDS`, where there are any, less the mean of their prompt."""


def drawn_logits(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, VOCABULARY, generator=generator, dtype=torch.float64)


def whole_teacher(logits: Tensor, groups: tuple[TokenGroup, ...], targets: Tensor) -> Teacher:
    """That knows everything about these tokens, in float64."""
    logps = logits.log_softmax(-1)
    top, ids = logps.sort(descending=True)
    counts = [sum(r.num_scored for r in group.responses) for group in groups]
    stops = np.cumsum(counts)
    spans = {g.group_id: slice(b - n, b) for g, n, b in zip(groups, counts, stops, strict=True)}
    own = logps.gather(1, targets[:, None])[:, 0].numpy()
    rest = np.zeros((len(targets), 2))
    return Teacher(Path(), VOCABULARY, own, ids.int().numpy(), top.numpy(), rest, spans)


def given(of: tuple, logits: Tensor) -> tuple[Experience, Tensor, Tensor]:
    """Completions without rewards, with a teacher of these logits; their tokens; and π_old."""
    groups = tuple(
        TokenGroup(f"row-{n}", f"{n}", (1, n), tuple(map(TokenResponse, responses)))
        for n, responses in enumerate(of)
    )
    targets = torch.tensor([i for responses in of for ids in responses for i in ids])
    old = drawn_logits(3, len(targets)).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    sizes = [sum(map(len, responses)) for responses in of]
    nothing = torch.zeros(len(of), max(map(len, of)), dtype=torch.float64)
    teacher = whole_teacher(logits, groups, targets)
    policy = old.split(sizes)
    return Experience(groups, nothing, 8, policy, policy, teacher=teacher), targets, old


def loss_of(method: Distill, given: Experience, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of all completions as one batch, as a trainer has it of a student's logits."""
    objective = method.objective(given)
    assert objective is not None
    teacher = given.teacher
    assert teacher is not None
    ids = torch.from_numpy(teacher.ids).long()
    values = values_at(logits.clone(), ids, targets, 1.0, VOCABULARY)
    if method.divergence is None:
        values = values[:, 0]
    logps = TokenLogps.of_values(values, lengths_of(objective.groups, given.rewards.shape[1]))
    everything = range(len(objective.groups))
    losses, _ = objective.batch_loss(everything, None)(logps, torch.tensor(everything))
    return losses.sum()


def divergence(p: Tensor, q: Tensor, beta: float) -> Tensor:
    """Of whole distributions, as Agarwal et al. 2023 define it, with the KLs at its ends."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum(-1)

    m = beta * p + (1 - beta) * q
    if beta in (0, 1):
        return kl(q, p) if beta else kl(p, q)
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


@pytest.mark.parametrize("reward_weight", [0.0, 0.7])
@pytest.mark.parametrize("beta", [None, 0.0, 0.3, 1.0])
def test_loss_and_gradient_are_those_of_dense_formulas(
    beta: float | None, reward_weight: float
) -> None:
    count = sum(len(ids) for responses in COMPLETIONS for ids in responses)
    taught = drawn_logits(1, count)
    experience, targets, old = given(COMPLETIONS, taught)
    rewards = REWARDS.masked_fill(UNREWARDED, 0.0)
    experience = replace(experience, rewards=rewards, unrewarded=UNREWARDED)
    method = Distill(
        beta=beta, reward_weight=reward_weight, advantage=Advantage.group_mean, over=Over.token
    )
    logits = drawn_logits(2, count).requires_grad_()
    loss = loss_of(method, experience, logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)

    again = logits.detach().requires_grad_()
    q, p = again.softmax(-1), taught.softmax(-1)
    own = q.gather(1, targets[:, None])[:, 0]
    lengths = torch.tensor([[3, 1, 2], [3, 1, 0]])
    gains = reward_weight * ADVANTAGES.flatten().repeat_interleave(lengths.flatten())
    if beta is None:
        gains = gains + p.gather(1, targets[:, None])[:, 0].log() - old
    ratio = own / old.exp()
    losses = -torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
    if beta is not None:
        losses = losses + divergence(p, q, beta)
    expected = losses.mean()
    (dense,) = torch.autograd.grad(expected, again)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, dense, rtol=0, atol=1e-10)


def test_the_policy_gradient_is_on_average_that_of_the_reverse_kl() -> None:
    taught, student = drawn_logits(4, 1), drawn_logits(5, 1)
    expected = student.clone().requires_grad_()
    divergence(taught.softmax(-1), expected.softmax(-1), 1).sum().backward()
    average = torch.zeros_like(student)
    for token in range(VOCABULARY):
        experience, targets, _ = given((((token,),),), taught)
        logits = student.clone().requires_grad_()
        own = student.log_softmax(-1)[:, token]
        experience = replace(experience, policy=(own,))
        method = Distill(over=Over.token)
        loss_of(method, experience, logits, targets).backward()
        assert logits.grad is not None
        average += own.exp() * logits.grad
    torch.testing.assert_close(average, expected.grad, rtol=0, atol=1e-12)
