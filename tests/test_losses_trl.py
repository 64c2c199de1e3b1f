"""The losses beside TRL's own, number for number in float64. Skipped where TRL is not installed.

What TRL computes from a model's outputs is called here with outputs that are made up, so that it is
TRL's arithmetic that is run and no model.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from steps.training.losses.apo_down import ApoDown
from steps.training.losses.apo_zero import ApoZero
from steps.training.losses.base import PairLogps, PreferenceLoss, Totals, UnpairedLogps
from steps.training.losses.combined import CombinedReference
from steps.training.losses.cpo import Cpo
from steps.training.losses.dpo import Dpo
from steps.training.losses.hinge import Hinge
from steps.training.losses.ipo import Ipo
from steps.training.losses.kto import Kto
from steps.training.losses.orpo import Orpo
from steps.training.losses.robust import Robust
from steps.training.losses.simpo import Simpo

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
    return PairLogps(
        chosen, rejected, chosen_tokens, rejected_tokens, reference_chosen, reference_rejected
    )


def totals(logps: PairLogps) -> Totals:
    return Totals(PAIRS, int(logps.chosen_tokens.sum()))


def outputs_of(logps: Tensor) -> Any:
    nothing = torch.zeros_like(logps)
    return SimpleNamespace(
        log_probs=logps, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool()
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
    from trl import DPOTrainer  # pyright: ignore[reportMissingImports]

    (policy, mask), (reference, _) = per_token(seed=1), per_token(seed=2)
    ref_chosen, ref_rejected = reference.sum(dim=1).chunk(2)
    prompt = torch.zeros((2 * PAIRS, 1), dtype=torch.bool)
    completion_mask = torch.cat([prompt, mask], dim=1).long()
    trl = trainer(
        loss_types=types,
        loss_weights=weights,
        beta=0.3,
        label_smoothing=0.2,
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        use_weighting=False,
        precompute_ref_logps=True,
    )
    expected = DPOTrainer._compute_loss(
        trl,
        lambda **_: outputs_of(policy),
        {
            "input_ids": torch.ones_like(completion_mask),
            "attention_mask": torch.ones_like(completion_mask),
            "completion_mask": completion_mask,
            "ref_chosen_logps": ref_chosen,
            "ref_rejected_logps": ref_rejected,
        },
        return_outputs=False,
    )
    shares = loss.shares(pair_logps(), totals(pair_logps()))
    assert shares.losses.sum().item() == pytest.approx(expected.item(), rel=1e-12)
    for name, values in shares.metrics.items():
        if name != "nll_loss" and not name.startswith("loss/"):
            [logged] = trl._metrics["train"][name]
            assert values.sum().item() == pytest.approx(logged, rel=1e-6), name  # some are float32


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


@pytest.mark.parametrize("sign", [1, -1])
def test_kto_equals_trl_s(sign: int) -> None:
    """With a baseline above zero, and with one that would be below."""
    from trl import KTOTrainer  # pyright: ignore[reportMissingImports]

    (policy, mask), (reference, _) = per_token(1, PAIRS), per_token(2, PAIRS)
    mismatched = sign * torch.linspace(0, 3, PAIRS, dtype=torch.float64)
    desirable = torch.tensor([i % 3 != 2 for i in range(PAIRS)])
    completion_mask = torch.cat([torch.zeros((PAIRS, 1)), mask], dim=1).long()
    trl = trainer(
        loss_type="kto",
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.5,
        calculate_KL=True,
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
    kto = Kto(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
    logps = UnpairedLogps(policy.sum(dim=1), mask.sum(dim=1), reference.sum(dim=1), desirable)
    counts = Totals(PAIRS, int(mask.sum()), int(desirable.sum()))
    shares = kto.shares(logps, counts, kto.baseline(mismatched))
    assert shares.losses.sum().item() == pytest.approx(expected.item(), rel=1e-12)
    for name, values in shares.metrics.items():
        [logged] = trl._metrics["train"][name]
        assert values.sum().item() == pytest.approx(logged, rel=1e-12), name
