"""The losses beside TRL's own, number for number in float64. Skipped where TRL is not installed.

What TRL computes from a model's outputs is called here with outputs that are made up, so that it is
TRL's arithmetic that is run and no model.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from steps.losses.apo_down import ApoDown
from steps.losses.apo_zero import ApoZero
from steps.losses.base import PairLogps, PreferenceLoss, Totals, UnpairedLogps, UnpairedLoss
from steps.losses.combined import CombinedReference
from steps.losses.cpo import Cpo
from steps.losses.dpo import Dpo
from steps.losses.hinge import Hinge
from steps.losses.ipo import Ipo
from steps.losses.kto import Kto
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
from steps.losses.with_reference.bco_pair import BcoPair
from steps.losses.with_reference.discopop import Discopop
from steps.losses.with_reference.exo_pair import ExoPair
from steps.losses.with_reference.f_dpo import Divergence, FDpo
from steps.losses.with_reference.nca_pair import NcaPair
from steps.losses.with_reference.sigmoid_norm import SigmoidNorm
from steps.losses.with_reference.sppo_hard import SppoHard
from steps.losses.with_reference.wpo import Wpo

pytest.importorskip("trl", minversion="1.16")

PAIRS, LENGTH = 6, 12


def per_token(seed: int, rows: int = 2 * PAIRS) -> tuple[Tensor, Tensor]:
    """Logps of the tokens of `rows` responses and which are there, [rows, LENGTH] each."""
    generator = torch.Generator().manual_seed(seed)
    logps = -3 * torch.rand((rows, LENGTH), generator=generator, dtype=torch.float64) - 0.05
    lengths = torch.randint(1, LENGTH, (rows, 1), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(LENGTH) < lengths
    return logps * mask, mask


def pair_logps() -> PairLogps:
    policy, mask = per_token(seed=1)
    reference, _ = per_token(seed=2)
    chosen, rejected = policy.sum(dim=1).chunk(2)
    reference_chosen, reference_rejected = reference.sum(dim=1).chunk(2)
    chosen_tokens, rejected_tokens = mask.sum(dim=1).chunk(2)
    logps = PairLogps(
        chosen, rejected, chosen_tokens, rejected_tokens, reference_chosen, reference_rejected
    )
    order = torch.arange(2 * PAIRS).view(2, PAIRS).T.flatten()  # here pair by pair
    tokens, theirs = (values[order][mask[order]] for values in (policy, reference))
    return replace(logps, tokens=tokens, reference_tokens=theirs).as_batch()


def totals(logps: PairLogps) -> Totals:
    return Totals(PAIRS, int(logps.chosen_tokens.sum()))


def outputs_of(logps: Tensor) -> Any:
    nothing = torch.zeros_like(logps)
    return SimpleNamespace(
        log_probs=logps,
        entropy=nothing,
        mean_logits=nothing,
        is_top1=nothing.bool(),
        log_sum_sq_probs=nothing,
    )


def trainer(**settings: Any) -> Any:
    """What TRL's loss functions look for in their trainer."""
    from collections import defaultdict

    same = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x
    )
    defaults = {
        "accelerator": same,
        "aux_loss_enabled": False,
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    return SimpleNamespace(**defaults, **settings)


@pytest.mark.parametrize(
    ("loss", "types", "weights"),
    [
        (Dpo(beta=0.3), ["sigmoid"], [1.0]),
        (Ipo(beta=0.3), ["ipo"], [1.0]),
        (Hinge(beta=0.3), ["hinge"], [1.0]),
        (Robust(beta=0.3, label_smoothing=0.2), ["robust"], [1.0]),
        (ApoZero(beta=0.3), ["apo_zero"], [1.0]),
        (ApoDown(beta=0.3), ["apo_down"], [1.0]),
        (NcaPair(beta=0.3), ["nca_pair"], [1.0]),
        (BcoPair(beta=0.3), ["bco_pair"], [1.0]),
        (SppoHard(beta=0.3), ["sppo_hard"], [1.0]),
        (Discopop(beta=0.3, tau=0.2), ["discopop"], [1.0]),
        (SigmoidNorm(beta=0.3), ["sigmoid_norm"], [1.0]),
        (Aot(beta=0.3, label_smoothing=0.2), ["aot"], [1.0]),
        (AotUnpaired(beta=0.3, label_smoothing=0.2), ["aot_unpaired"], [1.0]),
        (
            CombinedReference({"dpo": Dpo(0.3), "aot": Aot(0.3, label_smoothing=0.2)}),
            ["sigmoid", "aot"],
            [1.0, 1.0],
        ),
        (Dpo(beta=0.3, nll_weight=0.5), ["sigmoid", "sft"], [1.0, 0.5]),
        (
            CombinedReference(
                {"hinge": Hinge(0.3), "apo": ApoZero(0.3)}, {"apo": 0.2}, nll_weight=0.7
            ),
            ["hinge", "apo_zero", "sft"],
            [1.0, 0.2, 0.7],
        ),
    ],
    ids=str,
)
def test_losses_with_a_reference_equal_trl_s(
    loss: PreferenceLoss, types: list[str], weights: list[float]
) -> None:
    expected, trl = trl_loss(types, weights)
    shares = loss.shares(pair_logps(), totals(pair_logps()))
    assert shares.losses.sum().item() == pytest.approx(expected, rel=1e-12)
    for name, values in shares.metrics.items():
        if name != "nll_loss" and not name.startswith("loss/"):
            [logged] = trl._metrics["train"][name]
            assert values.sum().item() == pytest.approx(logged, rel=1e-6), name  # some are float32


def test_exo_equals_trl_s() -> None:
    expected, _ = trl_loss(["exo_pair"], [1.0])
    losses = ExoPair(beta=0.3, label_smoothing=0.2).per_pair(pair_logps()).losses
    assert losses.mean().item() == pytest.approx(expected, rel=1e-6)  # it has ε in float32


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (FDpo(0.3, Divergence.forward_kl), {"f_divergence_type": "forward_kl"}),
        (FDpo(0.3, Divergence.js), {"f_divergence_type": "js_divergence"}),
        (LdDpo(0.3, alpha=0.25), {"ld_alpha": 0.25}),
    ],
    ids=str,
)
def test_what_trl_has_as_settings_of_its_sigmoid_loss_equals_it(
    loss: PreferenceLoss, settings: dict[str, Any]
) -> None:
    expected, _ = trl_loss(["sigmoid"], [1.0], **settings)
    assert loss.per_pair(pair_logps()).losses.mean().item() == pytest.approx(expected, rel=1e-12)


