"""The losses as functions of a few numbers a pair: their limits, and what is refused."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from shipped_losses import is_shipped, shipped_losses
from torch import Tensor

from steps.losses.apo_down import ApoDown
from steps.losses.apo_zero import ApoZero
from steps.losses.base import (
    Loss,
    PairLogps,
    PairLosses,
    PreferenceLoss,
    ReferenceLoss,
    SftLoss,
    Shares,
    Totals,
    UnpairedLogps,
    UnpairedLosses,
)
from steps.losses.combined import CombinedReference, CombinedReferenceFree
from steps.losses.cpo import Cpo
from steps.losses.dpo import Dpo
from steps.losses.hinge import Hinge
from steps.losses.imitation.dft import Dft
from steps.losses.imitation.sft import Sft
from steps.losses.ipo import Ipo
from steps.losses.kto import Kto
from steps.losses.orpo import Orpo
from steps.losses.reference_free.alphapo import AlphaPo
from steps.losses.reference_free.cpo_hinge import CpoHinge
from steps.losses.reference_free.cpo_ipo import CpoIpo
from steps.losses.registry import losses_of
from steps.losses.robust import Robust
from steps.losses.simpo import Simpo
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.unpaired.apo_zero_unpaired import ApoZeroUnpaired
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
from steps.models.config import LoraConfig
from steps.training.config import DpoConfig, KtoConfig, ReferenceFreeConfig


def some_pairs(n: int = 5, seed: int = 0) -> PairLogps:
    """Pairs whose logps are of different lengths and no two alike; the policy's want gradients."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 9, (2, n), generator=generator)
    per_token = -0.2 - 2 * torch.rand((4, n), generator=generator, dtype=torch.float64)
    chosen, rejected = per_token[0] * tokens[0], per_token[1] * tokens[1]
    return PairLogps(
        chosen.requires_grad_(),
        rejected.requires_grad_(),
        tokens[0],
        tokens[1],
        per_token[2] * tokens[0],
        per_token[3] * tokens[1],
    )


def at_its_reference(logps: PairLogps) -> PairLogps:
    return replace(
        logps,
        reference_chosen=logps.chosen.detach().clone(),
        reference_rejected=logps.rejected.detach().clone(),
    )


def swapped(logps: PairLogps) -> PairLogps:
    return PairLogps(
        logps.rejected,
        logps.chosen,
        logps.rejected_tokens,
        logps.chosen_tokens,
        logps.reference_rejected,
        logps.reference_chosen,
    )


def gradients(loss: PreferenceLoss, logps: PairLogps) -> tuple[Tensor, Tensor]:
    losses = loss.per_pair(logps).losses
    chosen, rejected = torch.autograd.grad(losses.sum(), [logps.chosen, logps.rejected])
    return chosen, rejected


