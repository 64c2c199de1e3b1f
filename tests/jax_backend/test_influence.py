"""The influence of rows, beside gradients that are formed one by one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from tiny_models import VOCABULARY, llama, model_folder, pair_records

from steps.jax_backend.config import InfluenceConfig
from steps.jax_backend.influence import project_rows, projected, score_rows
from steps.losses.base import PreferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.simpo import Simpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, read_pairs
from steps.scoring.logps import forward_backward, sequence_logps, token_logps
from steps.scoring.packing import make_pack
from steps.training.objectives import preference_objective

ROWS = read_pairs(pair_records(7), VOCABULARY)
TRUSTED = read_pairs(pair_records(4, seed=1), VOCABULARY)


def gradient(folder: Path, groups: list[TokenGroup], loss: PreferenceLoss) -> torch.Tensor:
    """Of their mean loss by torch, all parameters in one vector."""
    model = load_model(folder, Dtype.float64).eval()
    use_packed_attention(model)
    pack = make_pack(groups)
    own = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
    objective = preference_objective(groups, loss, own)
    batch_loss = objective.batch_loss(range(len(groups)), None)
    forward_backward(model, pack, lambda sums, some: batch_loss(sums, torch.arange(99)[some]))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    "loss", [pytest.param(Dpo(beta=0.5), marks=pytest.mark.attack), Simpo(), Dpo(nll_weight=0.5)]
)
def test_influence_is_the_product_of_the_gradients(tmp_path: Path, loss: PreferenceLoss) -> None:
    folder = model_folder(tmp_path, llama)
    config = InfluenceConfig(loss, Dtype.float64, tokens_per_forward=128, devices=1)
    actual = score_rows(folder, ROWS, TRUSTED, config)
    with oracle.in_float64():
        wanted = torch.stack([gradient(folder, [row], loss) for row in TRUSTED]).mean(0)
        expected = torch.stack([gradient(folder, [row], loss) @ wanted for row in ROWS])
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)
    assert actual.min() < 0 < actual.max()


@pytest.mark.slow
def test_products_of_projections_are_in_expectation_those_of_gradients() -> None:
    """Within what the docstring says of the deviation of one seed, and of the mean of many."""
    draws = np.random.default_rng(0)
    trees = [{"a": draws.normal(size=(9, 7)), "layers": {"b": draws.normal(size=30)}} for _ in "ab"]
    first, second = (jax.tree.map(jnp.float32, tree) for tree in trees)
    both = [np.concatenate([t["a"].ravel(), t["layers"]["b"]]) for t in (first, first, second)]
    expected = np.stack(both) @ np.stack(both[1:]).T

    @jax.vmap
    def products(seed: jax.Array) -> jax.Array:
        of_first, of_second = (projected(tree, 16, seed) for tree in (first, second))
        return jnp.stack([of_first, of_first, of_second]) @ jnp.stack([of_first, of_second]).T

    lengths = np.linalg.norm(both, axis=1)
    off = (products(jnp.arange(2000)) - expected) / (lengths[:, None] * lengths[1:])
    assert float(jnp.square(off).mean(0).max()) < 2 / 16
    assert float(jnp.abs(off.mean(0)).max()) < 4 * (2 / 16 / 2000) ** 0.5


def test_rows_are_projected_gradients(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, llama)
    common = InfluenceConfig(Simpo(), Dtype.float64, tokens_per_forward=128, devices=1)
    config = replace(common, projection=2**18)  # many more than parameters, so few sums are mixed
    found = project_rows(folder, ROWS[:3], config)
    with oracle.in_float64():
        exact = torch.stack([gradient(folder, [row], Simpo()) for row in ROWS[:3]])
    size = (exact @ exact.T).diag().max()
    torch.testing.assert_close(found @ found.T / size, exact @ exact.T / size, rtol=0, atol=0.02)
    assert torch.equal(project_rows(folder, ROWS[1:3], config), found[1:])
