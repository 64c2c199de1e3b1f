"""Optimisers in JAX, by optax. They equal those of `steps.training.optimizer` up to rounding, and
name their state the same, so each of the two can load checkpoints of the other.

    model/NAME                 the updated weights; for a bfloat16 model, float32 master weights
    optimizer/exp_avg/NAME     …, by the names of torch (`_NAMES`)
    optimizer/step/NAME        the number of updates, of AdamW

optax computes 1 − β₂ᵗ of AdamW in float32, so its updates differ from torch's by 1e-5 where β₂ is
0.999, and by 9e-5 where it is 0.9999. Its Muon is not used: it corrects the mean for its first
steps, which turns updates by 13 % in the second step, by 10 % in the sixth and by 2 % in the
twentieth (of random gradients).
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from torch import Tensor

from steps.jax_backend.devices import Devices, accurate
from steps.jax_backend.param_tree import Tree, by_name, stacked, to_numpy, to_torch
from steps.models.sharded_tensors import Whole, below
from steps.training.config import Algorithm, OptimizerConfig
from steps.training.optimizer import (
    MUON_COEFFICIENTS,
    MUON_EPSILON,
    Rule,
    of_same_names,
    require_rates_found,
)

_NAMES = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer", "ema": "momentum_buffer"}
"""Names of means in torch, by those in optax."""

Rules = dict[str, tuple[optax.GradientTransformation, float]]
"""Of each array of a tree (see `flat`), what transforms its gradient, and its part of the rate."""
States = dict[str, Any]


def flat(tree: Tree) -> dict[str, Any]:
    """The arrays of a tree; stacks of layers as model.layers.*.NAME."""
    outside = {name: value for name, value in tree.items() if name != "layers"}
    return outside | {f"{_STACK}{name}": value for name, value in tree["layers"].items()}


_STACK = "model.layers.*."


def nested(arrays: Mapping[str, Any]) -> Tree:
    """The tree of the arrays that `flat` gave."""
    outside = {name: value for name, value in arrays.items() if not name.startswith(_STACK)}
    return {**outside, "layers": below(arrays, _STACK)}


def frozen_apart(weights: Tree, config: OptimizerConfig) -> tuple[Tree, Tree]:
    """The weights that are trained, and those whose rate is 0.

    Raises ValueError, as `require_rates_found`, and for `rates` that tell layers of a stack apart.
    """
    require_rates_found([name for name, _ in by_name(weights)], config)
    trained, frozen = {}, {}
    for name, weight in flat(weights).items():
        (trained if rule_for(name, weight, config).part else frozen)[name] = weight
    return nested(trained), nested(frozen)


def rules_of(weights: Tree, config: OptimizerConfig) -> Rules:
    """The rules for a tree of weights."""
    found = {name: rule_for(name, weight, config) for name, weight in flat(weights).items()}
    return {name: (transformation_of(rule, config), rule.part) for name, rule in found.items()}


def rule_for(name: str, weight: Any, config: OptimizerConfig) -> Rule:
    is_stack = name.startswith(_STACK)
    layers = range(weight.shape[0]) if is_stack else (0,)
    one = jax.ShapeDtypeStruct(weight.shape[is_stack:], weight.dtype)
    rules = {Rule.of(name.replace("*", str(number)), one, config) for number in layers}
    if len(rules) > 1:
        raise ValueError(
            f"optimizer.rates tells the layers of {name} apart, which backend=jax holds in one "
            "array; name all layers, or use torch (backend=null)"
        )
    return rules.pop()


def transformation_of(rule: Rule, config: OptimizerConfig) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(config.weight_decay if rule.decays else 0.0)
    beta1, beta2 = config.adam_beta1, config.adam_beta2
    match rule.algorithm:
        case Algorithm.adamw:
            adam = optax.scale_by_adam(beta1, beta2, config.adam_epsilon)
            return optax.chain(adam, decay)
        case Algorithm.lion:
            return optax.chain(optax.scale_by_lion(beta1, beta2), decay)
        case Algorithm.sgd:
            return optax.chain(decay, optax.trace(config.momentum))
        case Algorithm.muon:
            return optax.chain(_muon(config.momentum), decay)
        case Algorithm.adafactor:
            raise ValueError("backend=jax has no adafactor that equals torch's")


def _muon(momentum: float) -> optax.GradientTransformation:
    mean = optax.ema(momentum, debias=False)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moved: Any
        moved, state = mean.update(updates, state)
        return _orthogonal((1 - momentum) * updates + momentum * moved), state

    return optax.GradientTransformation(mean.init, update)


def _orthogonal(matrix: Array) -> Array:
    """As `optimizer.orthogonal`."""
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + MUON_EPSILON)
    a, b, c = MUON_COEFFICIENTS
    with jax.default_matmul_precision("highest"):
        for _ in range(5):
            square = x @ x.mT
            x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x) * (0.2 * math.sqrt(max(matrix.shape[-2:])))


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
        self._devices, self._dtype = devices, dtype
        self._shapes = {name: array.shape for name, array in by_name(weights)}
        self._rules = rules_of(self.trained, config)
        shapes = state_shapes(self._rules, self.trained, devices)
        spread = jax.tree.map(lambda leaf: leaf.sharding, shapes)
        self._begin = jax.jit(partial(first_states, self._rules), out_shardings=spread)
        self._states: States | None = None
        self.rate = config.learning_rate
        self.gradient: Tree | None = None
        self._spare: Tree | None = None
        self._clip = jax.jit(partial(clipped, max_norm=config.max_grad_norm), donate_argnums=0)
        self._update = jax.jit(partial(updated, self._rules), donate_argnums=(0, 1))
        spread = jax.tree.map(lambda w: w.sharding, self.trained)
        zeros = partial(jax.tree.map, jnp.zeros_like)
        self._zeros = jax.jit(zeros, out_shardings=spread)
        self._cleared = jax.jit(zeros, donate_argnums=0, keep_unused=True, out_shardings=spread)

    def zeros(self) -> Tree:
        """A gradient of zeros, with the shapes, dtype and sharding of the weights; where the last
        step's was, as a processor takes longer to get new memory than to fill it."""
        spare, self._spare = self._spare, None
        return self._zeros(self.trained) if spare is None else self._cleared(spare)

    def gradient_norm(self) -> float:
        """As `Updater.gradient_norm`."""
        return 0.0 if self.gradient is None else float(clipped(self.gradient, None)[1])

    def step(self, rate: float | None) -> float:
        """As `Updater.step`, of `gradient`."""
        if self.gradient is None:
            raise RuntimeError("no gradient has reached any of the trained parameters")
        gradient, norm = self._clip(self.gradient)
        self.gradient = None
        if not math.isfinite(norm := float(norm)):
            raise FloatingPointError(f"the gradient norm is {norm}")
        self.rate = self.rate if rate is None else rate
        states = self._begin(self.trained) if self._states is None else self._states
        self.trained, self._states = self._update(self.trained, states, gradient, self.rate)
        self._spare = gradient
        return norm

    def state(self) -> dict[str, Tensor]:
        """As `Updater.state`, on the host."""
        tensors = {f"model/{name}": to_torch(array) for name, array in by_name(self.trained)}
        trees: dict[str, dict[str, Any]] = {}
        for name, states in (self._states or {}).items():
            for key, value in _fields(states):
                trees.setdefault(key, {})[name] = value
        counts = trees.pop(_STEP, {})
        for key, arrays in trees.items():
            tensors |= {f"optimizer/{key}/{n}": to_torch(a) for n, a in by_name(nested(arrays))}
        for name in self._shapes:
            if (stack := self._stack_of(name)) in counts:
                tensors[f"optimizer/{_STEP}/{name}"] = torch.tensor(float(counts[stack]))
        return tensors

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """As `Updater.load_state`."""
        trained = self._tree(below(tensors, "model/"), self._shapes)
        kept = below(tensors, "optimizer/")
        states = self._begin(trained) if kept else {}
        steps = {name: int(count[...]) for name, count in below(kept, f"{_STEP}/").items()}
        if len(set(steps.values())) > 1:
            counts = sorted(set(steps.values()))
            raise ValueError(f"its parameters were updated {counts} times, not all equally")
        count = max(steps.values(), default=0)
        for key in sorted(set(_NAMES.values())):
            holders = {n for n, s in states.items() if key in dict(_fields(s))}
            shapes = {n: s for n, s in self._shapes.items() if self._stack_of(n) in holders}
            if shapes:
                means = flat(self._tree(below(kept, f"{key}/"), shapes))
                for name, mean in means.items():
                    states[name] = _with(states[name], key, mean, count)
        self.trained, self._states = trained, states or None

    def weights(self) -> dict[str, Tensor]:
        """As `Updater.weights`, on the host."""
        return {n: to_torch(array.astype(self._dtype)) for n, array in by_name(self.trained)}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """As `Updater.load_weights`."""
        self.trained = self._tree(weights, self._shapes)

    def _stack_of(self, name: str) -> str:
        """The array of `flat` in which the parameter `name` is."""
        head, _, rest = name.removeprefix("model.layers.").partition(".")
        is_layer = name.startswith("model.layers.") and head.isdigit()
        return f"{_STACK}{rest}" if is_layer else name

    def _tree(self, tensors: Mapping[str, Whole], shapes: Mapping[str, Any]) -> Tree:
        """Tensors of the host as weights on the devices; raises ValueError if they are others."""
        of_same_names(tensors, "", shapes)
        held = jax.tree.leaves(self.trained)[0].dtype

        def read(name: str) -> np.ndarray:
            if tuple(tensors[name].shape) != shapes[name]:
                shape = tuple(tensors[name].shape)
                raise ValueError(f"of {name}, a shape is {shape}, not {shapes[name]}")
            return to_numpy(tensors[name][...]).astype(held)

        return self._devices.put_weights(stacked(shapes, read))