def test_wpo_equals_trl_s_where_every_token_is_as_likely_as_its_own_samples() -> None:
    """TRL divides a token's probability by that expectation, which is 1 here."""
    expected, _ = trl_loss(["sigmoid"], [1.0], use_weighting=True)
    losses = Wpo(beta=0.3).per_pair(pair_logps()).losses
    assert losses.mean().item() == pytest.approx(expected, rel=1e-12)


def test_the_alpha_divergence_equals_trl_s_of_one_minus_alpha() -> None:
    settings = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.75}
    expected, _ = trl_loss(["sigmoid"], [1.0], dtype=torch.float32, **settings)  # no float64 there
    losses = FDpo(0.3, Divergence.alpha, alpha=0.25).per_pair(pair_logps()).losses
    assert losses.mean().item() == pytest.approx(expected, rel=1e-5)


def trl_loss(
    types: list[str], weights: list[float], dtype: torch.dtype = torch.float64, **settings: Any
) -> tuple[float, Any]:
    """What `DPOTrainer` makes of the pairs of `pair_logps`, and its trainer with what it logged."""
    from trl import DPOTrainer  # pyright: ignore[reportMissingImports]

    (policy, mask), (reference, _) = per_token(seed=1), per_token(seed=2)
    ref_tokens = reference.to(dtype)
    if settings.get("ld_alpha") is not None:
        ref_tokens = desensitized(reference, mask, settings["ld_alpha"])
    ref_chosen, ref_rejected = ref_tokens.sum(dim=1).chunk(2)
    prompt = torch.zeros((2 * PAIRS, 1), dtype=torch.bool)
    completion_mask = torch.cat([prompt, mask], dim=1).long()
    trl = trainer(
        loss_types=types,
        loss_weights=weights,
        beta=0.3,
        label_smoothing=0.2,
        args=SimpleNamespace(discopop_tau=0.2),
        precompute_ref_logps=True,
        **{"f_divergence_type": "reverse_kl", "ld_alpha": None, "use_weighting": False} | settings,
    )
    expected = DPOTrainer._compute_loss(
        trl,
        lambda **_: outputs_of(policy.to(dtype)),
        {
            "input_ids": torch.ones_like(completion_mask),
            "attention_mask": torch.ones_like(completion_mask),
            "completion_mask": completion_mask,
            "ref_chosen_logps": ref_chosen,
            "ref_rejected_logps": ref_rejected,
        },
        return_outputs=False,
    )
    return expected.item(), trl


