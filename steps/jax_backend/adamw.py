"""optax's AdamW. It equals `steps.training.optimizer` up to rounding; the state has the same names.

    model/NAME                    the updated weights; for a bfloat16 model, float32 master weights
    optimizer/exp_avg/NAME        the running mean of gradients
    optimizer/exp_avg_sq/NAME     the running mean of squared gradients
    optimizer/step/NAME           the number of updates

So each of the two can load checkpoints of the other.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from torch import Tensor

from steps.jax_backend.devices import Devices, accurate
from steps.jax_backend.stacked import Tree, by_name, stacked, to_numpy, to_torch
from steps.models.pieces import Whole
from steps.training.config import OptimizerConfig

_MOMENTS = {"exp_avg": "mu", "exp_avg_sq": "nu"}
"""torch's names of the moments, and optax's."""


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
        self._state: Any = None
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
        if self._state is None:
            moments = (self._zeros(self.trained), self._zeros(self.trained))
            self._state = state_of(self.trained, moments, np.int32(0))
        self.trained, self._state = self._update(self.trained, self._state, gradient, rate)
        self._spare = gradient
        return norm

    def state(self) -> dict[str, Tensor]:
        """As `Updater.state`, on the host."""
        tensors = {f"model/{name}": to_torch(array) for name, array in by_name(self.trained)}
        if self._state is None:
            return tensors
        for key, name in _MOMENTS.items():
            moments = by_name(optax.tree.get(self._state, name))
            tensors |= {f"optimizer/{key}/{n}": to_torch(array) for n, array in moments}
        steps = float(optax.tree.get(self._state, "count"))
        return tensors | {f"optimizer/step/{n}": torch.tensor(steps) for n in self._shapes}

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """As `Updater.load_state`."""
        trained = self._tree(_below(tensors, "model/"))
        steps = {float(count[...]) for count in _below(tensors, "optimizer/step/").values()}
        if len(steps) > 1:
            raise ValueError(f"its parameters were updated {sorted(steps)} times, not all equally")
        state = None
        if steps:
            moments = [self._tree(_below(tensors, f"optimizer/{key}/")) for key in _MOMENTS]
            state = state_of(trained, moments, np.int32(max(steps)))
        self.trained, self._state = trained, state

    def weights(self) -> dict[str, Tensor]:
        """As `Updater.weights`, on the host."""
        return {n: to_torch(array.astype(self._dtype)) for n, array in by_name(self.trained)}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """As `Updater.load_weights`."""
        self.trained = self._tree(weights)

    def _tree(self, tensors: Mapping[str, Whole]) -> Tree:
        """Tensors of the host as weights on the devices; raises ValueError if they are others."""
        if differing := sorted(tensors.keys() ^ self._shapes.keys()):
            raise ValueError(f"parameters that only one of the two models has: {differing[:3]}")
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
    norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(dtype), gradient))
    if max_norm is None:
        return gradient, norm
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient), norm


def adamw(config: OptimizerConfig, rate: Any = 0.0) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) at a rate. As in torch, matrices alone decay."""
    moments = (config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    return optax.adamw(rate, *moments, weight_decay=config.weight_decay, mask=_matrices)


def state_of(weights: Tree, moments: Sequence[Tree], steps: Any) -> Any:
    """The optimiser's state after some steps."""
    empty = jax.eval_shape(adamw(OptimizerConfig()).init, weights)
    return optax.tree.set(empty, count=steps, mu=moments[0], nu=moments[1])


def updated(
    weights: Tree, state: Any, gradient: Tree, rate: float | Array, config: OptimizerConfig
) -> tuple[Tree, Any]:
    """Weights and the optimiser's state after a step."""
    changes, state = adamw(config, rate).update(gradient, state, weights)
    return cast(Tree, optax.apply_updates(weights, changes)), state


def _matrices(weights: Tree) -> Tree:
    """Which weights are matrices: the first axis of a stack is no axis of a weight."""
    return jax.tree_util.tree_map_with_path(
        lambda path, w: w.ndim >= (3 if path[0].key == "layers" else 2), weights
    )


def _below(tensors: Mapping[str, Whole], prefix: str) -> dict[str, Whole]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
