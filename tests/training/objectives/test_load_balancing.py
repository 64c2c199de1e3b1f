"""The load-balancing loss of a mixture of experts: the model's own, over the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from tiny_models import log_of, model_folder
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.mixtral import modeling_mixtral

from benchmarks.architectures import TRAINING, tiny
from steps.models.adapters import add_adapter
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import ALONE, Ranks, together
from steps.models.sharded_tensors import whole
from steps.models.workplace import Workplace
from steps.reward_models.bradley_terry import BradleyTerry
from steps.reward_models.head_scores import VALUES
from steps.reward_models.reward_training import REWARD_MODEL, reward_objective
from steps.scoring.architectures.pack_layouts import Layout
from steps.scoring.architectures.routing import Balancing, find_balancing
from steps.scoring.examples import as_whole
from steps.scoring.parity import check_packing
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.objectives import Objective, sft_objective
from steps.training.recipes import run_sft
from steps.training.trainer import Trainer, build_trainer

GROUPS = [
    type(group)(group.row, group.group_id, group.prompt_ids, group.responses[:1])
    for group in TRAINING
]
COEFFICIENT = 0.7


def mixture(architecture: str = "qwen3_moe", **settings: Any) -> PreTrainedModel:
    return tiny(architecture, router_aux_loss_coef=COEFFICIENT, **settings)


def trainer(model: PreTrainedModel, budget: int, ranks: Ranks = ALONE) -> Trainer:
    trained = build_trainer(model, budget, ranks, OptimizerConfig())
    trained.balancing, _ = trained.scorer.examine(lambda model: find_balancing(model, None))
    trained.scorer.examine(lambda model: check_packing(model, GROUPS))
    return trained


def step(
    trained: Trainer, model: PreTrainedModel, objective: Objective | None = None
) -> dict[str, Any]:
    """The loss of a batch, its auxiliary loss, and the gradients."""
    objective = objective or sft_objective(GROUPS)
    batch = trained.prepare(objective.groups)
    loss = objective.batch_loss(range(len(objective.groups)), None)
    result = trained.forward_backward(batch, loss).result()
    gradients = {
        n: whole(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None
    }
    trained.close()
    return {
        "packs": len(batch.packs),
        "loss": result.losses.sum(),
        "aux_loss": result.metrics["aux_loss"].sum(),
        **gradients,
    }


def by_the_model_itself(model: PreTrainedModel) -> dict[str, Tensor]:
    """All sequences in one padded batch, with the auxiliary loss that transformers adds."""
    rows = [[*g.prompt_ids, *g.responses[0].ids] for g in GROUPS]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * (len(row) - 1) + [0] * (longest - len(row) + 1) for row in rows])
    outputs: Any = model(input_ids=ids, attention_mask=mask, output_router_logits=True)
    logps = outputs.logits.log_softmax(-1)
    scored = [
        logps[i, len(g.prompt_ids) - 1 + t, token]
        for i, g in enumerate(GROUPS)
        for t, token in enumerate(g.responses[0].ids)
    ]
    loss = -torch.stack(scored).mean() + COEFFICIENT * outputs.aux_loss
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "aux_loss": outputs.aux_loss.detach(), **gradients}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "layout"),
    [("qwen3_moe", Layout.packed), ("gpt_oss", Layout.packed), ("qwen3_next", Layout.batched)],
)
@pytest.mark.parametrize("budget", [1, 60, 10**6])
def test_a_batch_s_loss_and_gradient_are_the_model_s_own_however_it_is_cut(
    architecture: str, layout: Layout, budget: int
) -> None:
    model = mixture(architecture)
    expected = by_the_model_itself(model)
    model.zero_grad(set_to_none=True)
    actual = step(trainer(model, budget), model)
    assert (actual.pop("packs") == 1) == (budget == 10**6)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].double(), value.double(), rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        assert check_packing(model, GROUPS).layout is layout


def test_adapters_drop_the_same_in_the_pass_that_counts_the_load(tmp_path: Path) -> None:
    """So a batch of several packs has the loss and the gradient that it has as one."""
    folder = model_folder(tmp_path / "model", lambda: mixture("qwen2_moe"))
    found = []
    for budget in (60, 10**6):
        model = load_model(folder, Dtype.float64)
        add_adapter(model, LoraConfig(r=2, dropout=0.5), seed=0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.1)
        found.append(step(trainer(model, budget), model))
    whole_batch, cut = found.pop(), found.pop()
    assert cut.pop("packs") > whole_batch.pop("packs") == 1
    for name, value in whole_batch.items():
        torch.testing.assert_close(cut[name], value, rtol=1e-6, atol=1e-9)


def run_both(folder: Path, work: Path) -> None:
    with together() as ranks:
        model = load_model(folder, on_host=True)
        torch.save(step(trainer(model, 60, ranks), model), work / f"{ranks.index}")


def test_two_ranks_balance_as_one_does(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", lambda: mixture().float())
    assert run_ranks(run_both, folder, tmp_path) == [0, 0]
    model = load_model(folder)
    alone = step(trainer(model, 60), model)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}")
        for name in ("loss", "aux_loss"):
            torch.testing.assert_close(found[name], alone[name], rtol=1e-6, atol=0)
        for name in (n for n in alone if n.endswith(".weight") or n.endswith("_proj")):
            ours = found[name.removeprefix("model.")] if name not in found else found[name]
            torch.testing.assert_close(ours, alone[name], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [Dtype.float32, Dtype.float64])
def test_a_run_logs_the_loss_and_can_do_without_it(tmp_path: Path, dtype: Dtype) -> None:
    folder = model_folder(tmp_path / "model", lambda: mixture().float())
    records = [
        {"row": g.row, "prompt_ids": list(g.prompt_ids), "response_ids": list(g.responses[0].ids)}
        for g in GROUPS
    ]
    logs = []
    for name, coefficient in (("own", None), ("half", COEFFICIENT / 2), ("none", 0.0)):
        place = Workplace(tmp_path / name, tmp_path / f"{name}s")
        config = TrainConfig(batch_size=6, dtype=dtype, router_aux_loss_coef=coefficient)
        run_sft(folder, records, config, place)
        logs.append(log_of(tmp_path / name)[0])
    own, half, none = logs
    assert "aux_loss" not in none
    assert own["aux_loss"] == half["aux_loss"] > 1
    for log, coefficient in ((own, COEFFICIENT), (half, COEFFICIENT / 2)):
        expected = none["loss"] + coefficient * log["aux_loss"]
        assert log["loss"] == pytest.approx(expected, rel=1e-6)


def classifier(architecture: str) -> Any:
    config = tiny(architecture, router_aux_loss_coef=COEFFICIENT, num_labels=1).config
    return AutoModelForSequenceClassification.from_config(config, dtype=torch.float64)


@torch.no_grad()
def test_a_reward_model_is_balanced_by_the_loss_of_its_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequence classifiers of transformers do not add it to their outputs."""
    model = classifier("mixtral")
    assert find_balancing(model, None) == (Balancing(COEFFICIENT, 2), None)
    assert find_balancing(classifier("llama"), None) == (None, None)
    monkeypatch.setattr(modeling_mixtral, "load_balancing_loss_func", lambda *_: torch.ones(()))
    balancing, notice = find_balancing(model, None)
    assert balancing is None
    assert "is not balanced: MixtralForSequenceClassification" in (notice or "")


