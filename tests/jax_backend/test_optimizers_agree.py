"""Twenty steps of each optimiser: torch, functional torch and JAX, and a resumed run of each."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import oracle
import pytest

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from tiny_models import llama, model_folder
from token_groups import pairs

from steps.functional_backend.functional_trainer import FunctionalTrainer
from steps.jax_backend.jax_scorer import JaxScorer
from steps.jax_backend.jax_trainer import JaxTrainer
from steps.losses.simpo import Simpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig
from steps.training.objectives import preference_objective
from steps.training.optimizer import freeze
from steps.training.trainer import Trainer

STEPS = 20


def steps(trainer: Trainer, config: OptimizerConfig, count: int) -> list[float]:
    groups = pairs()
    loss = preference_objective(groups, Simpo()).batch_loss(range(len(groups)), None)
    batch, losses = trainer.prepare(groups), []
    for _ in range(count):
        losses.append(trainer.forward_backward(batch, loss).result().losses.sum().item())
        trainer.optim_step(config.learning_rate).result()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "within"), [(Dtype.float32, 1e-5), (Dtype.float64, 1e-10)])
@pytest.mark.parametrize(("algorithm", "rate"), [("adamw", 1e-3), ("muon", 1e-3), ("lion", 3e-4)])
def test_twenty_steps_lose_the_same_on_each_backend_and_resume_with_the_same_bytes(
    tmp_path: Path, algorithm: Any, rate: float, dtype: Dtype, within: float
) -> None:
    """With a rate of its own for some matrices, weight decay, and frozen embeddings."""
    parts = {"down_proj": 0.5, "embed_tokens": 0.0}
    config = OptimizerConfig(rate, algorithm=algorithm, weight_decay=0.1, rates=parts)
    folder = model_folder(tmp_path / "model", lambda: llama(tied=False))

    def of_torch(kind: Callable[..., Trainer]) -> Trainer:
        model = load_model(folder, dtype)
        use_packed_attention(model)
        freeze(model, config)
        return kind(Scorer(model, 256), config)

    def of_jax() -> Trainer:
        return JaxTrainer(JaxScorer(folder, dtype, 256, devices=1), config)

    kinds = (lambda: of_torch(Trainer), lambda: of_torch(FunctionalTrainer), of_jax)
    found = []
    with oracle.in_float64() if dtype is Dtype.float64 else nullcontext():
        for kind in kinds:
            trainer, file = kind(), tmp_path / "state.safetensors"
            losses = steps(trainer, config, STEPS // 2)
            trainer.save_checkpoint(file).result()
            found.append(losses + steps(trainer, config, STEPS // 2))
            resumed = kind()
            resumed.load_checkpoint([file]).result()
            steps(resumed, config, STEPS // 2)
            ends = [tmp_path / "whole", tmp_path / "parts"]
            for one, end in zip((trainer, resumed), ends, strict=True):
                one.save_checkpoint(end).result()
                one.close()
            assert ends[0].read_bytes() == ends[1].read_bytes()
    assert found[0][-1] < found[0][0]
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=0, abs=within)
