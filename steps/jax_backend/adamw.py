"""AdamW in JAX. It equals `steps.training.optimizer` up to rounding, and names its state the same.

    model/NAME                    the updated weights; for a bfloat16 model, float32 master weights
    optimizer/exp_avg/NAME        the running mean of gradients
    optimizer/exp_avg_sq/NAME     the running mean of squared gradients
    optimizer/step/NAME           the number of updates

So each of the two can load checkpoints of the other.

optax's AdamW is not used: it computes 1 − β₂ᵗ in float32, so its updates differ from torch's by
1e-5 where β₂ is 0.999, and by 9e-5 where it is 0.9999. Here the host computes that in float64.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from steps.jax_backend.devices import Devices, accurate
from steps.jax_backend.param_tree import Tree, by_name, stacked, to_numpy, to_torch
from steps.models.sharded_tensors import Whole, below
from steps.training.config import OptimizerConfig
from steps.training.optimizer import of_same_names


class JaxUpdater:
    """Updates weights on their devices, as `Updater` does those of a torch model.

    trained: the tree of weights, which the decoder rounds to `dtype` where they are finer.
    """

    def __init__(
        self,
        weights: Tree,
        devices: Devices,
        dtype: np.dtype,
        config: OptimizerConfig,
        master_weights: bool,
    ) -> None:
        held = accurate(dtype) if master_weights else dtype
        self.trained = devices.put_weights(jax.tree.map(lambda w: w.astype(held), weights))
        self._devices, self._dtype, self._config = devices, dtype, config
        self._shapes = {name: array.shape for name, array in by_name(weights)}
        self._moments: tuple[Tree, Tree] | None = None
        self._steps = 0
        self.gradient: Tree | None = None
        self._spare: Tree | None = None
        self._clip = jax.jit(partial(clipped, max_norm=config.max_grad_norm), donate_argnums=0)
        self._update = jax.jit(partial(updated, config=config), donate_argnums=(0, 1))
        spread = jax.tree.map(lambda w: w.sharding, self.trained)
        zeros = partial(jax.tree.map, jnp.zeros_like)
        self._zeros = jax.jit(zeros, out_shardings=spread)
        self._cleared = jax.jit(zeros, donate_argnums=0, keep_unused=True, out_shardings=spread)

    def zeros(self) -> Tree:
        """A gradient of zeros, with the shapes, dtype and sharding of the weights; where the last
        step's was, as a processor takes longer to get new memory than to fill it."""
        spare, self._spare = self._spare, None
        return self._zeros(self.trained) if spare is None else self._cleared(spare)

    def step(self, rate: float) -> float:
        """As `Updater.step`, of `gradient`."""
        if self.gradient is None:
            raise RuntimeError("no gradient has reached any of the trained parameters")
        gradient, norm = self._clip(self.gradient)
        self.gradient = None
        if not math.isfinite(norm := float(norm)):
            raise FloatingPointError(f"the gradient norm is {norm}")
        moments = self._moments or (self._zeros(self.trained), self._zeros(self.trained))
        self._steps += 1
        c = self._config
        corrections = (1 - c.adam_beta1**self._steps, 1 - c.adam_beta2**self._steps)
        scalars = (1 - rate * c.weight_decay, rate / corrections[0], math.sqrt(corrections[1]))
        self.trained, self._moments = self._update(self.trained, moments, gradient, scalars)
        self._spare = gradient
        return norm

    def state(self) -> dict[str, Tensor]:
        """As `Updater.state`, on the host."""
        tensors = {f"model/{name}": to_torch(array) for name, array in by_name(self.trained)}
        for key, tree in zip(("exp_avg", "exp_avg_sq"), self._moments or (), strict=False):
            tensors |= {f"optimizer/{key}/{n}": to_torch(array) for n, array in by_name(tree)}
        steps = {f"optimizer/step/{n}": torch.tensor(float(self._steps)) for n in self._shapes}
        return tensors | (steps if self._moments else {})

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """As `Updater.load_state`."""
        trained = self._tree(below(tensors, "model/"))
        moments = [below(tensors, f"optimizer/{key}/") for key in ("exp_avg", "exp_avg_sq")]
        self._moments = (self._tree(moments[0]), self._tree(moments[1])) if moments[0] else None
        steps = {float(count[...]) for count in below(tensors, "optimizer/step/").values()}
        if len(steps) > 1:
            raise ValueError(f"its parameters were updated {sorted(steps)} times, not all equally")
        self.trained, self._steps = trained, int(max(steps, default=0))

    def weights(self) -> dict[str, Tensor]:
        """As `Updater.weights`, on the host."""
        return {n: to_torch(array.astype(self._dtype)) for n, array in by_name(self.trained)}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """As `Updater.load_weights`."""
        self.trained = self._tree(weights)

    def _tree(self, tensors: Mapping[str, Whole]) -> Tree:
        """Tensors of the host as weights on the devices; raises ValueError if they are others."""
        of_same_names(tensors, "", self._shapes)
        held = jax.tree.leaves(self.trained)[0].dtype

        def read(name: str) -> np.ndarray:
            if tuple(tensors[name].shape) != self._shapes[name]:
                shape = tuple(tensors[name].shape)
                raise ValueError(f"of {name}, a shape is {shape}, not {self._shapes[name]}")
            return to_numpy(tensors[name][...]).astype(held)

        return self._devices.put_weights(stacked(self._shapes, read))


def clipped(gradient: Tree, max_norm: float | None) -> tuple[Tree, Array]:
    """The gradient scaled down to a global 2-norm of `max_norm`, and the norm it had."""
    dtype = accurate(jax.tree.leaves(gradient)[0].dtype)
    squares = [jnp.sum(jnp.square(g.astype(dtype))) for g in jax.tree.leaves(gradient)]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    if max_norm is None:
        return gradient, norm
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient), norm


def updated(
    weights: Tree,
    moments: tuple[Tree, Tree],
    gradient: Tree,
    scalars: tuple[float, float, float],
    config: OptimizerConfig,
) -> tuple[Tree, tuple[Tree, Tree]]:
    """One step of AdamW (Loshchilov and Hutter 2019), in the order in which torch rounds."""
    decay, rate, correction = scalars
    beta1, beta2, epsilon = config.adam_beta1, config.adam_beta2, config.adam_epsilon

    def of(w: Array, m: Array, v: Array, g: Array, is_matrix: bool) -> tuple[Array, ...]:
        w = w * jnp.asarray(decay, w.dtype) if is_matrix and config.weight_decay else w
        m = m + (g - m) * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        scale = jnp.sqrt(v) / jnp.asarray(correction, w.dtype) + epsilon
        return w - jnp.asarray(rate, w.dtype) * m / scale, m, v

    # The first axis of a stack is no axis of a weight: torch decays matrices, layer by layer.
    matrices: Any = {name: w.ndim >= 2 for name, w in weights.items() if name != "layers"}
    matrices["layers"] = {name: w.ndim >= 3 for name, w in weights["layers"].items()}
    new = jax.tree.map(of, weights, *moments, gradient, matrices)
    w, m, v = jax.tree.transpose(jax.tree.structure(weights), jax.tree.structure((0, 0, 0)), new)
    return w, (m, v)
