"""Updates of weights in JAX beside those of torch, of the same gradients."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

import numpy as np
from tiny_models import llama, model_folder

from steps.jax_backend.devices import open_devices
from steps.jax_backend.jax_updates import JaxUpdater
from steps.jax_backend.param_tree import read_weights, stacked, to_numpy
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.training.config import OptimizerConfig
from steps.training.optimizer import Updater

COMMON = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0)


@pytest.mark.parametrize(
    "config",
    [
        COMMON,
        replace(COMMON, max_grad_norm=None, weight_decay=0.0, rates={"down_proj": 0.5}),
        replace(COMMON, algorithm="muon", rates={"embed_tokens|lm_head": 0.1}),
        replace(COMMON, algorithm="lion"),
        replace(COMMON, algorithm="sgd", momentum=0.5),
        replace(COMMON, adam_beta1=0.0, adam_beta2=0.5, adam_epsilon=1e-2, max_grad_norm=1e-3),
    ],
)
def test_updates_are_torch_s_before_and_after_a_checkpoint(
    tmp_path: Path, config: OptimizerConfig
) -> None:
    """In both directions; the first axis of a stack of vectors is none that decays."""
    _compare(tmp_path, config, Dtype.float64, rtol=1e-11, atol=1e-13)


def _compare(
    tmp_path: Path, config: OptimizerConfig, kind: Dtype, rtol: float, atol: float
) -> None:
    folder = model_folder(tmp_path, lambda: llama(tied=False))
    model = load_model(folder, kind)
    theirs = Updater(model, config)
    dtype = np.dtype(kind.value)
    devices = open_devices(1, dtype)
    ours = [JaxUpdater(read_weights(folder, dtype), devices, dtype, config, True) for _ in "ab"]
    draws = torch.Generator().manual_seed(0)
    for number in range(6):
        if number == 3:
            ours[1].load_state(theirs.state())
            theirs.load_state(ours[0].state())
        gradients = {}
        for name, parameter in model.named_parameters():
            size = 10.0 ** (number % 3 - 2)
            noise = torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype)
            parameter.grad = size * noise
            gradients[name] = to_numpy(parameter.grad.clone())
        rate = config.learning_rate * (number + 1) / 6
        norm = theirs.step(rate)
        for updater in ours if number >= 3 else ours[:1]:
            updater.gradient = devices.put_weights(stacked(gradients, gradients.__getitem__))
            assert updater.step(rate) == pytest.approx(norm, rel=1e3 * float(np.finfo(dtype).eps))
    for updater in ours:
        state = updater.state()
        assert state.keys() == theirs.state().keys()
        for name, expected in theirs.state().items():
            torch.testing.assert_close(state[name], expected, rtol=rtol, atol=atol)
