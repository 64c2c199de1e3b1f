"""Whole batches against the oracle: losses of every kind of input, their likelihood term, their
weights, however the batch is cut into forwards.

A batch goes through a trainer as in training. The model is GPT-2, which computes in float64
throughout when it is told to.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import torch
from families import FAMILIES
from oracle import assert_same_gradients
from tiny_models import model_folder
from token_groups import pairs, reference_logps, responses
from torch import Tensor
from transformers import PreTrainedModel

from steps.losses.base import PreferenceLoss, SftLoss
from steps.losses.combined import CombinedReference
from steps.losses.dpo import Dpo
from steps.losses.imitation.dft import Dft
from steps.losses.imitation.sft import Sft
from steps.losses.ipo import Ipo
from steps.losses.kto import Kto
from steps.losses.simpo import Simpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import TokenLogps
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig
from steps.training.objectives import (
    Objective,
    preference_objective,
    sft_objective,
    unpaired_objective,
)
from steps.training.trainer import StepResult, Trainer

WHOLE_BATCH = 10**6

# A loss, and its textbook form: logps and reference logps of the two responses, and their lengths.
Textbook = Callable[[Tensor, Tensor, Tensor, Tensor, int, int], Tensor]
# Losses are functions of what is tested here; `test_exact_losses` has the equations of all.
LOSSES: dict[str, tuple[PreferenceLoss, Textbook]] = {
    "dpo": (Dpo(0.3), lambda c, r, rc, rr, nc, nr: oracle.dpo(c, r, rc, rr, 0.3)),
    "ipo": (Ipo(0.3), lambda c, r, rc, rr, nc, nr: oracle.ipo(c, r, rc, rr, nc, nr, 0.3)),
    "simpo": (
        Simpo(2.0, gamma=0.7),
        lambda c, r, rc, rr, nc, nr: oracle.simpo(c, r, nc, nr, 2.0, 0.7),
    ),
    "combined": (
        CombinedReference({"dpo": Dpo(0.3), "ipo": Ipo(0.5)}, {"ipo": 0.2}),
        lambda c, r, rc, rr, nc, nr: (
            oracle.dpo(c, r, rc, rr, 0.3) + 0.2 * oracle.ipo(c, r, rc, rr, nc, nr, 0.5)
        ),
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "gpt2", FAMILIES["gpt2"])


def run(
    folder: Path, objective: Objective, tokens_per_forward: int = WHOLE_BATCH, dtype=Dtype.float64
) -> tuple[PreTrainedModel, StepResult, int]:
    """One batch of everything; the model with its gradients, the result, and how many forwards."""
    model = load_model(folder, dtype)
    use_packed_attention(model)
    trainer = Trainer(Scorer(model, tokens_per_forward), OptimizerConfig())
    baseline = None
    if objective.baseline_groups is not None:
        prepared = trainer.prepare(objective.baseline_groups)
        baseline = trainer.logps(prepared).result().of(prepared.groups)
    loss = objective.batch_loss(range(len(objective.groups)), baseline)
    batch = trainer.prepare(objective.groups)
    result = trainer.forward_backward(batch, loss).result()
    trainer.close()
    return model, result, len(batch.packs)


def scored(response: TokenResponse, prompt: Sequence[int]) -> int:
    return len(response.ids) - (not prompt)


def textbook_loss(
    model: PreTrainedModel,
    groups: Sequence[TokenGroup],
    reference: Tensor,
    loss: Textbook,
    nll_weight: float,
) -> Tensor:
    """The mean over pairs of what each weighs, and the mean over the chosen responses' tokens."""
    preference, nll, tokens = [], [], 0
    for pair, (rc, rr) in zip(groups, reference, strict=True):
        c, r = (oracle.logp(model, *response) for response in responses(pair))
        nc, nr = (scored(response, pair.prompt_ids) for response in pair.responses)
        preference.append(pair.weight * loss(c, r, rc, rr, nc, nr))
        nll.append(-pair.weight * c)
        tokens += nc
    mean_nll = torch.stack(nll).sum() / tokens
    return torch.stack(preference).sum() / len(groups) + nll_weight * mean_nll


@pytest.mark.parametrize(
    ("name", "nll_weight"),
    [
        *((name, 0.6) for name in LOSSES),
        ("dpo", 0.0),
        *(pytest.param(name, 0.0, marks=pytest.mark.attack) for name in LOSSES if name != "dpo"),
    ],
)
def test_a_preference_loss_equals_its_paper_s(folder: Path, name: str, nll_weight: float) -> None:
    loss, formula = LOSSES[name]
    groups = [replace(pair, weight=1.0 + 0.5 * (i % 3)) for i, pair in enumerate(pairs())]
    reference = reference_logps(len(groups))
    slow = oracle.load(folder)
    textbook = textbook_loss(slow, groups, reference, formula, nll_weight)
    expected = oracle.gradients(slow, textbook)
    objective = preference_objective(groups, replace(loss, nll_weight=nll_weight), reference)
    model, result, _ = run(folder, objective)
    torch.testing.assert_close(result.losses.sum(), textbook.detach(), rtol=0, atol=1e-10)
    assert_same_gradients(model, expected)


