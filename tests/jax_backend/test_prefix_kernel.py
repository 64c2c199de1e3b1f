"""The TPU kernel for prefix-shared packs: in Pallas' interpreter beside dense attention, and
compiled for chips that are not there."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

import jax.numpy as jnp
from tiny_models import demonstration_records, gemma2, llama, log_of, model_folder

from steps.jax_backend.attending.kernel_grid import block_of
from steps.jax_backend.attending.prefix_kernel import prefix_attention
from steps.jax_backend.backend_choice import JaxTraining
from steps.jax_backend.jax_scorer import JaxScorer
from steps.models.config import Dtype
from steps.models.workplace import Workplace
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.recipes import run_sft

TOKENS, SCALE = 192, 0.3  # three blocks


def layout(tokens: int = TOKENS) -> np.ndarray:
    """`own`, `first` and `last` of groups of a prompt with its chosen response, then a rejected one
    that sees the prompt; some longer than a block; and of filler."""
    sees, start = np.zeros((3, tokens), np.int32), 0
    for prompt, chosen, rejected in ((20, 9, 11), (1, 3, 2), (40, 50, 30), (5, 1, 6)):
        between = start + prompt + chosen
        sees[:, start:between] = [[start], [start], [start]]
        sees[:, between : between + rejected] = [[between], [start], [start + prompt]]
        start = between + rejected
    sees[0, start:] = start
    return sees


def dense(q: Any, k: Any, v: Any, sees: np.ndarray) -> Any:
    index = np.arange(sees.shape[1])
    own, first, last = (row[:, None] for row in sees)
    seen = (index >= own) & (index <= index[:, None]) | (index >= first) & (index < last)
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.where(seen, jnp.einsum("bthd,bshd->bhts", q, k) * SCALE, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def test_values_and_gradients_are_those_of_dense_attention() -> None:
    """In float64, of two packs whose four heads share two key heads."""
    with jax.enable_x64(True):
        draws = np.random.default_rng(0)
        q, weight = draws.normal(size=(2, 2, TOKENS, 4, 8))
        k, v = draws.normal(size=(2, 2, TOKENS, 2, 8))
        sees = np.broadcast_to(layout(), (2, 3, TOKENS))
        expected, pull = jax.vjp(lambda q, k, v: dense(q, k, v, layout()), q, k, v)
        actual, kernel_pull = jax.vjp(lambda *x: prefix_attention(*x, sees, SCALE, True), q, k, v)
        np.testing.assert_allclose(actual, expected, atol=1e-12)
        for ours, theirs in zip(kernel_pull(weight), pull(weight), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-11)


def test_a_run_with_the_kernel_goes_as_with_torch(tmp_path: Path) -> None:
    """Over two devices, in the interpreter."""
    policy = model_folder(tmp_path / "policy", lambda: llama(tied=False))
    losses = {}
    for kernel in (False, True):
        config = TrainConfig(
            batch_size=4,
            tokens_per_forward=64,
            max_steps=3,
            optimizer=OptimizerConfig(learning_rate=1e-3),
            backend=JaxTraining(devices=2, kernel=True) if kernel else None,
        )
        work = tmp_path / str(kernel)
        run_sft(policy, demonstration_records(8), config, Workplace(work, tmp_path / f"s{kernel}"))
        losses[kernel] = [step["loss"] for step in log_of(work)]
    assert losses[True] == pytest.approx(losses[False], abs=1e-5)


def test_a_model_or_a_setting_that_the_kernel_is_not_for_is_refused(tmp_path: Path) -> None:
    windowed = model_folder(tmp_path, gemma2)
    with pytest.raises(ValueError, match="no windows and no caps, and attention in this gemma2"):
        JaxScorer(windowed, Dtype.float32, 64, devices=1, kernel=True)
    with pytest.raises(ValueError, match="kernel=true needs check=true"):
        JaxTraining(kernel=True, check=False)
    with pytest.raises(ValueError, match="set tokens_per_forward to a multiple of 512"):
        block_of(96, interpreted=False)


SCRIPT = """
import sys
from functools import partial
from types import SimpleNamespace
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from steps.jax_backend.attending.with_kernel import attend_with_kernel
from steps.jax_backend.fitting.targets import mesh_of, without_devices

without_devices()
for topology in sys.argv[1:]:
    mesh = mesh_of(topology, 1)
    where = NamedSharding(mesh, PartitionSpec("fsdp"))
    of = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
    rows = of(4, 4096, dtype=jnp.int32)
    q, k = of(4, 4096, 32, 128), of(4, 4096, 8, 128)
    facts = SimpleNamespace(attention_scale=0.1)
    attend = partial(attend_with_kernel, facts, facts=None, mesh=mesh, interpreted=False)

    def both(q, k, v, rows):
        pack = SimpleNamespace(own=rows, first=rows, last=rows)
        out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, pack), q, k, v)
        return out, pull(out)

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        compiled = jax.jit(both).trace(q, k, k, rows).lower(lowering_platforms=("tpu",)).compile()
    print(topology, compiled.as_text().count('custom_call_target="tpu_custom_call"'))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the extra temper-ml[tpu] is not installed"
)
def test_forward_and_backward_compile_for_three_generations() -> None:
    topologies = ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *topologies],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [line.split() for line in ran.stdout.splitlines()] == [
        [name, "3"] for name in topologies
    ]
