"""The two methods in one file of plain PyTorch say what production computes."""

import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from places import REPOSITORY
from tiny_models import gpt2, pair_records
from torch import Tensor, nn

from steps.losses.dpo import Dpo
from steps.models.ranks import ALONE
from steps.online.methods.experience import Experience
from steps.online.methods.policy_gradient import Advantage, Kl, Over, PolicyGradient
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.training.config import OptimizerConfig
from steps.training.objectives import Objective, preference_objective
from steps.training.trainer import build_trainer

BETA = 0.3
PAIRS = [[r[f"{n}_ids"] for n in ("prompt", "chosen", "rejected")] for r in pair_records(6)]
"""Of many lengths: the file pads them, and production packs them."""


def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, REPOSITORY / f"examples/{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    return gpt2().double().eval()


def produced(policy: nn.Module, objective: Objective) -> tuple[float, list[Tensor]]:
    """The loss and the gradients that a trainer computes of all examples, in several packs."""
    trainer = build_trainer(policy, 32, ALONE, OptimizerConfig())  # pyright: ignore
    indices = range(len(objective.groups))
    batch = trainer.prepare(objective.groups)
    losses = trainer.forward_backward(batch, objective.batch_loss(indices, None)).result().losses
    trainer.close()
    return losses.sum().item(), gradients(policy)


def gradients(policy: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    return found


def assert_equal(
    policy: nn.Module, loss: Tensor, gradient: Sequence[Tensor], objective: Objective
) -> None:
    expected, of_production = produced(policy, objective)
    assert loss.item() == pytest.approx(expected, abs=1e-10)
    assert len(gradient) == len(of_production) == len(list(policy.parameters()))
    for own, other in zip(gradient, of_production, strict=True):
        assert (own - other).norm() <= 1e-10 * other.norm()


def groups(rows: Sequence[Sequence[Any]]) -> tuple[TokenGroup, ...]:
    return tuple(
        TokenGroup(f"{n}", f"{n}", tuple(prompt), tuple(TokenResponse(tuple(y)) for y in rest))
        for n, (prompt, *rest) in enumerate(rows)
    )


def test_dpo_in_one_file_is_dpo_in_production() -> None:
    file, policy = example("dpo_in_one_file"), model(0)
    with torch.no_grad():
        reference = file.pair_logps(model(1), PAIRS)
    loss = file.dpo_losses(file.pair_logps(policy, PAIRS), reference, BETA)[0].mean()
    loss.backward()
    objective = preference_objective(groups(PAIRS), Dpo(beta=BETA), reference)
    assert_equal(policy, loss, gradients(policy), objective)


def test_grpo_in_one_file_is_grpo_in_production() -> None:
    file, policy, old = example("grpo_in_one_file"), model(0), model(0)
    with torch.no_grad():
        for weights in old.parameters():  # far enough that some ratios are clipped, on both sides
            weights += 0.03 * torch.randn_like(weights)
    prompts = [pair[0] for pair in PAIRS for _ in range(2)]
    completions = [y for pair in PAIRS for y in pair[1:]]
    rewards = torch.rand(len(PAIRS), 2, dtype=torch.float64)
    rewards[0] = 0.5  # without signal
    with torch.no_grad():
        scored = [file.token_logps(m, prompts, completions) for m in (old, model(1))]
    before, reference = (logps for logps, _ in scored)
    now, counts = file.token_logps(policy, prompts, completions)
    ratios = (now - before).exp()[counts]
    assert (ratios > 1.2).any()
    assert (ratios < 0.8).any()
    gains = file.advantages(rewards).flatten()
    loss = file.grpo_loss(now, before, reference, counts, gains, BETA)
    loss.backward()
    method = PolicyGradient(
        advantage=Advantage.group_std,
        over=Over.response,
        kl=Kl.k3,
        kl_weight=BETA,
        skip_without_signal=False,
    )
    sizes = counts.sum(dim=1).view(-1, 2).sum(dim=1).tolist()
    own, other = (logps[counts].split(sizes) for logps in (before, reference))
    drawn = Experience(groups(PAIRS), rewards, 99, own, own, other)
    objective = method.objective(drawn)
    assert objective is not None
    assert_equal(policy, loss, gradients(policy), objective)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo_in_one_file", "grpo_in_one_file"])
def test_a_file_learns_what_it_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    example(name).main()
    first, *_, last = capsys.readouterr().out.splitlines()
    shown = {"dpo_in_one_file": "P(larger) = ", "grpo_in_one_file": "reward "}[name]
    before, after = (float(line.partition(shown)[2][:5]) for line in (first, last))
    assert before < 0.1
    assert after > 0.5
