"""Two backends on one batch: equal ones agree, and a gradient that differs is named."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import VOCABULARY, demonstration_records, model_folder

from steps.functional_backend import functional_trainer
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.jax_backend.config import JaxTraining
from steps.models.config import Dtype
from steps.primitives.backends_compared import compare_backends
from steps.scoring.examples import read_demonstrations
from steps.training.config import TrainConfig

EXACT = TrainConfig(dtype=Dtype.float64)


@pytest.mark.parametrize("backend", [FunctionalTraining(), JaxTraining(devices=1)])
def test_backends_agree_and_a_wrong_gradient_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    if isinstance(backend, JaxTraining):
        pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")
    folder = model_folder(tmp_path / "model")
    groups = read_demonstrations(demonstration_records(4), VOCABULARY)
    other = TrainConfig(dtype=Dtype.float64, backend=backend)
    found = compare_backends(folder, groups, EXACT, other)
    assert found.logp < 1e-5  # norms of transformers compute in float32
    assert found.losses[0] == pytest.approx(found.losses[1], abs=1e-6)
    assert max(found.gradients.values()) < 1e-4
    wrong, right = "model.layers.0.self_attn.q_proj.weight", functional_trainer.gradient_of
    assert wrong in found.gradients
    if isinstance(backend, JaxTraining):
        return

    def scaled(*given: Any) -> Any:
        scored, gradient = right(*given)
        return scored, {**gradient, wrong: 1.5 * gradient[wrong]}

    monkeypatch.setattr(functional_trainer, "gradient_of", scaled)
    found = compare_backends(folder, groups, EXACT, other)
    assert next(iter(found.gradients.items())) == (wrong, pytest.approx(0.5, abs=1e-6))
    assert str(found).splitlines()[1] == f"  5.00e-01  {wrong}"