EVERY_LOSS: list[PreferenceLoss] = [
    Dpo(beta=0.3),
    Dpo(beta=0.3, label_smoothing=0.2),
    Ipo(beta=0.3),
    Hinge(beta=0.3),
    Robust(beta=0.3, label_smoothing=0.2),
    ApoZero(beta=0.3),
    ApoDown(beta=0.3),
    Simpo(beta=2.5, gamma=0.7),
    Cpo(beta=0.3),
    Orpo(beta=0.3),
    ExoPair(beta=0.3, label_smoothing=0.2),
    NcaPair(beta=0.3),
    BcoPair(beta=0.3),
    SppoHard(beta=0.3),
    Discopop(beta=0.3, tau=0.2),
    SigmoidNorm(beta=2.0),
    FDpo(beta=0.3, divergence=Divergence.forward_kl),
    FDpo(beta=0.3, divergence=Divergence.js, label_smoothing=0.2),
    FDpo(beta=0.3, divergence=Divergence.alpha, alpha=0.25),
    Wpo(beta=0.3),
    CpoHinge(beta=0.3),
    CpoIpo(beta=0.3),
    AlphaPo(alpha=0.5, beta=2.5, gamma=0.7),
]
"""What is a function of a pair's four sums; `test_exact_losses` has their equations. Other losses
are in `test_losses_of_batches` and `test_live_reference`."""
WITH_REFERENCE = [loss for loss in EVERY_LOSS if isinstance(loss, ReferenceLoss)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def named(value: Any) -> str | None:
    return value.name if isinstance(value, Loss) else None


def test_every_loss_over_pairs_is_looked_at_here() -> None:
    combinations = {CombinedReference, CombinedReferenceFree}
    tested = {type(loss) for loss in EVERY_LOSS}
    others = {*shipped_losses().values()} - combinations
    assert {kind for kind in others if kind().is_of_sums} == tested


# --- where the policy is the reference, where nothing is asked, where sides are changed -----------


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Dpo(), math.log(2)),
        (Dpo(label_smoothing=0.1), math.log(2)),
        (Robust(), math.log(2)),
        (Hinge(), 1.0),
        (ApoZero(), 1.0),
        (ApoDown(), 1.0),
        (Ipo(beta=0.1), 25.0),
        (ExoPair(label_smoothing=0.2), -math.log(0.64) / 2),
        (NcaPair(), 2 * math.log(2)),
        (BcoPair(), 2 * math.log(2)),
        (SppoHard(beta=0.1), 50.0),
        (Discopop(), (1 + math.log(2)) / 2),
        (SigmoidNorm(), math.log(2)),
        *((FDpo(divergence=divergence), math.log(2)) for divergence in Divergence),
    ],
    ids=named,
)
def test_a_policy_that_is_its_reference_has_a_known_loss_and_no_reward(
    loss: PreferenceLoss, expected: float
) -> None:
    pairs = loss.per_pair(at_its_reference(some_pairs()))
    torch.testing.assert_close(
        pairs.losses, torch.full_like(pairs.losses, expected), rtol=1e-15, atol=0
    )
    assert not pairs.chosen_rewards.any()
    assert not pairs.rejected_rewards.any()


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=named)
def test_a_likelier_response_has_a_higher_reward_of_its_own(loss: PreferenceLoss) -> None:
    logps = some_pairs()
    before = loss.per_pair(logps)
    after = loss.per_pair(replace(logps, chosen=logps.chosen + 0.1))
    assert (after.chosen_rewards > before.chosen_rewards).all()
    assert torch.equal(after.rejected_rewards, before.rejected_rewards)


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=named)
def test_swapping_chosen_and_rejected_negates_the_margin(loss: PreferenceLoss) -> None:
    logps = some_pairs()
    one, other = loss.per_pair(logps), loss.per_pair(swapped(logps))
    assert torch.equal(
        one.chosen_rewards - one.rejected_rewards, -(other.chosen_rewards - other.rejected_rewards)
    )


def test_odds_of_certain_responses_are_finite() -> None:
    sure = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    doubtful = torch.full((1,), -3.0, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.int64)
    for logps in (PairLogps(sure, doubtful, one, one), PairLogps(doubtful, sure, one, one)):
        assert torch.isfinite(Orpo().per_pair(logps).losses).all()
        assert torch.isfinite(torch.stack(gradients(Orpo(), logps))).all()


@pytest.mark.parametrize(
    "loss", [loss for loss in EVERY_LOSS if not isinstance(loss, AlphaPo | FDpo)], ids=named
)
def test_very_likely_and_very_unlikely_responses_have_finite_losses(loss: PreferenceLoss) -> None:
    logps = some_pairs()
    for distance in (-1e4, 1e4):
        assert logps.reference_chosen is not None
        chosen = (logps.chosen.detach() - abs(distance)).requires_grad_()
        far = replace(logps, chosen=chosen, reference_chosen=logps.chosen.detach() + distance)
        assert torch.isfinite(loss.per_pair(far).losses).all()
        assert torch.isfinite(torch.stack(gradients(loss, far))).all()


@pytest.mark.parametrize("loss", WITH_REFERENCE, ids=named)
def test_a_missing_reference_is_an_error(loss: PreferenceLoss) -> None:
    without = replace(some_pairs(), reference_chosen=None, reference_rejected=None)
    with pytest.raises(ValueError, match="no reference logps"):
        loss.per_pair(without)


