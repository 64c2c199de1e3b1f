"""One run over 2 and 8 devices: processors, simulated."""

from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from tiny_models import VOCABULARY, llama, model_folder, pair_records

from steps.jax_backend.jax_scorer import JaxScorer
from steps.jax_backend.jax_trainer import JaxTrainer
from steps.losses.simpo import Simpo
from steps.models.config import Dtype
from steps.scoring.examples import read_pairs
from steps.training.config import OptimizerConfig
from steps.training.objectives import preference_objective

GROUPS = read_pairs(pair_records(16), VOCABULARY)


def run(policy: Path, count: int) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of two steps, and logps after them."""
    scorer = JaxScorer(policy, Dtype.float32, 64, devices=count)
    trainer = JaxTrainer(scorer, OptimizerConfig())
    loss = preference_objective(GROUPS, Simpo()).batch_loss(range(16), None)
    log = []
    for _ in range(2):
        result = trainer.forward_backward(trainer.prepare(GROUPS), loss)
        log += [result.result().losses.sum().item(), trainer.optim_step(1e-3).result()]
    table = trainer._jax.trained["model.embed_tokens.weight"]
    shards = {shard.device: shard.data.shape for shard in table.addressable_shards}
    assert len(shards) == count  # every device has its share, and no more
    assert set(shards.values()) == {(VOCABULARY // count, 16)}
    scored = scorer.logps(scorer.prepare(GROUPS[:3])).result().sequences.tolist()
    trainer.close()
    return log, scored


@pytest.mark.slow
def test_a_run_is_the_same_on_any_number_of_devices(tmp_path: Path) -> None:
    # 30 rows of a perceptron are shared by two devices, and whole on each of eight
    policy = model_folder(tmp_path, lambda: llama(tied=False, intermediate=30))
    (log, scored), (same_log, same_scored) = (run(policy, count) for count in (2, 8))
    assert same_log == pytest.approx(log, rel=1e-6, abs=1e-6)
    assert same_scored == pytest.approx(scored, rel=1e-6)


def test_more_devices_than_there_are_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"devices is 16, but JAX sees 8 \(cpu\)"):
        JaxScorer(model_folder(tmp_path), Dtype.float32, 64, devices=16)