def rewards_by_the_model_itself(model: Any) -> dict[str, Tensor]:
    """All whole responses in one padded batch, with the function that the language model uses."""
    pairs = [[[*g.prompt_ids, *r.ids] for r in g.responses] for g in TRAINING]
    rows = [row for pair in pairs for row in pair]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    outputs = model.base_model(input_ids=ids, attention_mask=mask, output_router_logits=True)
    ends = torch.tensor([len(row) - 1 for row in rows])
    states = outputs.last_hidden_state[torch.arange(len(rows)), ends]
    chosen, rejected = model.score(states)[:, 0].view(-1, 2).unbind(1)
    config = model.config
    balance = modeling_mixtral.load_balancing_loss_func(
        outputs.router_logits, config.num_local_experts, config.num_experts_per_tok, mask
    )
    assert isinstance(balance, Tensor)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean() + COEFFICIENT * balance
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "aux_loss": balance.detach(), **gradients}


@pytest.mark.parametrize("budget", [1, 10**6])
def test_a_reward_model_s_step_is_that_of_its_own_forwards(budget: int) -> None:
    model = classifier("mixtral")
    expected = rewards_by_the_model_itself(model)
    model.zero_grad(set_to_none=True)
    pairs = ([as_whole(group) for group in TRAINING], torch.zeros(len(TRAINING)))
    trained = build_trainer(model, budget, ALONE, OptimizerConfig(), readout=REWARD_MODEL.readout)
    trained.balancing, _ = trained.scorer.examine(lambda model: find_balancing(model, None))
    trained.scorer.examine(lambda model: check_packing(model, pairs[0], probe=VALUES.probe))
    actual = step(trained, model, reward_objective(pairs, BradleyTerry()))
    assert (actual.pop("packs") == 1) == (budget == 10**6)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].double(), value.double(), rtol=1e-4, atol=1e-7)
