"""Losses of distillation: beside 50-digit arithmetic, TRL's formulas, and whole vocabularies."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.nn import functional

from steps.distillation.distributions import values_at
from steps.losses.base import Totals
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.distillation.jsd import Jsd
from steps.losses.distillation.reverse_kl import ReverseKl
from steps.losses.distillation.skew_kl import SkewKl
from steps.losses.distillation.skew_reverse_kl import SkewReverseKl
from steps.losses.registry import losses_of

VOCABULARY = 200


def kl(p: list[Any], q: list[Any]) -> Any:
    return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True))


def mixed(p: list[Any], q: list[Any], weight: Any) -> list[Any]:
    return [weight * a + (1 - weight) * b for a, b in zip(p, q, strict=True)]


def jsd(beta: float) -> Callable[[list[Any], list[Any]], Any]:
    def of(p: list[Any], q: list[Any]) -> Any:
        both, b = mixed(p, q, mpf(beta)), mpf(beta)
        return b * kl(p, both) + (1 - b) * kl(q, both)

    return of


# Each loss, its equation, and a bound of what it lacks with p(R), q(R) of the teacher and student.
CASES: list[tuple[DistillationLoss, Any, Any]] = [
    (ForwardKl(), kl, None),
    (ForwardKl(temperature=2.0), kl, None),
    (ReverseKl(), lambda p, q: kl(q, p), None),
    (ReverseKl(temperature=0.7), lambda p, q: kl(q, p), None),
    *(
        (
            Jsd(beta=b),
            jsd(b),
            lambda p, q, b=b: (b * p + (1 - b) * q) * torch.log(torch.tensor(2.0)),
        )
        for b in (0.1, 0.5, 0.9)
    ),
    (
        SkewKl(alpha=0.1),
        lambda p, q: kl(p, mixed(p, q, mpf(0.1))),
        lambda p, q: p * ((0.1 * p + 0.9 * q) / (0.1 * p)).log(),
    ),
    (
        SkewReverseKl(alpha=0.3, temperature=1.5),
        lambda p, q: kl(q, mixed(q, p, mpf(0.3))),
        lambda p, q: q * ((0.3 * q + 0.7 * p) / (0.3 * q)).log(),
    ),
]
IDS = [f"{loss.name}-{number}" for number, (loss, *_) in enumerate(CASES)]


def draw(rows: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a student and of a teacher that it resembles, and targets."""
    source = torch.Generator().manual_seed(1)
    teacher = 3 * torch.randn(rows, VOCABULARY, generator=source, dtype=torch.float64)
    noise = torch.randn(rows, VOCABULARY, generator=source, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (rows,), generator=source)
    return (teacher + noise).requires_grad_(), teacher, targets


