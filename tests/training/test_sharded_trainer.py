"""Two ranks with sharded parameters do what one device does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from tiny_models import VOCABULARY, model_folder, pair_records, uneven
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp

from steps.losses.dpo import Dpo
from steps.models import activation_checkpointing
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.adapters import add_adapter
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import ALONE, Ranks, together
from steps.models.sharded_tensors import whole
from steps.scoring.config import Attention
from steps.scoring.examples import read_pairs
from steps.scoring.parity import check_packing
from steps.training.config import Algorithm, OptimizerConfig
from steps.training.objectives import preference_objective
from steps.training.trainer import build_trainer

OPTIMIZER = OptimizerConfig(learning_rate=1e-2, max_grad_norm=0.5)
LORA = LoraConfig(r=4, alpha=8.0)
PAIRS = 7


@dataclass(frozen=True)
class Case:
    """How a model is run."""

    dtype: Dtype = Dtype.float32
    budget: int = 64
    attention: Attention = Attention.packed
    lora: LoraConfig | None = None
    recompute: ActivationCheckpointing = ActivationCheckpointing.none
    masters: bool = True
    gather_once: bool | None = None
    algorithm: Algorithm = Algorithm.adamw


@dataclass
class Collectives:
    """How often this rank has gathered weights and reduced gradients."""

    gathers: int = 0
    reductions: int = 0

    def __post_init__(self) -> None:
        for name, counter in (("foreach_all_gather", "gathers"), ("foreach_reduce", "reductions")):
            setattr(fsdp, name, self._counted(getattr(fsdp, name), counter))

    def _counted(self, call: Callable[..., Any], counter: str) -> Callable[..., Any]:
        def counted(*given: Any, **settings: Any) -> Any:
            setattr(self, counter, getattr(self, counter) + 1)
            return call(*given, **settings)

        return counted


def steps(
    folder: Path, case: Case, ranks: Ranks, checkpoint: Path, collectives: Collectives | None = None
) -> dict[str, Any]:
    """Two updates with a checkpoint between them, then back to it and the second again."""
    groups = read_pairs(pair_records(PAIRS), VOCABULARY)
    model = load_model(folder, case.dtype, on_host=True)
    if case.lora is not None:
        add_adapter(model, case.lora, seed=0)
    checkpoint_activations(model, case.recompute)
    trainer = build_trainer(
        model,
        case.budget,
        ranks,
        replace(OPTIMIZER, algorithm=case.algorithm),
        case.masters,
        gather_once=case.gather_once,
    )
    packing = trainer.scorer.examine(lambda model: check_packing(model, groups, case.attention))
    assert packing.attention is case.attention
    reference = torch.linspace(-30, -10, 2 * PAIRS, dtype=torch.float64).view(PAIRS, 2)
    objective = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference)
    batch, loss = trainer.prepare(groups), objective.batch_loss(range(PAIRS), None)
    before = trainer.logps(batch).result()
    if collectives is not None:
        collectives.gathers = collectives.reductions = 0
    first = trainer.forward_backward(batch, loss)
    first.result()
    counted = None if collectives is None else (collectives.gathers, collectives.reductions)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    gradient = torch.cat([whole(gradient).float().flatten() for gradient in gradients])
    first_norm = trainer.optim_step(1e-2)
    file = checkpoint.with_name(f"{checkpoint.name}-{ranks.index}")
    trainer.save_checkpoint(file).result()
    files = [Path(name) for name in ranks.gather(str(file))]
    second, second_norm = trainer.forward_backward(batch, loss), trainer.optim_step(1e-2)
    weights = ranks.gather(listed(trainer.get_weights().result()))[0]
    trainer.load_checkpoint(files).result()
    trainer.forward_backward(batch, loss)
    trainer.optim_step(1e-2).result()
    again = ranks.gather(listed(trainer.get_weights().result()))[0]
    trainer.close()
    return {
        "packs": len(batch.packs),
        "collectives": counted,
        "gradient": gradient,
        "tokens": torch.cat(before.tokens),
        "sequences": before.sequences,
        "losses": torch.stack([first.result().losses, second.result().losses]),
        "margins": second.result().metrics["rewards/margins"],
        "norms": torch.tensor([first_norm.result(), second_norm.result()]),
        "weights": torch.cat([torch.tensor(weights[name]) for name in sorted(weights)]),
        "same again": weights == again,
    }


def listed(weights: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in weights.items()}


CASES = {
    "float32": Case(),
    "float32, each pack": Case(gather_once=False),
    "one pack": Case(budget=10**6),  # the second rank has none of its own
    "padded": Case(attention=Attention.padded),
    "lora": Case(lora=LORA, recompute=ActivationCheckpointing.full),
    "selective": Case(recompute=ActivationCheckpointing.selective),
    "muon": Case(algorithm=Algorithm.muon),
    "lion": Case(algorithm=Algorithm.lion),
    "bfloat16": Case(Dtype.bfloat16, recompute=ActivationCheckpointing.selective),
    "bfloat16 lora": Case(Dtype.bfloat16, lora=LORA),
    "bfloat16 dora": Case(Dtype.bfloat16, lora=replace(LORA, dora=True)),
    "bfloat16 without masters": Case(Dtype.bfloat16, masters=False),
}


def run_cases(folder: Path, work: Path) -> None:
    activation_checkpointing.LEAST_INPUT = 0
    with together() as ranks:
        collectives = Collectives()
        for name, case in CASES.items():
            result = steps(folder, case, ranks, work / name, collectives)
            torch.save(result, work / f"{name} of rank {ranks.index}")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where the results of two ranks are, and the model."""
    work = tmp_path_factory.mktemp("ranks")
    folder = model_folder(work / "model", uneven)
    assert run_ranks(run_cases, folder, work) == [0, 0]
    return work, folder


def largest_difference(one: dict[str, Any], other: dict[str, Any], name: str) -> float:
    """Between two tensors, as a share of the largest value."""
    return ((one[name] - other[name]).abs().max() / other[name].abs().max()).item()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_losses_gradients_and_weights_of_one(
    two_ranks: tuple[Path, Path], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    work, folder = two_ranks
    case, tolerance = CASES[name], 5e-2 if CASES[name].dtype is Dtype.bfloat16 else 1e-6
    alone = steps(folder, case, ALONE, tmp_path / "alone")
    ranks = [torch.load(work / f"{name} of rank {rank}") for rank in range(2)]
    assert ranks[0]["packs"] == ranks[1]["packs"]
    for result in ranks:
        assert result["same again"]
        for value in ("gradient", "tokens", "sequences", "losses", "margins", "norms"):
            assert largest_difference(result, alone, value) <= tolerance, value
        # Adam divides by the gradient's own size, so what rounding is left of a tiny one grows.
        assert largest_difference(result, alone, "weights") <= 10 * tolerance
    assert torch.equal(ranks[0]["weights"], ranks[1]["weights"])
