"""Two ranks with sharded parameters do what one device does."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny_models import VOCABULARY, model_folder, pair_records
from torch import Tensor
from torch.distributed.tensor import DTensor

from steps.training.attention import use_packed_attention
from steps.training.backends.torch_backend import TorchBackend
from steps.training.config import Dtype, OptimizerConfig
from steps.training.examples import read_pairs
from steps.training.losses.dpo import Dpo
from steps.training.models import load_model
from steps.training.objectives import preference_objective

OPTIMIZER = OptimizerConfig(learning_rate=1e-2, max_grad_norm=0.5)
PAIRS = 7


def steps(backend: TorchBackend, checkpoint: Path) -> dict[str, Any]:
    """Two updates with a checkpoint between them, then back to it and the second again."""
    groups = read_pairs(pair_records(PAIRS), VOCABULARY)
    reference = torch.linspace(-30, -10, 2 * PAIRS, dtype=torch.float64).view(PAIRS, 2)
    objective = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference)
    batch, loss = backend.prepare(groups), objective.batch_loss(range(PAIRS), None)
    before = backend.logps(batch).result()
    first = backend.forward_backward(batch, loss)
    first.result()
    parameters = [p for p in backend._model.parameters() if p.grad is not None]
    gradient = torch.cat([whole(p.grad).flatten() for p in parameters if p.grad is not None])
    first_norm = backend.optim_step(1e-2)
    backend.save_checkpoint(checkpoint).result()
    second, second_norm = backend.forward_backward(batch, loss), backend.optim_step(1e-2)
    weights = backend.get_weights().result()
    if dist.is_initialized():
        dist.barrier()
    backend.load_checkpoint(checkpoint).result()
    backend.forward_backward(batch, loss)
    backend.optim_step(1e-2).result()
    again = backend.get_weights().result()
    return {
        "packs": len(batch.packs),
        "gradient": gradient,
        "tokens": torch.cat(before.tokens),
        "sequences": before.sequences,
        "losses": torch.stack([first.result().losses, second.result().losses]),
        "margins": second.result().metrics["rewards/margins"],
        "norms": torch.tensor([first_norm.result(), second_norm.result()]),
        "weights": torch.cat([weights[name].flatten() for name in sorted(weights)]),
        "same again": all(torch.equal(weights[name], again[name]) for name in weights),
        "version": backend.weight_version,
    }


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.float()


def run_rank(rank: int, folder: Path, dtype: Dtype, budget: int, work: Path) -> None:
    from steps.training.backends.sharded_backend import ShardedBackend

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{work}/rendezvous", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    model = load_model(folder, dtype)
    use_packed_attention(model)
    backend = ShardedBackend(model, budget, mesh, OPTIMIZER)
    torch.save(steps(backend, work / "state"), work / f"rank-{rank}")
    backend.close()
    dist.destroy_process_group()


def largest_difference(one: dict[str, Any], other: dict[str, Any], name: str) -> float:
    """Between two tensors, as a share of the largest value."""
    return ((one[name] - other[name]).abs().max() / other[name].abs().max()).item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "budget", "tolerance"),
    [
        (Dtype.float32, 64, 1e-6),
        (Dtype.float32, 10**6, 1e-6),  # one pack: the second rank has none of its own
        (Dtype.bfloat16, 64, 5e-2),
    ],
)
def test_two_ranks_give_the_losses_gradients_and_weights_of_one(
    tmp_path: Path, dtype: Dtype, budget: int, tolerance: float
) -> None:
    folder = model_folder(tmp_path / "model")
    model = load_model(folder, dtype)
    use_packed_attention(model)
    alone = steps(TorchBackend(model, budget, OPTIMIZER), tmp_path / "alone")
    mp.spawn(run_rank, (folder, dtype, budget, tmp_path), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    ranks = [torch.load(tmp_path / f"rank-{rank}") for rank in range(2)]
    assert ranks[0]["packs"] == ranks[1]["packs"] == -(-alone["packs"] // 2)
    for result in ranks:
        assert result["same again"]
        assert result["version"] == alone["version"] == 2
        for name in ("gradient", "tokens", "sequences", "losses", "margins", "norms"):
            assert largest_difference(result, alone, name) <= tolerance
        # Adam divides by the gradient's own size, so what rounding is left of a tiny one grows.
        assert largest_difference(result, alone, "weights") <= 10 * tolerance
    assert torch.equal(ranks[0]["weights"], ranks[1]["weights"])