_STEP = "step"


def _fields(states: Any) -> list[tuple[str, Any]]:
    """What a chain keeps for one array, by the names of torch."""
    adam = [state.count for state in states if isinstance(state, optax.ScaleByAdamState)]
    means = [
        (_NAMES[field], getattr(state, field))
        for state in states
        for field in getattr(state, "_fields", ())
        if field in _NAMES
    ]
    return means + [(_STEP, count) for count in adam]


def _with(states: Any, key: str, mean: Array, count: int) -> Any:
    """The states of a chain with another mean, and with a count where there is one."""
    new = []
    for state in states:
        fields = getattr(state, "_fields", ())
        changed: dict[str, Any] = {f: mean for f in fields if _NAMES.get(f) == key}
        if "count" in fields:
            changed["count"] = jnp.asarray(count, state.count.dtype)
        new.append(state._replace(**changed) if changed else state)
    return tuple(new)


def clipped(gradient: Tree, max_norm: float | None) -> tuple[Tree, Array]:
    """The gradient scaled down to a global 2-norm of `max_norm`, and the norm it had."""
    dtype = accurate(jax.tree.leaves(gradient)[0].dtype)
    squares = [jnp.sum(jnp.square(g.astype(dtype))) for g in jax.tree.leaves(gradient)]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    if max_norm is None:
        return gradient, norm
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient), norm


