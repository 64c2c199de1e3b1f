"""A module and a loss of the user's own, on torch: by autograd, or as a function of the weights."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steps.models.call_queue import SerialQueue
from steps.training.config import OptimizerConfig
from steps.training.optimizer import OwnOptimizer, Updater, freeze
from steps.training.trainer import Engine, StepResult, require_finite_loss

LogitsLoss = Callable[[Any, Any, Any], Any]
"""Maps logits, labels and loss_mask of a batch to a scalar."""

_NO_INPUTS = ("labels", "loss_mask")


def inputs_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a batch the model is given."""
    return {name: value for name, value in batch.items() if name not in _NO_INPUTS}


def logits_of(output: Any) -> Any:
    """The logits that a model returns, by themselves or as `.logits`."""
    return getattr(output, "logits", output)


class ModuleEngine(Engine):
    """Computes gradients by autograd. The module stays where the user has put it, in the mode that
    the user has set; batches go to its device.

    Args:
        optimizer: settings, an optimiser over the module's parameters, what makes one of a list of
            parameters, or a torchopt transformation.
        dtype: of products, by `torch.autocast`; by default that of the weights.
        master_weights, max_grad_norm: as in `Updater`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerConfig | OwnOptimizer | Any,
        dtype: torch.dtype | None = None,
        master_weights: bool = True,
        max_grad_norm: float | None = None,
    ) -> None:
        self._model, self._dtype = model, dtype
        if isinstance(optimizer, OptimizerConfig):
            freeze(model, optimizer)
        elif hasattr(optimizer, "init") and hasattr(optimizer, "update"):
            transformation = optimizer
            optimizer = lambda parameters: Transformed(parameters, transformation)  # noqa: E731
        self._module_updater = Updater(model, optimizer, master_weights, max_grad_norm)
        self._begin_queue(SerialQueue(), self._module_updater)

    def _forward_backward(self, batch: Mapping[str, Any], loss: LogitsLoss) -> StepResult:
        device = next(self._model.parameters()).device
        value = self._gradient({name: x.to(device) for name, x in batch.items()}, loss)
        return require_finite_loss(value)

    def _gradient(self, batch: Mapping[str, Any], loss: LogitsLoss) -> Tensor:
        """Add the gradient of a batch; return its loss."""
        with self._autocast(batch):
            logits = logits_of(self._model(**inputs_of(batch)))
            value = loss(logits, batch.get("labels"), batch.get("loss_mask"))
        value.backward()
        return value.detach()

    def _autocast(self, batch: Mapping[str, Any]) -> AbstractContextManager[Any]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(next(iter(batch.values())).device.type, self._dtype)


class FunctionalModuleEngine(ModuleEngine):
    """The same by `torch.func`: the gradient is a value, a function of the weights."""

    def _gradient(self, batch: Mapping[str, Any], loss: LogitsLoss) -> Tensor:
        def loss_of(weights: Mapping[str, Tensor]) -> Any:
            output = torch.func.functional_call(self._model, dict(weights), (), inputs_of(batch))
            return loss(logits_of(output), batch.get("labels"), batch.get("loss_mask"))

        with self._autocast(batch):
            gradient, value = torch.func.grad_and_value(loss_of)(self._module_updater.weights())
        self._module_updater.add(gradient)
        return value.detach()


class Transformed(Optimizer):
    """Updates of a torchopt transformation, which is applied to each parameter by itself; times the
    learning rate, 1 by default. (Clip by `max_grad_norm`: a norm here is that of one parameter.)"""

    def __init__(self, parameters: list[nn.Parameter], transformation: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self._transformation = transformation

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        import optree

        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                leaves, shape = optree.tree_flatten(
                    self._transformation.init((parameter.detach(),))
                )
                before = self.state[parameter]
                for number, leaf in enumerate(leaves):
                    if (kept := before.get(f"leaf{number}")) is not None:
                        leaves[number] = torch.as_tensor(kept).to(leaf)
                moves, after = self._transformation.update(
                    (parameter.grad,),
                    optree.tree_unflatten(shape, leaves),
                    params=(parameter.detach(),),
                    inplace=False,
                )
                new = enumerate(optree.tree_leaves(after))
                self.state[parameter] = {f"leaf{n}": x for n, x in new if isinstance(x, Tensor)}
                parameter.add_(moves[0], alpha=group["lr"])