def desensitized(tokens: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """The reference as TRL's own pass with `ld_alpha` takes it, which `precompute_ref_logps` does
    not come by."""
    chosen, rejected = mask.sum(dim=1).chunk(2)
    shared = torch.minimum(chosen, rejected).repeat(2)
    beyond = torch.arange(tokens.shape[1]) >= shared[:, None]
    return torch.where(beyond, alpha * tokens, tokens)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cpo_equals_trl_s(smoothing: float) -> None:
    from trl.experimental.cpo import CPOTrainer  # pyright: ignore[reportMissingImports]

    logps = pair_logps()
    settings = {"alpha": 0.0, "beta": 0.3, "label_smoothing": smoothing}
    trl = trainer(loss_type="sigmoid", **settings)
    losses, *rewards = CPOTrainer.cpo_loss(trl, logps.chosen, logps.rejected)
    ours = Cpo(beta=0.3, label_smoothing=smoothing).per_pair(logps)
    torch.testing.assert_close(ours.losses, losses, rtol=1e-12, atol=0)
    torch.testing.assert_close((ours.chosen_rewards, ours.rejected_rewards), tuple(rewards))
    nll = -logps.chosen.sum() / logps.chosen_tokens.sum()
    shares = Cpo(beta=0.3, label_smoothing=smoothing, nll_weight=0.5).shares(logps, totals(logps))
    torch.testing.assert_close(shares.losses.sum(), losses.mean() + 0.5 * nll)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_simpo_equals_trl_s(smoothing: float) -> None:
    from trl.experimental.cpo import CPOTrainer  # pyright: ignore[reportMissingImports]

    logps = pair_logps()
    settings = {"alpha": 0.0, "beta": 2.5, "simpo_gamma": 0.7, "label_smoothing": smoothing}
    trl = trainer(loss_type="simpo", **settings)
    means = (logps.chosen / logps.chosen_tokens, logps.rejected / logps.rejected_tokens)
    losses, *rewards = CPOTrainer.cpo_loss(trl, *means)
    ours = Simpo(beta=2.5, gamma=0.7, label_smoothing=smoothing).per_pair(logps)
    torch.testing.assert_close(ours.losses, losses, rtol=1e-12, atol=0)
    torch.testing.assert_close((ours.chosen_rewards, ours.rejected_rewards), tuple(rewards))


@pytest.mark.parametrize(
    ("loss", "kind", "means"),
    [(CpoHinge(beta=0.3), "hinge", False), (CpoIpo(beta=0.3), "ipo", True)],
    ids=["hinge", "ipo"],
)
def test_cpo_s_other_losses_equal_trl_s(loss: PreferenceLoss, kind: str, means: bool) -> None:
    from trl.experimental.cpo import CPOTrainer  # pyright: ignore[reportMissingImports]

    logps = pair_logps()
    given = (logps.chosen, logps.rejected)
    if means:
        given = (logps.chosen / logps.chosen_tokens, logps.rejected / logps.rejected_tokens)
    trl = trainer(loss_type=kind, alpha=0.0, beta=0.3, label_smoothing=0.0)
    losses, *rewards = CPOTrainer.cpo_loss(trl, *given)
    ours = loss.per_pair(logps)
    torch.testing.assert_close(ours.losses, losses, rtol=1e-12, atol=0)
    torch.testing.assert_close((ours.chosen_rewards, ours.rejected_rewards), tuple(rewards))


@pytest.mark.parametrize("alpha", [0.25, -0.5])
def test_alphapo_equals_trl_s(alpha: float) -> None:
    from trl.experimental.cpo import CPOTrainer  # pyright: ignore[reportMissingImports]

    logps = pair_logps()
    settings = {"alpha": alpha, "beta": 2.5, "simpo_gamma": 0.7, "label_smoothing": 0.2}
    trl = trainer(loss_type="simpo", **settings)
    means = (logps.chosen / logps.chosen_tokens, logps.rejected / logps.rejected_tokens)
    losses, *rewards = CPOTrainer.cpo_loss(trl, *means)
    ours = AlphaPo(alpha, beta=2.5, gamma=0.7, label_smoothing=0.2).per_pair(logps)
    torch.testing.assert_close(ours.losses, losses, rtol=1e-12, atol=0)
    torch.testing.assert_close((ours.chosen_rewards, ours.rejected_rewards), tuple(rewards))


def test_orpo_equals_trl_s() -> None:
    from trl.experimental.orpo import ORPOTrainer  # pyright: ignore[reportMissingImports]

    logps = pair_logps()
    means = (logps.chosen / logps.chosen_tokens, logps.rejected / logps.rejected_tokens)
    # It casts to float32 by itself, so no closer agreement is to be had.
    losses, *rewards, ratio, odds = ORPOTrainer.odds_ratio_loss(trainer(beta=0.3), *means)
    ours = Orpo(beta=0.3).per_pair(logps)
    torch.testing.assert_close(ours.losses, -losses.double(), rtol=1e-5, atol=1e-7)
    rewards = tuple(reward.double() for reward in rewards)
    torch.testing.assert_close(
        (ours.chosen_rewards, ours.rejected_rewards), rewards, rtol=1e-6, atol=0
    )
    assert ours.metrics["log_odds_ratio"].mean().item() == pytest.approx(ratio.item(), rel=1e-5)
    assert ours.metrics["log_odds_chosen"].mean().item() == pytest.approx(odds.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "sign"),
    [(Kto(0.3, 1.5, 0.5), 1), (Kto(0.3, 1.5, 0.5), -1), (ApoZeroUnpaired(0.3, 1.5, 0.5), 1)],
    ids=["kto", "kto with a baseline that would be below 0", "apo_zero_unpaired"],
)
def test_losses_of_single_responses_equal_trl_s(loss: UnpairedLoss, sign: int) -> None:
    from trl import KTOTrainer  # pyright: ignore[reportMissingImports]

    (policy, mask), (reference, _) = per_token(1, PAIRS), per_token(2, PAIRS)
    mismatched = sign * torch.linspace(0, 3, PAIRS, dtype=torch.float64)
    desirable = torch.tensor([i % 3 != 2 for i in range(PAIRS)])
    completion_mask = torch.cat([torch.zeros((PAIRS, 1)), mask], dim=1).long()
    trl = trainer(
        loss_type=loss.name,
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.5,
        calculate_KL=loss.needs_baseline,
        precompute_ref_logps=True,
        _compute_kl_logps=lambda *_: mismatched,
    )
    expected = KTOTrainer._compute_loss(
        trl,
        lambda **_: outputs_of(policy),
        {
            "input_ids": torch.ones_like(completion_mask),
            "attention_mask": torch.ones_like(completion_mask),
            "completion_mask": completion_mask,
            "label": desirable,
            "ref_logps": reference.sum(dim=1),
            "ref_KL_logps": torch.zeros(PAIRS, dtype=torch.float64),
        },
        return_outputs=False,
    )
    logps = UnpairedLogps(policy.sum(dim=1), mask.sum(dim=1), reference.sum(dim=1), desirable)
    counts = Totals(PAIRS, int(mask.sum()), int(desirable.sum()))
    baseline = loss.baseline(mismatched) if loss.needs_baseline else None
    shares = loss.shares(logps, counts, baseline)
    assert shares.losses.sum().item() == pytest.approx(expected.item(), rel=1e-12)
    for name, values in shares.metrics.items():
        [logged] = trl._metrics["train"][name]
        assert values.sum().item() == pytest.approx(logged, rel=1e-12), name