def first_states(rules: Rules, weights: Tree) -> States:
    """The states before the first update."""
    arrays = flat(weights)
    return {name: transformation.init(arrays[name]) for name, (transformation, _) in rules.items()}


def state_shapes(rules: Rules, weights: Tree, devices: Devices) -> States:
    """The shapes of `first_states`, with their shardings: means lie like their weights."""
    everywhere, likes = NamedSharding(devices.mesh, PartitionSpec()), flat(weights)

    def spread(leaf: Any, like: Any) -> Any:
        where = like.sharding if leaf.shape == like.shape else everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    found = jax.eval_shape(partial(first_states, rules), weights)
    return {
        name: jax.tree.map(partial(spread, like=likes[name]), states)
        for name, states in found.items()
    }


def updated(
    rules: Rules, weights: Tree, states: States, gradient: Tree, rate: float
) -> tuple[Tree, States]:
    """One step of the optimiser."""
    arrays, gradients, new = flat(weights), flat(gradient), {}
    new_states = dict(states)
    for name, (transformation, part) in rules.items():
        weight = arrays[name]
        move: Any
        move, new_states[name] = transformation.update(gradients[name], states[name], weight)
        new[name] = weight - jnp.asarray(rate * part, weight.dtype) * move
    return nested(new), new_states
