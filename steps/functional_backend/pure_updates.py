"""AdamW as a function from a state to the next state; nothing is overwritten.

It equals `steps.training.optimizer` up to rounding, and names its state the same, so each of the
two loads checkpoints of the other. torchopt 0.7.3 has an AdamW of this form, whose updates of
matrices agree with torch's; but it decays vectors too, although its mask leaves them out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from steps.models.sharded_tensors import Whole
from steps.training.config import OptimizerConfig
from steps.training.optimizer import decays, of_same_names

Tensors = Mapping[str, Tensor]
"""By the names of a model's parameters."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class State:
    """All that an update changes. Weights of a 16-bit model are float32 where it has masters."""

    weights: Tensors
    means: Tensors
    squares: Tensors
    steps: int = 0

    @classmethod
    def of(cls, weights: Tensors) -> "State":
        """The state before the first update."""
        means, squares = ({n: torch.zeros_like(w) for n, w in weights.items()} for _ in range(2))
        return cls(weights, means, squares)


def clipped(gradient: Tensors, max_norm: float | None) -> tuple[Tensors, float]:
    """The gradient scaled down to a global 2-norm of `max_norm`, and the norm it had."""
    norm = torch.nn.utils.get_total_norm(list(gradient.values()))
    if max_norm is None:
        return gradient, norm.item()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return {name: g * scale for name, g in gradient.items()}, norm.item()


def updated(state: State, gradient: Tensors, rate: float, config: OptimizerConfig) -> State:
    """One step of AdamW (Loshchilov and Hutter 2019), in the order in which torch rounds."""
    steps, beta1, beta2 = state.steps + 1, config.adam_beta1, config.adam_beta2
    size, root = rate / (1 - beta1**steps), math.sqrt(1 - beta2**steps)
    weights, means, squares = {}, {}, {}
    for name, g in gradient.items():
        means[name] = m = state.means[name].lerp(g, 1 - beta1)
        squares[name] = v = state.squares[name] * beta2 + g * g * (1 - beta2)
        decay = config.weight_decay if decays(name, g) else 0.0
        kept = state.weights[name] * (1 - rate * decay)
        weights[name] = kept - size * m / (v.sqrt() / root + config.adam_epsilon)
    return State(weights, means, squares, steps)


class PureUpdater:
    """The newest state of a model's trained parameters, which are set to its rounded weights.

    gradient: what the next step takes; the sum over a batch.
    beside: tensors that checkpoints keep beside the state.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, master_weights: bool) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._config = config
        self._state = State.of({n: _held(p, master_weights) for n, p in self._parameters.items()})
        self.gradient: Tensors | None = None
        self.beside: dict[str, Tensor] = {}

    def add(self, gradient: Tensors) -> None:
        """Add to `gradient`, in the dtype of the state."""
        before, of_state = self.gradient or {}, self._state.weights
        new = {name: g.to(of_state[name].dtype) for name, g in gradient.items()}
        self.gradient = {name: before[name] + g if before else g for name, g in new.items()}

    def step(self, rate: float) -> float:
        """As `Updater.step`."""
        if self.gradient is None:
            raise RuntimeError("no gradient has reached any of the trained parameters")
        gradient, norm = clipped(self.gradient, self._config.max_grad_norm)
        self.gradient = None
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm}")
        self._become(updated(self._state, gradient, rate, self._config))
        return norm

    def state(self) -> dict[str, Tensor]:
        """As `Updater.state`."""
        tensors = {f"model/{name}": weight for name, weight in self._state.weights.items()}
        tensors |= self.beside
        if self._state.steps:
            for key, values in zip(_MOMENTS, (self._state.means, self._state.squares), strict=True):
                tensors |= {f"optimizer/{key}/{name}": value for name, value in values.items()}
            count = torch.tensor(float(self._state.steps))
            tensors |= {f"optimizer/step/{name}": count.clone() for name in self._parameters}
        return tensors

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """As `Updater.load_state`."""
        state = State.of(self._read(tensors, "model/"))
        counts = {n: t for n, t in tensors.items() if n.startswith("optimizer/step/")}
        steps = {int(count[...]) for count in counts.values()}
        if len(steps) > 1:
            raise ValueError(f"its parameters were updated {sorted(steps)} times, not all equally")
        if steps:
            means, squares = (self._read(tensors, f"optimizer/{key}/") for key in _MOMENTS)
            state = State(state.weights, means, squares, steps.pop())
        self._become(state)
        for name in self.beside.keys() & tensors.keys():
            self.beside[name] = tensors[name][...].clone()

    def weights(self) -> dict[str, Tensor]:
        """As `Updater.weights`."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """As `Updater.load_weights`."""
        self._become(replace(self._state, weights=self._read(weights, "")))

    def _become(self, state: State) -> None:
        """Take over a state, and set the parameters to its weights: tensors of its own, because
        others may write into parameters."""
        self._state = state
        for name, parameter in self._parameters.items():
            parameter.data.copy_(state.weights[name])

    def _read(self, tensors: Mapping[str, Whole], prefix: str) -> dict[str, Tensor]:
        found = of_same_names(tensors, prefix, self._parameters)
        for name, beside in self._state.weights.items():
            if tuple(found[name].shape) != tuple(beside.shape):
                shape = tuple(found[name].shape)
                raise ValueError(f"of {name}, a shape is {shape}, not {tuple(beside.shape)}")
        return {n: found[n][...].to(w, copy=True) for n, w in self._state.weights.items()}


def _held(parameter: nn.Parameter, master_weights: bool) -> Tensor:
    dtype = parameter.dtype
    if master_weights and dtype in (torch.bfloat16, torch.float16):
        dtype = torch.float32
    return parameter.detach().to(dtype, copy=True)
