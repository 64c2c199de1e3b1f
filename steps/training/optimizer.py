"""AdamW, with master weights in float32.

bfloat16 has 8 significant bits. At the learning rates of preference training, most updates are less
than half the distance to the next number, so rounding would discard them. In the same way, a sum
over many forwards loses small gradients. So gradients accumulate in float32, and the optimiser
updates a float32 master copy of each such parameter; the model computes with the rounded copy
(Micikevicius et al. 2018, section 3.1).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from steps.models.quantized import require_bitsandbytes
from steps.models.sharded_tensors import Whole, below, put
from steps.training.config import OptimizerConfig


class Updater:
    """Updates a model's trainable parameters with AdamW; 16-bit parameters through master weights.

    The state has names: `model/NAME` is an updated parameter (its master weight, if it has one),
    and `optimizer/KEY/NAME` is AdamW's state for it.
    """

    def __init__(
        self, model: nn.Module, config: OptimizerConfig, master_weights: bool = True
    ) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._updated = dict(self._parameters)
        if master_weights:
            self._updated = {name: _master(p) for name, p in self._parameters.items()}
        self._optimizer = build_optimizer(self._updated, config)
        if config.eight_bit:
            self._keep_embeddings_in_float32(model)
        self._max_norm = config.max_grad_norm
        for parameter, _ in self._mastered():
            parameter.grad_dtype = torch.float32

    def step(self, rate: float) -> float:
        """Make one update at `rate`; return the global 2-norm of the gradient before clipping.

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
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._round()
        return norm

    def state(self) -> dict[str, Tensor]:
        """The complete state by name, not copied."""
        tensors = {}
        for name, updated in self._updated.items():
            tensors[f"model/{name}"] = updated.detach()
            for key, value in self._optimizer.state.get(updated, {}).items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value)
        return tensors

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        """Restore a result of `state`; raises ValueError if it belongs to other parameters."""
        self._put(of_same_names(tensors, "model/", self._updated))
        self._optimizer.state.clear()
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                key, _, parameter = rest.partition("/")
                updated = self._updated[parameter]
                self._optimizer.state[updated][key] = _beside(updated, value)
        self._round()

    def weights(self) -> dict[str, Tensor]:
        """The trained parameters by name, in the model's dtype, not copied."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        """Replace the trained parameters and their master weights; raises ValueError if `weights`
        has other names or shapes."""
        self._put(of_same_names(weights, "", self._parameters))
        self._round()

    def _keep_embeddings_in_float32(self, model: nn.Module) -> None:
        """Give embeddings a state that is not in 8 bits, as transformers does: few of their rows
        have a gradient, so the numbers of a block differ too much in size for a common scale."""
        for name, module in model.named_modules():
            updated = self._updated.get(f"{name}.weight")
            if isinstance(module, nn.Embedding) and updated is not None:
                means = [torch.zeros_like(updated, dtype=torch.float32) for _ in range(2)]
                self._optimizer.state[updated] = {"step": 0, "state1": means[0], "state2": means[1]}

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


def build_optimizer(parameters: Mapping[str, nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """Fused AdamW over `parameters`, with weight decay for those that `decays` names; or
    bitsandbytes' AdamW with a state of 8 bits.

    Raises ValueError if bitsandbytes is needed and not installed.
    """
    groups = [
        {"params": [p for name, p in parameters.items() if decays(name, p)]},
        {
            "params": [p for name, p in parameters.items() if not decays(name, p)],
            "weight_decay": 0.0,
        },
    ]
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (float(config.adam_beta1), float(config.adam_beta2)),  # torch refuses integers
        "eps": config.adam_epsilon,
        "weight_decay": config.weight_decay,
    }
    if not config.eight_bit:
        return AdamW(groups, **settings, fused=True)
    require_bitsandbytes("optimizer.eight_bit")
    from bitsandbytes.optim.adamw import AdamW8bit

    return AdamW8bit(groups, **settings)


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
