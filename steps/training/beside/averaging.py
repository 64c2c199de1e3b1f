"""The exponential moving average of the weights of a run, beside them (Polyak and Juditsky 1992).

    a ← d · a + (1 − d) · w    after each update, from the untrained weights

It is kept in float32 or better: in bfloat16, most of its moves would round to nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from steps.models.sharded_tensors import Whole, local, put
from steps.training.optimizer import of_same_names
from steps.training.trainer import Trainer, Updates

_AVERAGE = "average/"


class Averaging(Updates):
    """An optimiser that also keeps the average of the weights that it updates.

    Args:
        decay: d, above 0 and below 1.
    """

    def __init__(self, updates: Updates, decay: float) -> None:
        self._updates, self._decay = updates, decay
        self._average = {
            name: weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for name, weight in updates.weights().items()
        }
        self._policy: dict[str, Tensor] = {}

    @property
    def rate(self) -> float:
        return self._updates.rate

    def gradient_norm(self) -> float:
        return self._updates.gradient_norm()

    def step(self, rate: float | None) -> float:
        norm = self._updates.step(rate)
        for name, weight in self.weights().items():
            average = local(self._average[name])
            average.lerp_(local(weight).to(average.dtype), 1 - self._decay)
        return norm

    def state(self) -> dict[str, Tensor]:
        averages = {f"{_AVERAGE}{name}": tensor for name, tensor in self._average.items()}
        return {**self._updates.state(), **averages}

    def load_state(self, tensors: Mapping[str, Whole]) -> None:
        self._updates.load_state({n: t for n, t in tensors.items() if not n.startswith(_AVERAGE)})
        for name, average in of_same_names(tensors, _AVERAGE, self._average).items():
            put(average, self._average[name])

    def weights(self) -> dict[str, Tensor]:
        return self._updates.weights()

    def load_weights(self, weights: Mapping[str, Whole]) -> None:
        self._updates.load_weights(weights)

    def show_average(self) -> None:
        """Let the model compute with the average, until `show_policy`; updates must wait."""
        self._policy = {name: local(weight).clone() for name, weight in self.weights().items()}
        for name, weight in self.weights().items():
            local(weight).copy_(local(self._average[name]))

    def show_policy(self) -> None:
        """Let the model compute with the weights that are updated."""
        for name, weight in self.weights().items():
            local(weight).copy_(self._policy.pop(name))


class Averaged:
    """What a run shows of its weights: their average, or themselves.

    Args:
        decay: None for a run without an average.
    """

    def __init__(self, trainer: Trainer, decay: float | None) -> None:
        self._trainer = trainer
        self._averaging = None
        if decay is not None:
            self._averaging = trainer.wrap_updates(lambda updates: Averaging(updates, decay))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Evaluate and save the average within the block, if there is one."""
        self.show()
        yield
        if self._averaging is not None:
            self._trainer.scorer.queue.submit(self._averaging.show_policy)

    def show(self) -> None:
        """The same until the run ends."""
        if self._averaging is not None:
            self._trainer.scorer.queue.submit(self._averaging.show_average)