@pytest.mark.parametrize(
    ("loss", "missing"),
    [
        (LdDpo(), "single tokens, and was given whole responses"),
        (BetaDpo(), "the whole batch, and was given some pairs of it"),
        (Wpo(align=True), "the probabilities of all tokens, which are missing"),
        (Tdpo(), "the reference's whole distribution, which is missing"),
    ],
    ids=named,
)
def test_a_loss_that_is_not_given_what_it_looks_at_says_what_it_is(
    loss: PreferenceLoss, missing: str
) -> None:
    with pytest.raises(ValueError, match=missing):
        loss.per_pair(some_pairs())


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (Dpo, {"beta": 0.0}),
        (Dpo, {"beta": math.inf}),
        (Dpo, {"beta": math.nan}),
        (Dpo, {"nll_weight": -1.0}),
        (Dpo, {"label_smoothing": 0.5}),
        (Robust, {"label_smoothing": -0.1}),
        (Simpo, {"gamma": -0.5}),
        (Simpo, {"beta": -2.0}),
        (Cpo, {"beta": 0.0}),
        (Orpo, {"beta": 0.0}),
        (ExoPair, {"label_smoothing": 0.0}),
        (Discopop, {"tau": 2.0}),
        (FDpo, {"divergence": "reverse_kl"}),
        (FDpo, {"alpha": 1.0}),
        (CpoHinge, {"beta": 0.0}),
        (CpoIpo, {"beta": -1.0}),
        (AlphaPo, {"alpha": math.inf}),
        (AlphaPo, {"gamma": -0.5}),
        (ApoZeroUnpaired, {"beta": 0.0}),
        (ApoZeroUnpaired, {"desirable_weight": -1.0}),
        (Kto, {"beta": 0.0}),
        (Kto, {"undesirable_weight": -1.0}),
        (BetaDpo, {"beta": 1e-4}),
        (DpoConfig, {"loss": "dpo"}),
        (ReferenceFreeConfig, {"loss": Simpo}),
        (KtoConfig, {"loss": Dpo()}),
        (LoraConfig, {"target_modules": "q_proj"}),
        (LoraConfig, {"quantization": "int4"}),
    ],
)
def test_settings_without_a_meaning_are_refused(loss: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must"):
        loss(**settings)


# --- shares of a global batch ---------------------------------------------------------------------


def some_of(logps: PairLogps, rows: slice) -> PairLogps:
    values = {name: value for name, value in vars(logps).items() if isinstance(value, Tensor)}
    return replace(logps, **{name: value[rows] for name, value in values.items()})


def summed(shares: list[Shares]) -> dict[str, float]:
    names = shares[0].metrics
    sums = {name: sum(s.metrics[name].sum().item() for s in shares) for name in names}
    return {"loss": sum(s.losses.sum().item() for s in shares), **sums}


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=named)
def test_a_batch_is_the_same_however_it_is_cut(loss: PreferenceLoss) -> None:
    loss, logps = replace(loss, nll_weight=0.5), some_pairs(8)
    totals = Totals(8, int(logps.chosen_tokens.sum()))
    whole = summed([loss.shares(logps, totals)])
    for size in (1, 2, 3):
        cuts = [some_of(logps, slice(i, i + size)) for i in range(0, 8, size)]
        cut = summed([loss.shares(part, totals) for part in cuts])
        assert cut == pytest.approx(whole, rel=1e-12)


def test_a_preference_is_a_mean_over_pairs_and_a_likelihood_one_over_tokens() -> None:
    logps, loss = some_pairs(), Dpo(nll_weight=0.5)
    tokens = int(logps.chosen_tokens.sum())
    values = summed([loss.shares(logps, Totals(5, tokens))])
    preference = Dpo().per_pair(logps).losses.mean().item()
    nll = -logps.chosen.sum().item() / tokens
    assert values["loss"] == pytest.approx(preference + 0.5 * nll, rel=1e-12)
    assert values["nll_loss"] == pytest.approx(nll, rel=1e-12)


def test_metrics_are_means_over_pairs_under_trl_s_names() -> None:
    logps, loss = some_pairs(), Dpo(beta=0.5)
    pairs, values = loss.per_pair(logps), summed([loss.shares(logps, Totals(5, 9))])
    margins = pairs.chosen_rewards - pairs.rejected_rewards
    assert values == pytest.approx(
        {
            "loss": pairs.losses.mean().item(),
            "rewards/chosen": pairs.chosen_rewards.mean().item(),
            "rewards/rejected": pairs.rejected_rewards.mean().item(),
            "rewards/margins": margins.mean().item(),
            "rewards/accuracies": (margins > 0).double().mean().item(),
            "logps/chosen": logps.chosen.mean().item(),
            "logps/rejected": logps.rejected.mean().item(),
        }
    )


def test_a_tie_is_not_counted_as_accurate() -> None:
    shares = Dpo().shares(at_its_reference(some_pairs()), Totals(5, 9))
    assert shares.metrics["rewards/accuracies"].sum() == 0


