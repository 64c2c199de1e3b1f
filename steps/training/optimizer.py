"""Optimisers, with master weights in float32.

bfloat16 has 8 significant bits. At the learning rates of preference training, most updates are less
than half the distance to the next number, so rounding would discard them. In the same way, a sum
over many forwards loses small gradients. So gradients accumulate in float32, and the optimiser
updates a float32 master copy of each such parameter; the model computes with the rounded copy
(Micikevicius et al. 2018, section 3.1).

Optimisers are those of PyTorch and bitsandbytes. PyTorch has no Lion. Its Muon iterates in bfloat16
in every dtype: its updates of random matrices differ by 1.2 to 1.4 % from those in float64, so it
could not agree with other backends.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from steps.models.quantized import require_bitsandbytes
from steps.models.sharded_tensors import Whole, below, local, own_rows, put, whole
from steps.training.config import Algorithm, OptimizerConfig

OwnOptimizer = Optimizer | Callable[[list[nn.Parameter]], Optimizer]
"""One that was made of a model's parameters, or what makes one of the parameters to update."""


class Updater:
    """Updates a model's trainable parameters; 16-bit parameters through master weights.

    The state has names: `model/NAME` is an updated parameter (its master weight, if it has one),
    and `optimizer/KEY/NAME` is the optimiser's state for it.

    beside: tensors that checkpoints keep beside the state.

    Args:
        optimizer: its settings, or one of the user's own. In an optimiser that is made already,
            masters take the places of their parameters.
        max_norm: of an optimiser of the user's own, as `OptimizerConfig.max_grad_norm`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerConfig | OwnOptimizer,
        master_weights: bool = True,
        max_norm: float | None = None,
    ) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._updated = dict(self._parameters)
        if master_weights:
            self._updated = {name: _master(p) for name, p in self._parameters.items()}
        if isinstance(optimizer, OptimizerConfig):
            self._optimizers, max_norm = optimizer.build(self._updated), optimizer.max_grad_norm
        elif isinstance(optimizer, Optimizer):
            self._adopt(optimizer)
            self._optimizers = [optimizer]
        else:
            self._optimizers = [optimizer(list(self._updated.values()))]
        self._max_norm = max_norm
        self.beside: dict[str, Tensor] = {}
        self._states = self._found_states()
        if isinstance(optimizer, OptimizerConfig) and optimizer.eight_bit:
            self._keep_embeddings_in_float32(model, 1 + (optimizer.algorithm is Algorithm.adamw))
        for parameter, _ in self._mastered():
            parameter.grad_dtype = torch.float32

    @property
    def rate(self) -> float:
        """The learning rate of the last step, or of the next one if it is given none."""
        group = self._optimizers[0].param_groups[0]
        return float(group["lr"]) / group.get("part", 1.0)

    def gradient_norm(self) -> float:
        """The global 2-norm of the gradient that has accumulated."""
        gradients = list(self.gradient().values())
        return whole(torch.nn.utils.get_total_norm(gradients)).item()

    def add(self, gradient: Mapping[str, Tensor]) -> None:
        """Add to the gradients of the parameters with these names."""
        for name, more in gradient.items():
            parameter = self._parameters[name]
            before, more = parameter.grad, more.to(parameter.grad_dtype)
            parameter.grad = more if before is None else before + more

    def gradient(self) -> dict[str, Tensor]:
        """The gradient that has accumulated."""
        return {n: p.grad for n, p in self._parameters.items() if p.grad is not None}

    def step(self, rate: float | None) -> float:
        """Make one update at `rate`; return the global 2-norm of the gradient before clipping.

        Without a rate, groups of parameters have the rates that their optimiser gives them.

        Raises FloatingPointError, before any weight changes, if the norm is not finite; and
        RuntimeError if no parameter has a gradient.
        """
        for parameter, master in self._mastered():
            master.grad, parameter.grad = parameter.grad, None
        if all(updated.grad is None for updated in self._updated.values()):
            raise RuntimeError("no gradient has reached any of the trained parameters")
        norm = clip_gradients(self._updated.values(), self._max_norm)
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm}")
        for optimizer in self._optimizers:
            for group in optimizer.param_groups if rate is not None else ():
                group["lr"] = rate * group.get("part", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._round()
        return norm

    def state(self) -> dict[str, Tensor]:
        """The complete state by name, not copied."""
        tensors = dict(self.beside)
        for name, updated in self._updated.items():
            tensors[f"model/{name}"] = updated.detach()
            for key, value in self._states[name].get(updated, {}).items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value)
        return tensors

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """Restore a result of `state`; raises ValueError if it belongs to other parameters."""
        self._put(of_same_names(tensors, "model/", self._updated))
        for state in self._states.values():
            state.clear()
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                key, _, parameter = rest.partition("/")
                updated = self._updated[parameter]
                self._states[parameter][updated][key] = _beside(updated, value)
        for name in self.beside.keys() & tensors.keys():
            self.beside[name] = tensors[name][...].clone()
        self._round()

    def weights(self) -> dict[str, Tensor]:
        """The trained parameters by name, in the model's dtype, not copied."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """Replace the trained parameters and their master weights; raises ValueError if `weights`
        has other names or shapes."""
        self._put(of_same_names(weights, "", self._parameters))
        self._round()

    def _adopt(self, optimizer: Optimizer) -> None:
        """Put the updated parameters into an optimiser over the model's own."""
        if optimizer.state:
            raise ValueError("the optimiser has made steps already; load its state as a checkpoint")
        masters = {id(p): self._updated[name] for name, p in self._parameters.items()}
        groups = optimizer.param_groups
        held = [id(p) for group in groups for p in group["params"]]
        if left_out := [n for n, p in self._parameters.items() if id(p) not in held]:
            raise ValueError(
                f"the optimiser lacks trained parameters: {left_out[:3]}; give it all, or set "
                "requires_grad=False"
            )
        for group in groups:
            group["params"] = [masters.get(id(p), p) for p in group["params"]]

    def _found_states(self) -> dict[str, Any]:
        """By the name of a parameter, the states of the optimiser that updates it."""
        found = {
            parameter: optimizer.state
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return {name: found[updated] for name, updated in self._updated.items()}

    def _keep_embeddings_in_float32(self, model: nn.Module, count: int) -> None:
        """Give embeddings a state that is not in 8 bits, as transformers does: few of their rows
        have a gradient, so the numbers of a block differ too much in size for a common scale."""
        for name, module in model.named_modules():
            updated = self._updated.get(f"{name}.weight")
            if isinstance(module, nn.Embedding) and updated is not None:
                means = [torch.zeros_like(updated, dtype=torch.float32) for _ in range(count)]
                kept = {f"state{n + 1}": mean for n, mean in enumerate(means)}
                self._states[f"{name}.weight"][updated] = {"step": 0, **kept}

    @torch.no_grad()
    def _put(self, values: Mapping[str, Whole]) -> None:
        for name, value in values.items():
            try:
                put(value, self._updated[name])
            except ValueError as error:
                raise ValueError(f"of {name}, {error}") from error

    def _mastered(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        pairs = zip(self._parameters.values(), self._updated.values(), strict=True)
        return [(parameter, master) for parameter, master in pairs if parameter is not master]

    @torch.no_grad()
    def _round(self) -> None:
        for parameter, master in self._mastered():
            parameter.copy_(master)


@dataclass(frozen=True)
class Rule:
    """How a parameter is updated.

    part: of the learning rate.
    """

    algorithm: Algorithm
    decays: bool
    part: float

    @classmethod
    def of(cls, name: str, parameter: Any, config: OptimizerConfig) -> "Rule":
        """The rule for a parameter, or for an array like it."""
        matrix, algorithm = decays(name, parameter), config.algorithm
        if algorithm is Algorithm.muon and not (matrix and _IN_LAYERS.search(name)):
            algorithm = Algorithm.adamw
        return cls(algorithm, matrix, config.part_of(name))


_IN_LAYERS = re.compile(r"(^|\.)\d+\.")


def freeze(model: nn.Module, config: OptimizerConfig) -> None:
    """Freeze the parameters whose rate is 0.

    Raises ValueError for a pattern of `rates` that is in no trained parameter's name, and if it
    would freeze all.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    require_rates_found(trained, config)
    for name, parameter in trained.items():
        if config.part_of(name) == 0:
            parameter.requires_grad_(False)


def require_rates_found(trained: Iterable[str], config: OptimizerConfig) -> None:
    """Raise ValueError, as `freeze`."""
    names = list(trained)
    for pattern in config.rates:
        if not any(re.search(pattern, name) for name in names):
            few = ", ".join(names[:3])
            raise ValueError(f"optimizer.rates.{pattern} is in no trained parameter, as in {few}")
    if not any(map(config.part_of, names)):
        raise ValueError("optimizer.rates freezes all trained parameters; leave one with a rate")


def build_optimizers(
    parameters: Mapping[str, nn.Parameter], config: OptimizerConfig
) -> list[Optimizer]:
    """The optimisers of `config`, with a group for each `Rule`.

    Raises ValueError if bitsandbytes is needed and not installed.
    """
    groups: dict[Rule, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(Rule.of(name, parameter, config), []).append(parameter)
    parts: dict[Algorithm, list[dict[str, Any]]] = {}
    for rule, some in groups.items():
        decay = config.weight_decay if rule.decays else 0.0
        rate = config.learning_rate * rule.part
        group = {"params": some, "lr": rate, "weight_decay": decay, "part": rule.part}
        parts.setdefault(rule.algorithm, []).append(group)
    return [_optimizer(algorithm, some, config) for algorithm, some in parts.items()]


def _optimizer(algorithm: Algorithm, groups: list[Any], config: OptimizerConfig) -> Optimizer:
    rate, eps = config.learning_rate, config.adam_epsilon
    betas = (float(config.adam_beta1), float(config.adam_beta2))  # torch refuses integers
    if config.eight_bit:
        require_bitsandbytes("optimizer.eight_bit")
        from bitsandbytes.optim.adamw import AdamW8bit
        from bitsandbytes.optim.lion import Lion8bit

        if algorithm is Algorithm.lion:
            return Lion8bit(groups, lr=rate, betas=betas)
        return AdamW8bit(groups, lr=rate, betas=betas, eps=eps)
    match algorithm:
        case Algorithm.adamw:
            return AdamW(groups, lr=rate, betas=betas, eps=eps, fused=True)
        case Algorithm.muon:
            return Muon(groups, {"lr": rate, "momentum": config.momentum})
        case Algorithm.lion:
            return Lion(groups, {"lr": rate, "betas": betas})
        case Algorithm.adafactor:
            return Adafactor(groups, lr=rate)
        case Algorithm.sgd:
            return SGD(groups, lr=rate, momentum=config.momentum)


class _Rule(Optimizer):
    """An optimiser with one running mean of gradients, and weight decay."""

    mean: str

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        state = self.state[parameter]
                        if not state:
                            state[self.mean] = torch.zeros_like(parameter)
                        mean, gradient = local(state[self.mean]), local(parameter.grad)
                        move = self.direction(mean, gradient, parameter, group)
                        weight, rate = local(parameter), group["lr"]
                        weight.mul_(1 - rate * group["weight_decay"]).sub_(move, alpha=rate)

    def direction(
        self, mean: Tensor, gradient: Tensor, parameter: nn.Parameter, group: Mapping[str, Any]
    ) -> Tensor:
        """How far this rank's rows of a parameter move at a rate of 1; this also updates the rows
        of its mean."""
        raise NotImplementedError


class Muon(_Rule):
    """See `Algorithm.muon`. Of a matrix that ranks share, each orthogonalises the whole."""

    mean = "momentum_buffer"

    def direction(
        self, mean: Tensor, gradient: Tensor, parameter: nn.Parameter, group: Mapping[str, Any]
    ) -> Tensor:
        share = group["momentum"]
        move = gradient.lerp(mean.lerp_(gradient, 1 - share), share)
        if not isinstance(parameter, DTensor):
            return orthogonal(move)
        spread = DTensor.from_local(
            move,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        return orthogonal(whole(spread))[own_rows(parameter)]


def orthogonal(matrix: Tensor) -> Tensor:
    """The orthogonal matrix next to a matrix [..., A, B], about, by five Newton-Schulz iterations;
    times 0.2 √max(A, B)."""
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + MUON_EPSILON)
    a, b, c = MUON_COEFFICIENTS
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x) * 0.2 * math.sqrt(max(matrix.shape[-2:]))


MUON_COEFFICIENTS, MUON_EPSILON = (3.4445, -4.7750, 2.0315), 1e-7


class Lion(_Rule):
    """See `Algorithm.lion`."""

    mean = "exp_avg"

    def direction(
        self, mean: Tensor, gradient: Tensor, parameter: nn.Parameter, group: Mapping[str, Any]
    ) -> Tensor:
        of_step, kept = group["betas"]
        move = mean.lerp(gradient, 1 - of_step).sign()
        mean.lerp_(gradient, 1 - kept)
        return move


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay is for this parameter: for matrices, but not for biases and norm
    weights. Some of these have two axes: a bias for each expert (gpt-oss), a norm for each head
    (Command R+). Their names tell."""
    module, _, own = f".{name}".rpartition(".")
    return parameter.ndim >= 2 and "bias" not in own and "norm" not in module.rpartition(".")[2]


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradients down to a global 2-norm of `max_norm`; return the norm before that."""
    limit = math.inf if max_norm is None else max_norm
    return torch.nn.utils.clip_grad_norm_(parameters, limit).item()


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """A float32 master copy of a 16-bit `parameter`; the parameter itself for other dtypes."""
    if parameter.dtype not in (torch.bfloat16, torch.float16):
        return parameter
    return nn.Parameter(parameter.detach().float())


def _beside(parameter: nn.Parameter, value: Whole) -> Tensor | int:
    """An optimiser's state of a parameter, on its device and sharded over ranks like it; a number
    if it is an integer, as bitsandbytes counts steps."""
    if tuple(value.shape) != tuple(parameter.shape):
        whole = value[...]
        is_count = whole.ndim == 0 and not whole.is_floating_point()
        return int(whole) if is_count else whole.to(parameter.device, copy=True)
    dtype = (value[0:1] if parameter.ndim else value[...]).dtype
    state = torch.empty_like(parameter, requires_grad=False, dtype=dtype)
    put(value, state)
    return state


def of_same_names(
    tensors: Mapping[str, Whole], prefix: str, expected: Mapping[str, object]
) -> dict[str, Whole]:
    """As `below`; raises ValueError unless these are exactly the expected names."""
    found = below(tensors, prefix)
    if differing := sorted(found.keys() ^ expected.keys()):
        raise ValueError(f"parameters that only one of the two models has: {differing[:3]}")
    return found