@pytest.mark.parametrize("loss", [Sft(), Dft()])
def test_sft_is_the_mean_over_all_response_tokens(folder: Path, loss: SftLoss) -> None:
    groups = demonstrations()
    slow = oracle.load(folder)
    values = [oracle.token_logps(slow, g.prompt_ids, g.responses[0].ids) for g in groups]
    logps = torch.cat(values)
    textbook = -(logps * logps.detach().exp() if isinstance(loss, Dft) else logps).mean()
    expected = oracle.gradients(slow, textbook)
    model, result, _ = run(folder, sft_objective(groups, loss))
    torch.testing.assert_close(result.losses.sum(), textbook.detach(), rtol=0, atol=1e-10)
    assert_same_gradients(model, expected)


def test_kto_equals_its_paper_s(folder: Path) -> None:
    groups = [replace(g, label=i % 3 != 1) for i, g in enumerate(demonstrations())]
    mismatched = [
        replace(g, responses=groups[i - 1].responses, group_id=f"mismatched {i}")
        for i, g in enumerate(groups)
    ]
    slow = oracle.load(folder)

    def logps(groups: Sequence[TokenGroup]) -> Tensor:
        return torch.stack(
            [oracle.logp(slow, *response) for g in groups for response in responses(g)]
        )

    with torch.no_grad():
        reference, mismatched_reference = logps(groups) + 0.3, logps(mismatched) - 1.0
        baseline = (logps(mismatched) - mismatched_reference).mean().clamp(min=0)
    assert baseline > 0.9

    losses = [
        oracle.kto(policy, before, baseline, bool(g.label), beta=0.4)
        for policy, before, g in zip(logps(groups), reference, groups, strict=True)
    ]
    textbook = torch.stack(losses).mean()
    expected = oracle.gradients(slow, textbook)
    objective = unpaired_objective(groups, Kto(0.4), reference, mismatched, mismatched_reference)
    model, result, _ = run(folder, objective)
    torch.testing.assert_close(result.losses.sum(), textbook.detach(), rtol=0, atol=1e-10)
    assert_same_gradients(model, expected)


def demonstrations() -> list[TokenGroup]:
    return [replace(pair, responses=pair.responses[:1]) for pair in pairs()]


# --- however the batch is cut --------------------------------------------------------------------


def each_its_own(family: str) -> tuple[Objective, Tensor | None, Tensor]:
    """An objective in which no two examples have anything in common; what the policy gives to its
    baseline groups, if it has such; and how much a batch of each example alone is divided by."""
    count, sides = 6, 2 if family == "pairs" else 1
    groups = [
        TokenGroup(
            f"{i}",
            f"{i}",
            (3,),
            tuple(TokenResponse((4,) * (i + side + 1)) for side in range(sides)),
            label=i % 2 == 0,
            weight=1.0 + i,
        )
        for i in range(count)
    ]
    reference, baseline = -torch.arange(2.0 * count).double().view(count, 2), None
    one = torch.ones(count, dtype=torch.float64)
    match family:
        case "pairs":
            return preference_objective(groups, Ipo(0.3), reference), None, one
        case "sft":
            return sft_objective(groups), None, one * torch.arange(1, count + 1)
        case _:
            baseline = torch.arange(count).double() ** 2 - 50
            kto = unpaired_objective(groups, Kto(0.4), reference[:, 0], groups, baseline)
            return kto, baseline + 0.5, one


def one_token_each(logps: Tensor) -> TokenLogps:
    return TokenLogps(logps.flatten(), torch.ones_like(logps, dtype=torch.int64))


@pytest.mark.parametrize("family", ["pairs", "sft", "kto"])
def test_an_example_keeps_what_is_its_own_in_any_batch_and_any_forward(family: str) -> None:
    """Its weight, its reference, its label and its lengths."""
    objective, baseline, divisors = each_its_own(family)
    logps = torch.linspace(-9, -1, 12, dtype=torch.float64).view(6, 2)
    logps = logps if family == "pairs" else logps[:, :1]

    def losses(batch: list[int], members: list[int]) -> Tensor:
        of_baseline = None if baseline is None else one_token_each(baseline[batch, None])
        loss = objective.batch_loss(batch, of_baseline)
        chosen = [batch[member] for member in members]
        return loss(one_token_each(logps[chosen]), torch.tensor(members))[0] * divisors[batch].sum()

    alone = torch.cat([losses([i], [0]) for i in range(6)])
    assert len(set(alone.tolist())) == 6
    torch.testing.assert_close(losses([5, 1, 3], [2, 0]), alone[[3, 5]])