def test_a_pair_of_weight_two_counts_twice_and_one_of_weight_0_not_at_all() -> None:
    logps = some_pairs(3)
    loss, totals = Dpo(nll_weight=1.0), Totals(3, int(logps.chosen_tokens.sum()))
    each = loss.shares(logps, totals).losses
    weights = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    weighted = loss.shares(logps, totals, weights)
    torch.testing.assert_close(weighted.losses, weights * each)
    grad_chosen, _ = torch.autograd.grad(weighted.losses.sum(), [logps.chosen, logps.rejected])
    assert grad_chosen[2] == 0
    unweighted = loss.shares(logps, totals).metrics
    assert all(torch.equal(weighted.metrics[name], unweighted[name]) for name in unweighted)


def test_sft_is_a_mean_over_tokens() -> None:
    logps = torch.tensor([-6.0, -1.0], dtype=torch.float64)
    totals = Totals(examples=2, tokens=5)
    losses = Sft().token_losses(logps)
    assert Sft().shares(losses, totals).losses.sum().item() == pytest.approx(7 / 5)
    weights = torch.tensor([0.5, 0.0], dtype=torch.float64)
    assert Sft().shares(losses, totals, weights).losses.sum().item() == pytest.approx(3 / 5)


def test_dft_weighs_a_token_by_its_probability_which_has_no_gradient() -> None:
    logps = torch.tensor([-0.5, -3.0, -800.0, 0.0], dtype=torch.float64, requires_grad=True)
    losses = Dft().token_losses(logps)
    (gradient,) = torch.autograd.grad(losses.sum(), logps)
    probabilities = [math.exp(logp) for logp in logps.tolist()]
    assert losses.tolist() == pytest.approx([0.5 * probabilities[0], 3 * probabilities[1], 0, 0])
    assert gradient.tolist() == pytest.approx([-p for p in probabilities])


@dataclass(frozen=True)
class WrongSft(SftLoss):
    name: ClassVar[str] = "wrong_sft"

    reduced: bool = True

    def per_token(self, logps: Tensor) -> Tensor:
        return -logps.mean() if self.reduced else -logps.detach()


def test_an_sft_loss_has_a_loss_with_a_gradient_for_each_token() -> None:
    logps = torch.tensor([-0.5, -3.0], dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"WrongSft.per_token returned shape \[\] for 2 tokens"):
        WrongSft().token_losses(logps)
    with pytest.raises(ValueError, match="WrongSft returned losses without a gradient"):
        WrongSft(reduced=False).token_losses(logps)


# --- several losses -------------------------------------------------------------------------------


def test_a_combination_is_the_weighted_sum_of_its_losses() -> None:
    logps = some_pairs()
    both = CombinedReference({"a": Dpo(0.3), "b": Hinge(0.5), "c": Simpo()}, {"b": 0.25, "c": 2.0})
    a, b, c = (loss.per_pair(logps) for loss in both.losses.values())
    sums = both.per_pair(logps)
    torch.testing.assert_close(sums.losses, a.losses + 0.25 * b.losses + 2 * c.losses)
    for side in ("chosen_rewards", "rejected_rewards"):
        rewards = (getattr(a, side) + 0.25 * getattr(b, side) + 2 * getattr(c, side)) / 3.25
        torch.testing.assert_close(getattr(sums, side), rewards)
    assert torch.equal(sums.metrics["loss/b"], b.losses)


def test_losses_of_one_kind_continue_their_own_metrics_in_a_combination() -> None:
    logps = some_pairs().as_batch()
    both = {"slow": BetaDpo(0.3, momentum=0.9), "fast": BetaDpo(0.3, momentum=0.1)}
    combined = CombinedReference({**both, "wpo": Wpo(0.3)})

    def logged(losses: PairLosses) -> dict[str, float]:
        return {name: value.mean().item() for name, value in losses.metrics.items()}

    last = {name: {"step": 1, **logged(loss.per_pair(logps))} for name, loss in both.items()}
    last["combined"] = {"step": 1, **logged(combined.per_pair(logps))}
    later = replace(logps, chosen=logps.chosen + 3).as_batch()
    found = combined.per_pair(replace(later, last=last["combined"]))
    for name, loss in both.items():
        alone = loss.per_pair(replace(later, last=last[name]))
        torch.testing.assert_close(found.metrics[f"loss/{name}"], alone.losses)
        for metric, values in alone.metrics.items():
            torch.testing.assert_close(found.metrics[f"{name}/{metric}"], values)
    assert "weights" in found.metrics  # of one loss, so under its own name


