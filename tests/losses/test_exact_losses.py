"""Every loss over pairs beside its equation in 50-digit arithmetic: its value, and the gradient of
a batch's loss for single tokens.

The numbers are multiples of 2^-10, so the log-ratios that a loss starts from are exact in float64
too. Nothing of `steps.losses` is used to write an equation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from shipped_losses import shipped_losses
from torch import Tensor

from steps.losses.apo_down import ApoDown
from steps.losses.apo_zero import ApoZero
from steps.losses.base import PairLogps, PreferenceLoss, Totals, UnpairedLogps
from steps.losses.combined import CombinedReference, CombinedReferenceFree
from steps.losses.cpo import Cpo
from steps.losses.dpo import Dpo
from steps.losses.hinge import Hinge
from steps.losses.ipo import Ipo
from steps.losses.orpo import Orpo
from steps.losses.reference_free.alphapo import AlphaPo
from steps.losses.reference_free.cpo_hinge import CpoHinge
from steps.losses.reference_free.cpo_ipo import CpoIpo
from steps.losses.robust import Robust
from steps.losses.simpo import Simpo
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.unpaired.apo_zero_unpaired import ApoZeroUnpaired
from steps.losses.whole_batch.aot import Aot
from steps.losses.whole_batch.aot_unpaired import AotUnpaired
from steps.losses.whole_batch.beta_dpo import BetaDpo
from steps.losses.with_reference.bco_pair import BcoPair
from steps.losses.with_reference.discopop import Discopop
from steps.losses.with_reference.exo_pair import ExoPair
from steps.losses.with_reference.f_dpo import Divergence, FDpo
from steps.losses.with_reference.nca_pair import NcaPair
from steps.losses.with_reference.sigmoid_norm import SigmoidNorm
from steps.losses.with_reference.sppo_hard import SppoHard
from steps.losses.with_reference.tdpo import Tdpo
from steps.losses.with_reference.wpo import Wpo

DIGITS = 50
BETA = mpf(0.3)  # the float64 number, not three tenths
ALPHA = mpf(0.25)
SMOOTHING = mpf(0.2)

Logps = Sequence[Any]


@dataclass(frozen=True)
class Pair:
    """Token by token, the logps of a chosen and of a rejected response, and the reference's.

    d_w, d_l: what stands here for the divergences of the two, some function of the same tokens.
    """

    w: Logps
    l: Logps  # noqa: E741
    rw: Logps
    rl: Logps

    @property
    def h_w(self) -> Any:
        return mpmath.fsum(self.w) - mpmath.fsum(self.rw)

    @property
    def h_l(self) -> Any:
        return mpmath.fsum(self.l) - mpmath.fsum(self.rl)

    @property
    def d_w(self) -> Any:
        return mpmath.fsum(
            (ours - theirs) ** 2 for ours, theirs in zip(self.w, self.rw, strict=True)
        )

    @property
    def d_l(self) -> Any:
        return mpmath.fsum(
            (ours - theirs) ** 2 for ours, theirs in zip(self.l, self.rl, strict=True)
        )

    @property
    def m(self) -> Any:
        return BETA * (self.h_w - self.h_l)


# --- the equations -------------------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def nll(x: Any, smoothing: Any = 0) -> Any:
    """−(1 − ε) log σ(x) − ε log σ(−x)"""
    return -(1 - smoothing) * mpmath.log(sigmoid(x)) - smoothing * mpmath.log(sigmoid(-x))


def mean(logps: Logps) -> Any:
    return mpmath.fsum(logps) / len(logps)


def exo(p: Pair, smoothing: Any = SMOOTHING) -> Any:
    right, wrong = sigmoid(p.m), sigmoid(-p.m)
    return right * mpmath.log(right / (1 - smoothing)) + wrong * mpmath.log(wrong / smoothing)


def discopop(p: Pair) -> Any:
    share = sigmoid(p.m / mpf(0.2))
    return (1 - share) * nll(p.m) + share * mpmath.exp(-p.m)


def f_dpo(derivative: Callable[[Any], Any], smoothing: Any = SMOOTHING) -> Callable[[Pair], Any]:
    def loss(p: Pair) -> Any:
        chosen, rejected = derivative(mpmath.exp(p.h_w)), derivative(mpmath.exp(p.h_l))
        return nll(BETA * (chosen - rejected), smoothing)

    return loss


def orpo(p: Pair) -> Any:
    def log_odds(logps: Logps) -> Any:
        likely = mpmath.exp(mean(logps))
        return mpmath.log(likely / (1 - likely))

    return BETA * nll(log_odds(p.w) - log_odds(p.l))


def alphapo(p: Pair, smoothing: Any = SMOOTHING) -> Any:
    def reward(logps: Logps) -> Any:
        return mpf(2.5) * (1 - mpmath.exp(mean(logps)) ** -ALPHA) / ALPHA

    return nll(reward(p.w) - reward(p.l) - mpf(0.7), smoothing)


def ld_dpo(p: Pair, smoothing: Any = SMOOTHING) -> Any:
    shared = min(len(p.w), len(p.l))

    def likelihood(logps: Logps) -> Any:
        return mpmath.fsum(logps[:shared]) + ALPHA * mpmath.fsum(logps[shared:])

    chosen = likelihood(p.w) - likelihood(p.rw)
    return nll(BETA * (chosen - likelihood(p.l) + likelihood(p.rl)), smoothing)


Equation = Callable[[Sequence[Pair], Sequence[Pair]], Any]
"""The sum of a batch's losses, from its pairs; and from them as they were before one was moved to
find a derivative, for what is not differentiated."""


def each(loss: Callable[[Pair], Any]) -> Equation:
    return lambda pairs, _: mpmath.fsum(loss(p) for p in pairs)


def wpo(pairs: Sequence[Pair], still: Sequence[Pair], smoothing: Any = SMOOTHING) -> Any:
    weights = [mpmath.exp(mean(p.w) + mean(p.l)) for p in still]
    terms = zip(weights, pairs, strict=True)
    return mpmath.fsum(weight * nll(p.m, smoothing) for weight, p in terms)


def tdpo1(pairs: Sequence[Pair], _: Sequence[Pair]) -> Any:
    return mpmath.fsum(nll(p.m + BETA * (p.d_w - p.d_l)) for p in pairs)


def tdpo2(pairs: Sequence[Pair], still: Sequence[Pair]) -> Any:
    margins = (p.m + ALPHA * BETA * (q.d_w - p.d_l) for p, q in zip(pairs, still, strict=True))
    return mpmath.fsum(map(nll, margins))


def aot(pairs: Sequence[Pair], _: Sequence[Pair]) -> Any:
    mine = sorted(mpmath.fsum(p.w) - mpmath.fsum(p.l) for p in pairs)
    theirs = sorted(mpmath.fsum(p.rw) - mpmath.fsum(p.rl) for p in pairs)
    terms = zip(mine, theirs, strict=True)
    return mpmath.fsum(nll(BETA * (u - v), SMOOTHING) for u, v in terms)


def aot_unpaired(pairs: Sequence[Pair], _: Sequence[Pair]) -> Any:
    terms = zip(sorted(p.h_w for p in pairs), sorted(p.h_l for p in pairs), strict=True)
    return mpmath.fsum(nll(BETA * (c - r), SMOOTHING) for c, r in terms)


EQUATIONS: list[tuple[PreferenceLoss, Equation]] = [
    (Dpo(0.3, label_smoothing=0.2), each(lambda p: nll(p.m, SMOOTHING))),
    (Ipo(0.3), each(lambda p: (p.h_w / len(p.w) - p.h_l / len(p.l) - 1 / (2 * BETA)) ** 2)),
    (Hinge(0.3), each(lambda p: max(0, 1 - p.m))),
    (
        Robust(0.3, label_smoothing=0.2),
        each(lambda p: ((1 - SMOOTHING) * nll(p.m) - SMOOTHING * nll(-p.m)) / (1 - 2 * SMOOTHING)),
    ),
    (ApoZero(0.3), each(lambda p: 1 - sigmoid(BETA * p.h_w) + sigmoid(BETA * p.h_l))),
    (ApoDown(0.3), each(lambda p: sigmoid(BETA * p.h_w) + 1 - sigmoid(p.m))),
    (ExoPair(0.3, label_smoothing=0.2), each(exo)),
    (
        NcaPair(0.3),
        each(lambda p: nll(BETA * p.h_w) + (nll(-BETA * p.h_w) + nll(-BETA * p.h_l)) / 2),
    ),
    (BcoPair(0.3), each(lambda p: nll(BETA * p.h_w) + nll(-BETA * p.h_l))),
    (
        SppoHard(0.3),
        each(lambda p: (p.h_w - 1 / (2 * BETA)) ** 2 + (p.h_l + 1 / (2 * BETA)) ** 2),
    ),
    (Discopop(0.3, tau=0.2), each(discopop)),
    (SigmoidNorm(0.3), each(lambda p: nll(BETA * (p.h_w / len(p.w) - p.h_l / len(p.l))))),
    (FDpo(0.3, Divergence.forward_kl, label_smoothing=0.2), each(f_dpo(lambda u: 1 - 1 / u))),
    (FDpo(0.3, Divergence.js, label_smoothing=0.2), each(f_dpo(lambda u: mpmath.log(u / (1 + u))))),
    (
        FDpo(0.3, Divergence.alpha, alpha=0.25, label_smoothing=0.2),
        each(f_dpo(lambda u: (1 - u**-ALPHA) / ALPHA)),
    ),
    (Wpo(0.3, label_smoothing=0.2), wpo),
    (LdDpo(0.3, alpha=0.25, label_smoothing=0.2), each(ld_dpo)),
    (Tdpo(0.3, alpha=1.0, stop_gradient=False), tdpo1),
    (Tdpo(0.3, alpha=0.25), tdpo2),
    (BetaDpo(0.3), each(lambda p: nll(p.m))),  # in the first step; see below for the others
    (Aot(0.3, label_smoothing=0.2), aot),
    (AotUnpaired(0.3, label_smoothing=0.2), aot_unpaired),
    (
        Simpo(2.5, gamma=0.7, label_smoothing=0.2),
        each(lambda p: nll(mpf(2.5) * (mean(p.w) - mean(p.l)) - mpf(0.7), SMOOTHING)),
    ),
    (
        Cpo(0.3, label_smoothing=0.2),
        each(lambda p: nll(BETA * (mpmath.fsum(p.w) - mpmath.fsum(p.l)), SMOOTHING)),
    ),
    (Orpo(0.3), each(orpo)),
    (CpoHinge(0.3), each(lambda p: max(0, 1 - BETA * (mpmath.fsum(p.w) - mpmath.fsum(p.l))))),
    (CpoIpo(0.3), each(lambda p: (mean(p.w) - mean(p.l) - 1 / (2 * BETA)) ** 2)),
    (AlphaPo(0.25, 2.5, 0.7, label_smoothing=0.2), each(alphapo)),
]


# --- the numbers ---------------------------------------------------------------------------------


def some_pairs(scale: float, count: int = 5) -> list[Pair]:
    """Pairs whose policy and reference lie about `scale` nats a token apart; no two margins are
    equal."""
    generator = torch.Generator().manual_seed(3)

    def rounded(values: Tensor) -> Tensor:
        return (values * 1024).round() / 1024

    pairs = []
    for number in range(count):
        sides = []
        for length in (number + 1, 2 * (count - number)):
            drawn = torch.rand((2, length), generator=generator, dtype=torch.float64)
            policy = rounded(-0.1 - 2 * drawn[0] - scale * drawn[1])
            sides.append((policy, rounded(-0.1 - 2 * drawn[0])))
        (w, rw), (l, rl) = sides  # noqa: E741
        pairs.append(Pair(*([mpf(x) for x in side.tolist()] for side in (w, l, rw, rl))))
    return pairs


def tokens_of(pairs: Sequence[Pair], *sides: str) -> Tensor:
    values = [float(x) for p in pairs for side in sides for x in getattr(p, side)]
    return torch.tensor(values, dtype=torch.float64)


def logps_of(pairs: Sequence[Pair]) -> tuple[PairLogps, Tensor]:
    """What a loss is given, and the tokens that its gradient is for."""
    tokens = tokens_of(pairs, "w", "l").requires_grad_()
    reference = tokens_of(pairs, "rw", "rl")
    lengths = torch.tensor([[len(p.w), len(p.l)] for p in pairs])
    policy, theirs = (
        torch.stack([part.sum() for part in values.split(lengths.flatten().tolist())]).view(-1, 2)
        for values in (tokens, reference)
    )
    logps = PairLogps(
        policy[:, 0],
        policy[:, 1],
        lengths[:, 0],
        lengths[:, 1],
        theirs[:, 0],
        theirs[:, 1],
        tokens,
        reference,
    )
    apart = (tokens - reference).square().split(lengths.flatten().tolist())
    chosen, rejected = torch.stack([part.sum() for part in apart]).view(-1, 2).unbind(1)
    logps = replace(logps, chosen_kl=chosen, rejected_kl=rejected)
    return logps.as_batch(), tokens


def derivatives(loss: Equation, pairs: Sequence[Pair]) -> list[float]:
    """Of the batch's loss, for every token of the policy's."""

    def at(pair: int, side: str, place: int) -> Any:
        def moved(value: Any) -> Any:
            logps = list(getattr(pairs[pair], side))
            logps[place] = value
            changed = replace(pairs[pair], **{side: logps})
            return loss([*pairs[:pair], changed, *pairs[pair + 1 :]], pairs)

        return mpmath.diff(moved, getattr(pairs[pair], side)[place])

    return [
        float(at(pair, side, place))
        for pair, p in enumerate(pairs)
        for side in ("w", "l")
        for place in range(len(getattr(p, side)))
    ]


# With the defaults that users train with: labels are not smoothed, or hardly.
AS_SHIPPED: list[tuple[PreferenceLoss, Equation]] = [
    (Dpo(0.3), each(lambda p: nll(p.m))),
    (ExoPair(0.3), each(lambda p: exo(p, mpf(1e-3)))),
    (Wpo(0.3), lambda pairs, still: wpo(pairs, still, 0)),
    (LdDpo(0.3, alpha=0.25), each(lambda p: ld_dpo(p, 0))),
    (
        Simpo(2.5, gamma=0.7),
        each(lambda p: nll(mpf(2.5) * (mean(p.w) - mean(p.l)) - mpf(0.7))),
    ),
    (Cpo(0.3), each(lambda p: nll(BETA * (mpmath.fsum(p.w) - mpmath.fsum(p.l))))),
    (AlphaPo(0.25, 2.5, 0.7), each(lambda p: alphapo(p, 0))),
]


def named(cases: list[tuple[PreferenceLoss, Equation]]) -> list[str]:
    return [str(loss).replace("<", "").replace(">", "") for loss, _ in cases]


@pytest.mark.parametrize("scale", [0.0, 0.01, 2.0, 20.0])
@pytest.mark.parametrize(("loss", "equation"), EQUATIONS, ids=named(EQUATIONS))
def test_loss_and_gradient_are_those_of_50_digits(
    loss: PreferenceLoss, equation: Equation, scale: float
) -> None:
    assert_as_in_50_digits(loss, equation, scale, 5 if loss.needs_batch else 3)


@pytest.mark.parametrize(("loss", "equation"), AS_SHIPPED, ids=named(AS_SHIPPED))
def test_without_smoothing_loss_and_gradient_are_those_of_50_digits(
    loss: PreferenceLoss, equation: Equation
) -> None:
    assert_as_in_50_digits(loss, equation, 2.0, 2)


def assert_as_in_50_digits(
    loss: PreferenceLoss, equation: Equation, scale: float, count: int
) -> None:
    pairs = some_pairs(scale, count)
    logps, tokens = logps_of(pairs)
    losses = loss.per_pair(logps).losses
    (gradient,) = torch.autograd.grad(losses.sum(), [tokens])
    with mpmath.workdps(DIGITS):
        expected = float(equation(pairs, pairs))
        assert losses.sum().item() == pytest.approx(expected, rel=1e-13, abs=1e-14)
        if scale or not loss.needs_batch:  # where all are equal, ranks are the order of the batch
            assert gradient.tolist() == pytest.approx(
                derivatives(equation, pairs), rel=1e-11, abs=1e-14
            )


# Log-probabilities (w, l, rw, rl) of responses that have moved far from their reference.
EXTREMES = [
    (-1000, -3000, -2000, -2000),
    (-3000, -1000, -2000, -2000),
    (-2000, -12000, -2000, -2000),
    (-1, -10001, -10001, -1),
    (-10001, -1, -1, -10001),
]
UNSMOOTHED: list[tuple[PreferenceLoss, Equation]] = [
    (FDpo(0.3, Divergence.forward_kl), each(f_dpo(lambda u: 1 - 1 / u, 0))),
    (FDpo(0.3, Divergence.alpha, alpha=0.25), each(f_dpo(lambda u: (1 - u**-ALPHA) / ALPHA, 0))),
    (AlphaPo(0.25, 2.5, 0.7), each(lambda p: alphapo(p, 0))),
]


@pytest.mark.parametrize("far", EXTREMES, ids=str)
def test_far_from_the_reference_a_loss_is_exact_or_not_finite(far: Sequence[int]) -> None:
    """A step with a loss that is not finite ends the run; a gradient of NaN would do so too, but
    without the name of the row."""
    pairs = [Pair(*([mpf(x)] for x in far))]
    for loss, equation in [*EQUATIONS, *UNSMOOTHED]:
        logps, tokens = logps_of(pairs)
        (found,) = loss.per_pair(logps).losses
        (gradient,) = torch.autograd.grad(found, [tokens])
        with mpmath.workdps(DIGITS):
            expected = equation(pairs, pairs)
            if expected > 1e300:
                assert not found.isfinite(), loss
                continue
            assert found.item() == pytest.approx(float(expected), rel=1e-13, abs=1e-14), loss
            slopes = derivatives(equation, pairs)
            assert gradient.tolist() == pytest.approx(slopes, rel=1e-10, abs=1e-14), loss


LONG = [(-10_000, -1, 1, 10_000), (-1, -10_000, 10_000, 1), (-12_345, -10_000, 10_000, 10_000)]
"""Log-probabilities (w, l) of responses that the reference finds as likely as each other, and their
numbers of tokens."""


@pytest.mark.parametrize("align", [False, True])
def test_weights_and_likelihoods_are_exact_for_one_token_and_for_ten_thousand(align: bool) -> None:
    """An aligned logp is a half of the plain one here."""
    loss = Wpo(0.3, 0.2, align, nll_weight=0.75)
    for w, l, n, m in LONG:  # noqa: E741
        tokens = torch.tensor([[w, l]], dtype=torch.float64, requires_grad=True)
        (chosen, rejected), aligned = tokens.unbind(1), (tokens.detach() / 2).unbind(1)
        counts, theirs = torch.tensor([[n, m]]).unbind(1), torch.zeros_like(chosen)
        logps = PairLogps(chosen, rejected, counts[0], counts[1], theirs, theirs)
        logps = replace(logps, aligned_chosen=aligned[0], aligned_rejected=aligned[1])
        found = loss.shares(logps, Totals(1, n)).losses.sum()
        (gradient,) = torch.autograd.grad(found, [tokens])
        with mpmath.workdps(DIGITS):
            likely = mpf(w) / n + mpf(l) / m
            weight, margin = mpmath.exp(likely / 2 if align else likely), BETA * (mpf(w) - mpf(l))
            expected = weight * nll(margin, SMOOTHING) - mpf(0.75) * w / n
            slope = weight * BETA * (sigmoid(margin) - (1 - SMOOTHING))
            slopes = [float(slope - mpf(0.75) / n), float(-slope)]
            assert found.item() == pytest.approx(float(expected), rel=1e-14, abs=0)
            assert gradient[0].tolist() == pytest.approx(slopes, rel=1e-14, abs=1e-300)


def test_every_loss_over_pairs_has_its_equation_here() -> None:
    combinations = {CombinedReference, CombinedReferenceFree}
    assert {*shipped_losses().values()} - combinations == {type(x) for x, _ in EQUATIONS}


@pytest.mark.parametrize("scale", [0.01, 2.0, 20.0])
def test_apo_zero_of_single_responses_is_that_of_50_digits(scale: float) -> None:
    pairs = some_pairs(scale)
    ratios = torch.tensor([float(p.h_w) for p in pairs], dtype=torch.float64, requires_grad=True)
    good = torch.tensor([i % 2 == 0 for i in range(len(pairs))])
    logps = UnpairedLogps(ratios, torch.ones(len(pairs)), torch.zeros_like(ratios), good)
    responses = ApoZeroUnpaired(0.3, 1.5, 0.5).per_response(logps, None)
    losses = responses.losses
    (gradient,) = torch.autograd.grad(losses.sum(), [ratios])
    torch.testing.assert_close(responses.rewards, 0.3 * ratios)
    with mpmath.workdps(DIGITS):
        weights = [(mpf(1.5), -1) if i % 2 == 0 else (mpf(0.5), 1) for i in range(len(pairs))]
        rewards = [sign * BETA * p.h_w for p, (_, sign) in zip(pairs, weights, strict=True)]
        rows = list(zip(rewards, weights, strict=True))
        expected = [float(weight * sigmoid(x)) for x, (weight, _) in rows]
        assert losses.tolist() == pytest.approx(expected, rel=1e-14)
        slopes = [float(sign * w * BETA * sigmoid(x) * sigmoid(-x)) for x, (w, sign) in rows]
        assert gradient.tolist() == pytest.approx(slopes, rel=1e-14)


# --- β-DPO, which goes on from the step before ---------------------------------------------------


def continued(pairs: Sequence[Pair], threshold: float, spread: float, step: int) -> PairLogps:
    last = {"beta_dpo/threshold": threshold, "beta_dpo/spread": spread, "step": step}
    return replace(logps_of(pairs)[0], last=last)


@pytest.mark.parametrize("step", range(1, 6))
def test_beta_dpo_takes_beta_from_the_pairs_that_it_keeps(step: int) -> None:
    pairs = some_pairs(0.5)
    loss = BetaDpo(0.3, alpha=0.5, momentum=0.75, keep=0.7)
    result = loss.per_pair(continued(pairs, 1.25, 2.5, step))
    kept = [i for i, value in enumerate(result.metrics["beta_dpo/kept"].tolist()) if value]
    assert len(kept) == 3
    with mpmath.workdps(DIGITS):
        gaps = [p.h_w - p.h_l for p in pairs]
        mean = mpmath.fsum(gaps) / len(gaps)
        deviation = mpmath.sqrt(mpmath.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        threshold = mpf(0.75) * mpf(1.25) + mpf(0.25) * mean
        excess = mpmath.fsum(gaps[i] for i in kept) / len(kept) - threshold
        beta = max(BETA * (1 + excess / 2), mpf(1e-3))
        expected = mpmath.fsum(nll(beta * gaps[i]) for i in kept) / len(kept)
        values = {
            "beta": beta,
            "threshold": threshold,
            "spread": mpf(0.75) * mpf(2.5) + mpf(0.25) * deviation,
        }
        assert result.losses.mean().item() == pytest.approx(float(expected), rel=1e-13)
        for name, value in values.items():
            logged = result.metrics[f"beta_dpo/{name}"]
            assert logged.tolist() == pytest.approx([float(value)] * len(pairs), rel=1e-13)


def test_beta_dpo_keeps_pairs_as_often_as_their_weights_say() -> None:
    """Two draws without replacement from four pairs, beside the exact probabilities."""
    gaps = torch.tensor([0.0, 1.0, 2.0, 60.0], dtype=torch.float64)
    zeros, ones = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.int64)
    logps = PairLogps(gaps, zeros, ones, ones, zeros, zeros).as_batch()
    loss = BetaDpo(momentum=0.0, keep=0.5)  # so that threshold and spread are those of the batch
    counts = torch.zeros(4, dtype=torch.float64)
    draws = 2000
    for step in range(draws):
        last = {"beta_dpo/threshold": 0.0, "beta_dpo/spread": 1.0, "step": step}
        counts += loss.per_pair(replace(logps, last=last)).metrics["beta_dpo/kept"]
    weights = (-0.5 * ((gaps - gaps.mean()) / gaps.std(correction=0)).square()).exp().tolist()
    total = sum(weights)
    expected = [
        w / total + sum(v / total * w / (total - v) for j, v in enumerate(weights) if j != i)
        for i, w in enumerate(weights)
    ]
    assert (counts / draws).tolist() == pytest.approx(expected, abs=0.045)  # 4 deviations
