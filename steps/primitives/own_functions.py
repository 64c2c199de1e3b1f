"""A function and a loss of the user's own, on JAX, with updates by optax."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import Tensor

from steps.jax_backend.jax_updates import clipped, rule_for, transformation_of
from steps.jax_backend.param_tree import to_numpy, to_torch
from steps.models.call_queue import SerialQueue
from steps.models.sharded_tensors import Whole, below
from steps.primitives.own_modules import LogitsLoss, inputs_of, logits_of
from steps.training.config import OptimizerConfig
from steps.training.optimizer import of_same_names, require_rates_found
from steps.training.trainer import Engine, StepResult, require_finite_loss


class FunctionEngine(Engine):
    """Computes gradients by `jax.value_and_grad`, compiled once for each shape of batch.

    Args:
        model: maps weights, and the batch's entries as keyword arguments, to logits.
        weights: a tree of arrays, on the devices where the user has put them.
        optimizer: settings, or an optax transformation, whose updates are multiplied by the
            learning rate, 1 by default.
        dtype: of weights in the model: mixed precision; by default their own.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optimizer: OptimizerConfig | optax.GradientTransformation,
        weights: Any,
        dtype: Any = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._function, self._dtype = model, dtype
        self._compiled: dict[Any, Any] = {}
        self._tree = TreeUpdater(weights, optimizer, max_grad_norm)
        self._begin_queue(SerialQueue(), self._tree)

    def _forward_backward(self, batch: Mapping[str, Any], loss: LogitsLoss) -> StepResult:
        arrays = {n: to_numpy(x) if isinstance(x, Tensor) else x for n, x in batch.items()}
        if loss not in self._compiled:
            self._compiled[loss] = jax.jit(jax.value_and_grad(partial(self._loss, loss)))
        value, gradient = self._compiled[loss](self._tree.trained, arrays)
        result = require_finite_loss(torch.tensor(float(value), dtype=torch.float64))
        self._tree.add(gradient)
        return result

    def _loss(self, loss: LogitsLoss, weights: Any, batch: Mapping[str, Any]) -> Any:
        if self._dtype is not None:
            weights = jax.tree.map(lambda w: w.astype(self._dtype), weights)
        logits = logits_of(self._function(weights, **inputs_of(batch)))
        return loss(logits, batch.get("labels"), batch.get("loss_mask"))


class TreeUpdater:
    """Updates a tree of arrays, as `Updater` does the parameters of a module."""

    def __init__(
        self,
        weights: Any,
        optimizer: OptimizerConfig | optax.GradientTransformation,
        max_norm: float | None,
    ) -> None:
        self.trained = jax.tree.map(jnp.asarray, weights)
        self.rate = 1.0
        if isinstance(optimizer, OptimizerConfig):
            require_rates_found(_named(weights), optimizer)
            self.rate, max_norm = optimizer.learning_rate, optimizer.max_grad_norm
            optimizer = _by_name(optimizer)
        self._gradient: Any = None
        self._max_norm = max_norm
        self._states = jax.jit(optimizer.init)(self.trained)

        @jax.jit
        def update(weights: Any, states: Any, gradient: Any, rate: float) -> Any:
            moves, states = optimizer.update(gradient, states, weights)
            return jax.tree.map(
                lambda w, m: w + jnp.asarray(rate, w.dtype) * m, weights, moves
            ), states

        self._update = update

    def add(self, gradient: Any) -> None:
        """Add to the gradient since the last step."""
        before = self._gradient
        self._gradient = gradient if before is None else jax.tree.map(jnp.add, before, gradient)

    def gradient_norm(self) -> float:
        """As `Updater.gradient_norm`."""
        return 0.0 if self._gradient is None else float(clipped(self._gradient, None)[1])

    def step(self, rate: float | None) -> float:
        """As `Updater.step`."""
        if self._gradient is None:
            raise RuntimeError("no gradient has reached any of the trained parameters")
        gradient, norm = clipped(self._gradient, self._max_norm)
        self._gradient = None
        if not math.isfinite(norm := float(norm)):
            raise FloatingPointError(f"the gradient norm is {norm}")
        self.rate = self.rate if rate is None else rate
        self.trained, self._states = self._update(self.trained, self._states, gradient, self.rate)
        return norm

    def state(self) -> dict[str, Tensor]:
        """As `Updater.state`; the optimiser's by their paths in its tree."""
        weights = {f"model/{name}": value for name, value in _named(self.trained).items()}
        states = {f"optimizer/{name}": value for name, value in _named(self._states).items()}
        return {name: to_torch(np.asarray(value)) for name, value in (weights | states).items()}

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """As `Updater.load_state`."""
        states = _read(self._states, below(tensors, "optimizer/"))
        self.trained, self._states = _read(self.trained, below(tensors, "model/")), states

    def weights(self) -> dict[str, Tensor]:
        """As `Updater.weights`, on the host."""
        return {name: to_torch(np.asarray(value)) for name, value in _named(self.trained).items()}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """As `Updater.load_weights`."""
        self.trained = _read(self.trained, weights)


def _named(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths, as in layers.0.weight."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _read(tree: Any, tensors: Mapping[str, Whole]) -> Any:
    """A tree like another one, of tensors by their paths; raises ValueError if they are others."""
    like = _named(tree)
    of_same_names(tensors, "", like)
    for name, leaf in like.items():
        if tuple(tensors[name].shape) != leaf.shape:
            shape = tuple(tensors[name].shape)
            raise ValueError(f"of {name}, a shape is {shape}, not {leaf.shape}")
    new = [
        jax.device_put(to_numpy(tensors[name][...]).astype(leaf.dtype), leaf.sharding)
        for name, leaf in like.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), new)


def _by_name(config: OptimizerConfig) -> optax.GradientTransformation:
    """The optimiser of `config`, as a transformation of trees for a rate of 1."""

    def rules(tree: Any) -> dict[str, Any]:
        found = {name: rule_for(name, array, config) for name, array in _named(tree).items()}
        return {name: (transformation_of(rule, config), rule.part) for name, rule in found.items()}

    def init(params: Any) -> Any:
        arrays = _named(params)
        return {name: rule.init(arrays[name]) for name, (rule, _) in rules(params).items()}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        gradients, arrays, moves, new = _named(updates), _named(params), [], {}
        for name, (rule, part) in rules(params).items():
            move: Any
            move, new[name] = rule.update(gradients[name], state[name], arrays[name])
            moves.append(-part * move)
        return jax.tree.unflatten(jax.tree.structure(params), moves), new

    return optax.GradientTransformation(init, update)