def test_the_likelihood_terms_of_a_combination_add_up() -> None:
    logps = some_pairs()
    totals = Totals(5, int(logps.chosen_tokens.sum()))
    cpo, dpo = Cpo(nll_weight=0.5), Dpo(nll_weight=1.0)
    both = CombinedReference({"cpo": cpo, "dpo": dpo}, {"cpo": 0.2}, nll_weight=0.3)
    nll = -logps.chosen / totals.tokens
    expected = 0.2 * cpo.shares(logps, totals).losses + dpo.shares(logps, totals).losses + 0.3 * nll
    torch.testing.assert_close(both.shares(logps, totals).losses, expected)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (CombinedReference, ({},), "at least one loss"),
        (CombinedReference, ({"dpo": Dpo()}, {"hinge": 1.0}), "weights must be those of losses"),
        (CombinedReference, ({"dpo": Dpo()}, {"dpo": 0.0}), "weights.dpo must be above 0"),
        (CombinedReference, ({"cpo": Cpo()},), "combined_reference_free"),
        (CombinedReferenceFree, ({"cpo": Cpo(), "dpo": Dpo()},), "dpo wants a reference"),
    ],
)
def test_combinations_without_a_meaning_are_refused(
    kind: Any, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(*arguments)


# --- single responses -----------------------------------------------------------------------------


def some_responses(n: int = 6) -> UnpairedLogps:
    logps = some_pairs(n)
    assert logps.reference_chosen is not None
    desirable = torch.tensor([i % 3 != 2 for i in range(n)])
    return UnpairedLogps(logps.chosen, logps.chosen_tokens, logps.reference_chosen, desirable)


def test_kto_equals_the_paper_s_formula() -> None:
    logps, kto = some_responses(), Kto(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
    z = 0.4
    expected = [
        1.5 * (1 - sigmoid(0.3 * (r - z))) if good else 0.5 * (1 - sigmoid(0.3 * (z - r)))
        for r, good in zip(logps.ratios.tolist(), logps.desirable.tolist(), strict=True)
    ]
    responses = kto.per_response(logps, torch.tensor(z, dtype=torch.float64))
    assert responses.losses.tolist() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(responses.rewards, 0.3 * logps.ratios)
    (gradient,) = torch.autograd.grad(responses.losses.sum(), [logps.responses])
    bends = [sigmoid(0.3 * (r - z)) * sigmoid(0.3 * (z - r)) for r in logps.ratios.tolist()]
    weights = [-1.5 if good else 0.5 for good in logps.desirable.tolist()]
    slopes = [0.3 * weight * bend for weight, bend in zip(weights, bends, strict=True)]
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12)


def test_kto_s_baseline_is_a_mean_that_is_not_negative_and_has_no_gradient() -> None:
    kto = Kto()
    ratios = torch.tensor([3.0, -1.0], dtype=torch.float64, requires_grad=True)
    assert kto.baseline(ratios).item() == 1.0
    assert kto.baseline(-ratios).item() == 0.0
    assert not kto.baseline(ratios).requires_grad


def test_kto_without_its_baseline_is_an_error() -> None:
    with pytest.raises(ValueError, match="baseline"):
        Kto().per_response(some_responses(), None)


def test_a_batch_of_responses_is_the_same_however_it_is_cut() -> None:
    logps = some_responses()
    totals = Totals(6, int(logps.tokens.sum()), int(logps.desirable.sum()))
    z = torch.tensor(0.4, dtype=torch.float64)
    whole = summed([Kto().shares(logps, totals, z)])
    cuts = [UnpairedLogps(*(v[i : i + 2] for v in vars(logps).values())) for i in range(0, 6, 2)]
    assert summed([Kto().shares(part, totals, z) for part in cuts]) == pytest.approx(whole)
    rewards, good = 0.1 * logps.ratios, logps.desirable
    margin = rewards[good].mean().item() - rewards[~good].mean().item()
    assert whole["kl"] == pytest.approx(0.4)
    assert whole["rewards/chosen"] == pytest.approx(rewards[good].mean().item())
    assert whole["rewards/rejected"] == pytest.approx(rewards[~good].mean().item())
    assert whole["rewards/margins"] == pytest.approx(margin)
    assert whole["logps/rejected"] == pytest.approx(logps.responses[~good].mean().item())


def test_a_batch_without_bad_responses_reports_nothing_of_them() -> None:
    logps = replace(some_responses(), desirable=torch.ones(6, dtype=torch.bool))
    shares = Kto().shares(logps, Totals(6, 30, 6), torch.tensor(0.0))
    assert shares.metrics.keys() == {"rewards/chosen", "logps/chosen", "kl"}


# --- the registry ---------------------------------------------------------------------------------


def test_alphapo_becomes_simpo_as_its_alpha_vanishes() -> None:
    simpo = Simpo(beta=2.5, gamma=0.7).per_pair(some_pairs())
    exactly, nearly = (AlphaPo(alpha, 2.5, 0.7).per_pair(some_pairs()) for alpha in (0.0, 1e-9))
    torch.testing.assert_close(exactly.losses, simpo.losses, rtol=1e-14, atol=0)
    torch.testing.assert_close(nearly.losses, simpo.losses, rtol=1e-7, atol=0)


def test_the_reward_that_f_dpo_gives_overflows_into_an_error_and_not_into_a_number() -> None:
    logps = some_pairs()
    assert logps.reference_chosen is not None
    far = replace(logps, reference_chosen=logps.chosen.detach() + 1e4)
    assert torch.isfinite(FDpo(divergence=Divergence.js).per_pair(far).losses).all()
    assert not torch.isfinite(FDpo(divergence=Divergence.forward_kl).per_pair(far).losses).any()


def test_every_loss_is_known_by_its_name() -> None:
    known = {name: loss for name, loss in losses_of(Loss).items() if is_shipped(loss)}
    assert {"dpo", "ipo", "hinge", "robust", "simpo", "cpo", "orpo", "kto", "apo_zero",
            "apo_down", "sft", "combined"} <= known.keys()  # fmt: skip
    assert known["ipo"] is Ipo
    for name, loss in known.items():
        assert loss.__module__.rpartition(".")[2] in {name, "combined"}


def test_every_loss_over_pairs_is_in_the_documentation(repository: Path) -> None:
    table = (repository / "docs/training.md").read_text("utf-8")
    for name, loss in shipped_losses().items():
        (line,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
        for field in fields(loss):
            if field.name != "nll_weight":
                assert f"`{field.name}`" in line


def test_a_loss_that_gives_no_value_a_pair_is_refused() -> None:
    """A mean broadcasts to every pair, and would train."""

    class Mean(Dpo):
        def per_pair(self, logps: PairLogps) -> PairLosses:
            pairs = super().per_pair(logps)
            return replace(pairs, losses=pairs.losses.mean())

    class Bare(Dpo):
        def per_pair(self, logps: PairLogps) -> Any:
            return super().per_pair(logps).losses

    logps = at_its_reference(some_pairs())
    totals = Totals(len(logps.chosen), 100)
    with pytest.raises(ValueError, match=r"Mean.per_pair returned losses with shape \[\]"):
        Mean().shares(logps, totals)
    with pytest.raises(TypeError, match=r"Bare.per_pair must return PairLosses, got Tensor"):
        Bare().shares(logps, totals)


def test_a_loss_without_a_gradient_is_refused_while_training_and_scored_without() -> None:
    class Frozen(Dpo):
        def per_pair(self, logps: PairLogps) -> PairLosses:
            pairs = super().per_pair(logps)
            return replace(pairs, losses=pairs.losses.detach())

    logps, totals = at_its_reference(some_pairs()), Totals(8, 100)
    trained = replace(logps, chosen=logps.chosen.detach().requires_grad_())
    Frozen().shares(replace(logps, chosen=trained.chosen.detach()), totals)
    with pytest.raises(ValueError, match="Frozen returned losses without a gradient"):
        Frozen().shares(trained, totals)


def test_an_unpaired_loss_that_gives_no_value_a_response_is_refused() -> None:
    class Mean(Kto):
        def per_response(self, logps: UnpairedLogps, baseline: Any) -> UnpairedLosses:
            found = super().per_response(logps, baseline)
            return replace(found, losses=found.losses.mean())

    values = torch.zeros(4, dtype=torch.float64)
    logps = UnpairedLogps(values, values + 3, values, values == 0)
    told = r"Mean.per_response returned losses with shape \[\] for 4 responses"
    with pytest.raises(ValueError, match=told):
        Mean().shares(logps, Totals(4, 12, 4), values.sum())