def bucketed(
    loss: DistillationLoss, student: Tensor, teacher: Tensor, targets: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """D of each token from the k likeliest tokens of the teacher and the rest; p(R) and q(R)."""
    ids = teacher.topk(k).indices
    at = (ids, targets, loss.temperature, VOCABULARY)
    p, q = values_at(teacher.clone(), *at)[:, 3:], values_at(student.clone(), *at)[:, 3:]
    return loss.divergences(q, p), p[:, -1].exp(), q[:, -1].exp().detach()


def test_every_shipped_loss_is_tested() -> None:
    assert {loss.name for loss, *_ in CASES} == {*losses_of(DistillationLoss)}


@pytest.mark.parametrize(("loss", "equation"), [case[:2] for case in CASES], ids=IDS)
def test_the_whole_vocabulary_gives_the_equation_in_50_digits(
    loss: DistillationLoss, equation: Any
) -> None:
    student, teacher, targets = draw(2)
    found, *_ = bucketed(loss, student, teacher, targets, VOCABULARY)
    with mpmath.workdps(50):
        for row, value in enumerate(found.tolist()):
            p, q = (
                [e / mpmath.fsum(powers) for e in powers]
                for powers in (
                    [mpmath.exp(mpf(z) / mpf(loss.temperature)) for z in logits[row].tolist()]
                    for logits in (teacher, student)
                )
            )
            assert abs(value - equation(p, q)) < 1e-13


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_loss_and_gradient_are_trls(beta: float, temperature: float) -> None:
    """`generalized_jsd_loss` of GKDTrainer, which DistillationTrainer computes in chunks."""
    student, teacher, targets = draw()
    log_q = (student / temperature).log_softmax(-1)
    log_p = (teacher / temperature).log_softmax(-1)

    def trl_kl(of: Tensor, target: Tensor) -> Tensor:
        return functional.kl_div(of, target, reduction="none", log_target=True)

    if beta in (0.0, 1.0):
        loss: DistillationLoss = (ForwardKl if beta == 0 else ReverseKl)(temperature)
        theirs = trl_kl(log_q, log_p) if beta == 0 else trl_kl(log_p, log_q)
    else:
        loss, b = Jsd(temperature, beta=beta), torch.tensor(beta, dtype=torch.float64)
        log_m = torch.stack([log_q + torch.log1p(-b), log_p + b.log()]).logsumexp(0)
        theirs = beta * trl_kl(log_m, log_p) + (1 - beta) * trl_kl(log_m, log_q)
    expected = theirs.sum() / len(targets)  # their mean over the valid tokens
    (gradient,) = torch.autograd.grad(expected, student)
    again = student.detach().requires_grad_()
    found, *_ = bucketed(loss, again, teacher, targets, VOCABULARY)
    every = torch.ones(len(found), dtype=torch.float64)
    total = loss.shares(found, 0 * every, Totals(1, len(found)), every, every, every).losses.sum()
    (own,) = torch.autograd.grad(total, again)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(own, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("k", [8, 64])
@pytest.mark.parametrize(("loss", "bound"), [(loss, bound) for loss, _, bound in CASES], ids=IDS)
def test_what_one_bucket_lacks_is_bounded(loss: DistillationLoss, bound: Any, k: int) -> None:
    student, teacher, targets = draw()
    whole, *_ = bucketed(loss, student, teacher, targets, VOCABULARY)
    found, p_rest, q_rest = bucketed(loss, student, teacher, targets, k)
    lacks = (whole - found).detach()
    assert (lacks > 0).all()
    if bound is not None:
        assert (lacks <= bound(p_rest, q_rest)).all()
        return
    ids = teacher.topk(k).indices
    others = torch.ones_like(teacher, dtype=torch.bool).scatter(1, ids, False)
    p, q = (
        (logits.detach() / loss.temperature)[others].view(len(ids), -1).log_softmax(-1)
        for logits in (teacher, student)
    )
    p, q, mass = (p, q, p_rest) if isinstance(loss, ForwardKl) else (q, p, q_rest)
    torch.testing.assert_close(lacks, mass * (p.exp() * (p - q)).sum(-1), rtol=1e-9, atol=1e-12)
    if isinstance(loss, ForwardKl):
        (exact,), (own,) = (torch.autograd.grad(values.sum(), student) for values in (whole, found))
        off = own - exact
        assert off[~others].abs().max() < 1e-12
        assert (off.abs().sum(1) <= 2 * p_rest / loss.temperature).all()


def test_the_likelihood_term_is_weighted_beside_the_divergence() -> None:
    values = torch.tensor([2.0, 4.0]), torch.tensor([-1.0, -3.0])
    hits = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    weights = torch.tensor([1.0, 0.5])
    shares = ForwardKl(cross_entropy=0.25).shares(*values, Totals(2, 4), weights, *hits)
    torch.testing.assert_close(
        shares.losses, weights * torch.tensor([(1.5 + 0.25) / 4, (3 + 0.75) / 4])
    )
    assert {name: float(value.sum()) for name, value in shares.metrics.items()} == {
        "loss/divergence": 1.5,
        "loss/cross_entropy": 1.0,
        "mean_token_accuracy": 0.25,
        "teacher/agreement": 0.5,
    }


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ForwardKl(temperature=0), "temperature must be above 0"),
        (lambda: ForwardKl(cross_entropy=1), r"cross_entropy must be in \[0, 1\)"),
        (lambda: Jsd(beta=1), "for 1 reverse_kl"),
        (lambda: SkewKl(alpha=0), "use the KL itself"),
    ],
)
def test_settings_out_of_range_are_told(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
